"""Changes of models and texts, as damage, bad exporters and ill will make them.

Any field of any message in a model is cleared or gets another value: a name, size or number of
elsewhere in the model, or one that is known to be hard; lists get one item more, one less, or two
change places. A few edits that most models survive reach what lies behind the first checks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper, numpy_helper

from memplan.proto.nodes import subgraphs

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

Edit = Callable[[onnx.ModelProto, onnx.GraphProto, random.Random], None]
IMPOSSIBLE = (ValueError, IndexError, TypeError, KeyError)
"""An edit of something that the graph has not."""


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from graphs_of(body)


# --- Any field ------------------------------------------------------------------------------------


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
    if not _is_list(value):
        if r.random() < 0.15:
            message.ClearField(field.name)
        elif isinstance(value, Message):
            # Not copied at once: it may be what this stands in.
            found = r.choice(_small(kinds[value.DESCRIPTOR.name]))
            value.CopyFrom(type(value).FromString(found.SerializeToString()))
        else:
            setattr(message, field.name, other(root, field, value, r))
        return
    items = list(value)
    how, k = r.randrange(5), r.randrange(max(len(items), 1))
    if how == 0:
        del items[k]
    elif how == 1:
        items.insert(k, items[k])
    elif how == 2:
        items.insert(r.randrange(len(items)), items.pop(k))
    elif field.message_type is not None:
        items.insert(k, r.choice(_small(kinds[field.message_type.name])))
    else:
        items[k : k + (how == 3)] = [other(root, field, items[k] if items else None, r)]
    copies = [
        type(each).FromString(each.SerializeToString()) if isinstance(each, Message) else each
        for each in items
    ]
    message.ClearField(field.name)
    getattr(message, field.name).extend(copies)


def _small(found: Sequence[Message]) -> list[Message]:
    return [each for each in found if each.ByteSize() < MOST_BYTES]


def other(root: Message, field: FieldDescriptor, value: Any, r: random.Random) -> Any:
    """Another value of a field, as a rule of its type."""
    if field.name in KNOWN and r.random() < 0.7:
        return r.choice(KNOWN[field.name])
    if field.name == "op_type":
        return r.choice(onnx.defs.get_all_schemas()).name
    if field.type == field.TYPE_BYTES:
        return scrambled(value or b"", r)
    if field.type == field.TYPE_STRING:
        names = [
            name
            for node in messages(root)
            if isinstance(node, onnx.NodeProto)
            for name in node.output
        ]
        return r.choice(names if names and r.random() < 0.7 else NAMES)
    if field.type == field.TYPE_ENUM:
        return r.choice([each.number for each in field.enum_type.values])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return r.choice((*NUMBERS, float(np.nextafter(np.float32(value or 0), np.float32(9)))))
    near = ((value or 0) + 1, (value or 0) - 1)
    return r.choice(near if r.random() < 0.3 else SIZES)


# --- What most models survive ---------------------------------------------------------------------


def set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Put other nodes into a graph."""
    texts = [node.SerializeToString() for node in nodes]
    del graph.node[:]
    graph.node.extend(onnx.NodeProto.FromString(text) for text in texts)


def nest(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A node put into an If."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    outputs = [name for name in nodes[k].output if name]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    body = helper.make_graph([nodes[k]], "body", [], values)
    flag = f"flag{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.array(True), flag))
    nodes[k] = helper.make_node("If", [flag], outputs, then_branch=body, else_branch=body)
    set_nodes(graph, nodes)


def insert_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """One operator more on the way to a reader."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    names = nodes[k].input
    slot, made = r.randrange(len(names)), f"inserted{len(nodes)}{r.randrange(1000)}"
    nodes.insert(k, helper.make_node(r.choice(_UNARY), [names[slot]], [made]))
    names[slot] = made
    set_nodes(graph, nodes)


def repeat_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A node twice, as after recomputation by hand; the last reader takes the copy's output."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    readers = [n for n, node in enumerate(nodes) if nodes[k].output[0] in node.input]
    again = onnx.NodeProto.FromString(nodes[k].SerializeToString())
    again.output[:] = [name and f"{name}/again" for name in again.output]
    again.name = again.name and f"{again.name}/again"
    names = nodes[readers[-1]].input
    names[list(names).index(nodes[k].output[0])] = again.output[0]
    nodes.insert(readers[-1], again)
    set_nodes(graph, nodes)


def forget(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """No shapes but those of the inputs, and nodes without names, or all with one."""
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    name = r.choice(("", "same"))
    for node in graph.node:
        node.name = name


def shrink(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another size or name of the first axis of an input, as an edit of the batch is."""
    dim = r.choice(graph.input).type.tensor_type.shape.dim[0]
    if r.random() < 0.5:
        dim.dim_value = r.choice((1, 2, 3, 4, 16))
    else:
        dim.dim_param = r.choice(("N", "batch", "T"))


def anything(model: onnx.ModelProto, _: onnx.GraphProto, r: random.Random) -> None:
    """Any field of the model."""
    change_field(model, r)


_UNARY = ("Identity", "Relu", "Neg", "Tanh", "Exp", "Dropout", "Softmax", "Transpose", "Flatten")
_GENTLE: tuple[Edit, ...] = (insert_node, insert_node, repeat_node, forget, shrink, nest)
_SHARE_OF_GENTLE = 0.4


def mutated(data: bytes, r: random.Random, share_of_bytes: float = 0.1) -> bytes:
    """A model with one to four edits; sometimes of its bytes."""
    if r.random() < share_of_bytes:
        return scrambled(data, r)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return scrambled(data, r)
    gentle = r.random() < _SHARE_OF_GENTLE
    for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
        graphs = list(graphs_of(model.graph))
        graph = r.choice([model.graph] * max(1, len(graphs) - 1) + graphs[1:])
        edit = r.choice(_GENTLE if gentle or r.random() < 0.2 else (anything,))
        try:
            edit(model, graph, r)
        except IMPOSSIBLE:
            continue
    return model.SerializeToString()


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


_VALUES = ("-1", "0", "9" * 4000, "1e400", "nan", "true", '""', "[]", "{}", "[1]", "{a = 1}")
_VALUES += ('"\\u001b[31m"', '"1%"', "0x7fffffffffffffffffff", "[" * 3000 + "]" * 3000)
_LINES = ("<<<<<<< HEAD", "[[models]]", "[models.x.y.z]", '"""', "\0", "# " + "x" * 10_000)
_LINES += ("a." * 30_000 + "b = 1", "[" + "a." * 20_000 + "b]")


def mutated_text(text: str, r: random.Random) -> str:
    """A lock with one to three edits."""
    lines = text.split("\n")
    for _ in range(r.choice((1, 1, 2, 3))):
        k, how = r.randrange(len(lines)), r.randrange(4)
        if how <= 1 and "=" in lines[k]:
            lines[k] = lines[k].split("=")[0] + "= " + r.choice(_VALUES)
        elif how == 2:
            del lines[k]
        else:
            lines.insert(k, r.choice(_LINES))
        lines = lines or [""]
    return "\n".join(lines)
