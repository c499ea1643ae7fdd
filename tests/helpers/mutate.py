"""Any change of a model, as damage, bad exporters and ill will make them.

Any field of any message in a model is cleared or gets another value: a name, size or number of
elsewhere in the model, or one that is known to be hard; lists get one item more, one less, or two
change places.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

SIZES = (0, 1, 2, 3, -1, -2, 7, 64, 1000, 4097, 65536, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
SIZES += (-(2**63),)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e-40, 65504.0)
NAMES = ("", "nowhere", "N", "2*N", "N//0", "((((", "a\nb", "\x1b[31m", "x" * 70_000, "loss")
METADATA = ("{}", "[]", "null", "[" * 9000, "1" * 5000, f'{{"h": [1, [{2**70}, "N"]]}}', "NaN")
METADATA += ("['a', 'b']", "(" * 500, "-" * 5000 + "1", "{[]: 1}", "'x'", "1", "forward", "\0")
METADATA += ("../x", "/etc/hostname", "a\0b", "C:\\x")
KEYS = tuple(f"memplan.{key}" for key in ("hidden_shapes", "dims", "session", "phase", "module"))
KEYS += ("pkg.torch.onnx.name_scopes", "location", "offset")
KNOWN: dict[str, Sequence[Any]] = {
    "domain": ("", "ai.onnx", "com.microsoft", "acme", "ai.onnx.ml"),
    "elem_type": (*range(30), 1000, -1),
    "data_type": (*range(30), 1000, -1),
    "key": KEYS,
    "value": METADATA,
    "version": (0, 8, 9, 13, 18, 25, 1000, 2**62, -1),
    "ir_version": (0, 3, 8, 100, 2**62),
}
"""Values of fields, by their names."""
MOST_BYTES = 2000  # of a message that is put elsewhere


def messages(message: Message) -> Iterator[Message]:
    """A message and all that are in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if _is_list(value) else (value,):
                yield from messages(each)


def _is_list(value: object) -> bool:
    return not isinstance(value, Message | str | bytes | int | float)


def change_field(root: Message, r: random.Random, *, empty: float = 0.2) -> None:
    """Change one field of a message in ``root``; each kind of message is as likely.

    Args:
        root: is changed.
        r: draws.
        empty: the share of changes of a field that is not there.
    """
    kinds = defaultdict[str, list[Message]](list)
    for each in messages(root):
        kinds[each.DESCRIPTOR.name].append(each)
    message = r.choice(kinds[r.choice(sorted(kinds))])
    there = [field for field, _ in message.ListFields()]
    field = r.choice(there if there and r.random() > empty else message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    # Not copied later: they may be what this stands in.
    alike = [
        type(each).FromString(each.SerializeToString())
        for each in (kinds[field.message_type.name] if field.message_type else ())
        if each.ByteSize() < MOST_BYTES
    ]
    if not _is_list(value):
        if r.random() < 0.15:
            message.ClearField(field.name)
        elif isinstance(value, Message):
            value.CopyFrom(r.choice(alike))
        else:
            setattr(message, field.name, other(root, field, value, r))
        return
    items = [
        type(each).FromString(each.SerializeToString()) if isinstance(each, Message) else each
        for each in value
    ]
    how, k = r.randrange(5), r.randrange(max(len(items), 1))
    if how == 0:
        del items[k]
    elif how == 1:
        items.insert(k, items[k])
    elif how == 2:
        items.insert(r.randrange(len(items)), items.pop(k))
    elif field.message_type is not None:
        items.insert(k, r.choice(alike))
    else:
        items[k : k + (how == 3)] = [other(root, field, items[k] if items else None, r)]
    message.ClearField(field.name)
    getattr(message, field.name).extend(items)


def other(root: Message, field: FieldDescriptor, value: Any, r: random.Random) -> Any:
    """Another value of a field, as a rule of its type."""
    if field.name in KNOWN and r.random() < 0.7:
        return r.choice(KNOWN[field.name])
    if field.name == "op_type":
        return r.choice(onnx.defs.get_all_schemas()).name
    if field.type == field.TYPE_BYTES:
        return scrambled(value or b"", r)
    if field.type == field.TYPE_STRING:
        nodes = (each for each in messages(root) if isinstance(each, onnx.NodeProto))
        names = [name for node in nodes for name in node.output]
        return r.choice(names if names and r.random() < 0.7 else NAMES)
    if field.type == field.TYPE_ENUM:
        return r.choice([each.number for each in field.enum_type.values])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return r.choice((*NUMBERS, float(np.nextafter(np.float32(value or 0), np.float32(9)))))
    near = ((value or 0) + 1, (value or 0) - 1)
    return r.choice(near if r.random() < 0.3 else SIZES)


def scrambled(data: bytes, r: random.Random) -> bytes:
    """Bytes changed, removed, or put in."""
    changed = bytearray(data)
    for _ in range(r.choice((1, 2, 5))):
        place = r.randrange(len(changed) + 1)
        how = r.randrange(4)
        if how == 0:
            changed[place : place + 1] = r.randbytes(1)
        elif how == 1:
            changed[place:place] = r.randbytes(r.randrange(1, 20))
        elif how == 2:
            del changed[place : place + r.choice((1, 5, 100))]
        elif r.random() < 0.3:
            del changed[place:]
    return bytes(changed)
