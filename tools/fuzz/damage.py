"""Damaged and edited checkpoints and weights: of bytes, of the archive or header, of its fields."""

from __future__ import annotations

import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

ABOUT = "memplan.checkpoint"
_BOMB = 1 << 27  # bytes that a small member comes to
_ODD: tuple[Any, ...] = (None, True, False, -1, 0, 1, 3, 1.5, -0.0, 1e308, 10**30, 2**63, 2**70, "")
_ODD += (
    "1",
    "x",
    "\0",
    "a\nb",
    "x" * 5000,
    [],
    [1],
    ["8"],
    {},
    {"a": 1},
    float("nan"),
    8.9,
    [0, 8],
)
_ODD += (float("inf"), float("-inf"), [-1, 16], [2**62, 4], [0] * 70, "F32", "F64", "BF16", "I32")
_TEXTS = (
    "{",
    "[]",
    "null",
    "1",
    "[" * 100_000,
    '{"steps":' + "9" * 10_000 + "}",
    "",
    "\udcff",
    "NaN",
)
_HEADERS = ("<f8", ">f4", "<i4", "|O", "V4", "<c8", "<U1", "<M8[s]", "|b1", "<f2")
_SHAPES = (
    "()",
    "(0,)",
    "(-8, -16)",
    "(16, 8)",
    f"({2**40},)",
    f"({2**62}, 4)",
    "(8.0, 16)",
    "(True,)",
)
_METHODS = (zipfile.ZIP_DEFLATED,) * 8 + (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def flipped(data: bytes, r: random.Random, start: int = 0) -> bytes:
    """Some bits the other way, behind ``start``."""
    found = bytearray(data)
    for _ in range(r.choice((1, 1, 1, 2, 8))):
        found[r.randrange(min(start, len(found) - 1), len(found))] ^= 1 << r.randrange(8)
    return bytes(found)


def cut(data: bytes, r: random.Random) -> bytes:
    """Bytes less, more, or elsewhere."""
    begin, end = sorted((r.randrange(len(data)), r.randrange(len(data))))
    how = r.randrange(5)
    if how == 0:
        return data[:begin]
    if how == 1:
        return data[:begin] + data[end:]
    if how == 2:
        return data[:begin] + r.randbytes(r.choice((1, 7, 100))) + data[begin:]
    if how == 3:
        return data + data[begin:end]
    return data[:begin] + data[end:] + data[begin:end]


Members = list[tuple[str, bytes]]


def _unpacked(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def _packed(members: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w", method) as archive:
        warnings.simplefilter("ignore")  # a name that is there already is meant
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return target.getvalue()


def _text(value: str) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _about(members: Members) -> tuple[int, dict[str, Any]]:
    place = next(k for k, (name, _) in enumerate(members) if name == f"{ABOUT}.npy")
    return place, json.loads(str(np.load(io.BytesIO(members[place][1]))))


def _odd(r: random.Random) -> Any:
    return r.choice(_ODD)


def edit_field(members: Members, r: random.Random) -> None:
    """Another value of a field, one less or one more."""
    place, told = _about(members)
    inner = [value for value in told.values() if isinstance(value, dict) and value]
    table = r.choice(inner) if inner and r.random() < 0.5 else told
    how = r.randrange(8)
    if how == 0:
        del table[r.choice(sorted(table))]
    elif how == 1:
        table[r.choice(("extra", "lr", "", "steps"))] = _odd(r)
    else:
        table[r.choice(sorted(table))] = _odd(r)
    text = r.choice(_TEXTS) if r.random() < 0.05 else json.dumps(told)
    members[place] = (members[place][0], _text(text.encode(errors="replace").decode()))


def edit_members(members: Members, r: random.Random) -> None:
    """A member less, twice, renamed, in another's place, or of another kind."""
    k, other = r.randrange(len(members)), r.randrange(len(members))
    name, content = members[k]
    how = r.randrange(7)
    if how == 0:
        del members[k]
    elif how == 1:
        members.append((name, members[other][1]))
    elif how == 2:
        names = (
            "../../up.npy",
            "x",
            "w1.npy",
            "#names.json",
            "#0.npy",
            "/etc/x.npy",
            "",
            "a" * 300,
        )
        members[k] = (r.choice(names), content)
    elif how == 3:
        members[k], members[other] = (name, members[other][1]), (members[other][0], content)
    elif how == 4:
        members.append(
            ("#names.json", r.choice((b"[]", b"{}", b"[1]", b'["w1","w1"]', b"[" * 9999)))
        )
    elif how == 5:
        members.append((f"n{r.randrange(9)}.npy", content))
    else:
        r.shuffle(members)  # which means nothing


def edit_header(members: Members, r: random.Random) -> None:
    """Another type, shape, order or length of an array."""
    k = r.randrange(len(members))
    name, content = members[k]
    how = r.randrange(6)
    end = content.find(b"\n") + 1
    if b"(" not in content[:end]:  # an edit before this one has left no header
        return
    header, values = content[10:end].decode("latin1"), content[end:]
    if how == 0:
        header = header.replace("<f4", r.choice(_HEADERS))
    elif how == 1:
        header = header.replace("False", r.choice(("True", "None", "1", "'x'")))
    elif how == 2:
        begin = header.index("(")
        header = header[:begin] + r.choice(_SHAPES) + header[max(begin, header.rfind(")")) + 1 :]
    elif how == 3:
        values = values[: r.randrange(len(values) + 1)] if r.random() < 0.5 else values + b"\0" * 64
    elif how == 4:
        header = r.choice(("(" * 5000, "{'descr': '''", "-" * 9000 + "1", "{}", "[]", "\x00"))
    else:
        values = flipped(values, r) if values else b"\0"
    version = r.choice((b"\x02\x00", b"\x03\x00", b"\x63\x00")) if r.random() < 0.1 else b"\x01\x00"
    text = header.encode("latin1")
    size = len(text).to_bytes(2, "little")
    members[k] = (name, b"\x93NUMPY" + version + size + text + values)


def _bomb(name: str, data: bytes) -> bytes:
    """The archive with an array that is packed into a thousandth of its size."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({_BOMB // 4},)}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    members = [member for member in _unpacked(data) if member[0] != name]
    return _packed([*members, (name, content + bytes(_BOMB))], zipfile.ZIP_DEFLATED)


@cache
def bombs(data: bytes) -> tuple[bytes, ...]:
    """The archive with one in an array of the state, in what it says of itself, in another one."""
    first = _unpacked(data)[0][0]
    return tuple(_bomb(name, data) for name in (first, f"{ABOUT}.npy", "unrelated.npy"))


_EDITS: tuple[Callable[[Members, random.Random], None], ...]
_EDITS = (edit_field, edit_field, edit_field, edit_members, edit_header)


def damaged_checkpoint(data: bytes, r: random.Random) -> bytes:
    """A mutant of a checkpoint, whose digest is left as it was."""
    how = r.random()
    if how < 0.2:
        return flipped(data, r)
    if how < 0.3:
        return flipped(data, r, data.index(b"PK\x01\x02"))  # the directory of the archive
    if how < 0.4:
        return cut(data, r)
    members = _unpacked(data)
    if how < 0.42:
        bomb = r.choice(bombs(data))
        return bomb if r.random() < 0.5 else flipped(bomb, r, len(bomb) - 400)
    for _ in range(r.choice((1, 1, 2))):
        before = list(members)
        try:
            r.choice(_EDITS)(members, r)
        except Exception:  # the edit before has left nothing to edit
            members = before
    return _packed(members, r.choice(_METHODS) if r.random() < 0.2 else zipfile.ZIP_STORED)


def edited_checkpoint(data: bytes, r: random.Random) -> tuple[bytes, dict[str, Any]]:
    """A checkpoint with another field, and what it then says: the caller makes its digest anew."""
    members = _unpacked(data)
    while True:
        copy = list(members)
        edit_field(copy, r)
        try:
            told = _about(copy)[1]
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict):
            return _packed(copy), told


def with_text(data: bytes, told: dict[str, Any]) -> bytes:
    """A checkpoint that says ``told`` of itself."""
    members = _unpacked(data)
    place, _ = _about(members)
    members[place] = (members[place][0], _text(json.dumps(told)))
    return _packed(members)


def damaged_safetensors(data: bytes, r: random.Random) -> bytes:
    """A mutant of a file of weights, most of them of its header."""
    length = int.from_bytes(data[:8], "little")
    how = r.random()
    if how < 0.15:
        return flipped(data[: 8 + length], r) + data[8 + length :]
    if how < 0.2:
        return flipped(data, r)
    if how < 0.3:
        return cut(data, r)
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    for _ in range(r.choice((1, 1, 2))):
        _edit_entry(header, r)
    text = json.dumps(header)
    if r.random() < 0.15:
        text = _edit_text(text, header, r)
    if r.random() < 0.1:
        values = r.choice((values + b"\0", values[:-1], b"", values * 2))
    packed = text.encode(errors="replace")
    said = (
        r.choice((2**64 - 1, 2**62, 0, 10**8 + 1, len(packed) + 1)) if r.random() < 0.05 else None
    )
    return (len(packed) if said is None else said).to_bytes(8, "little") + packed + values


def _edit_entry(header: dict[str, Any], r: random.Random) -> None:
    name = r.choice(sorted(header)) if header else ""
    entry, how = header.get(name), r.randrange(9)
    if not isinstance(entry, dict) or how == 0:
        header[r.choice(("__metadata__", "w1", "", "num_batches_tracked"))] = _odd(r)
    elif how == 1:
        del header[name]
    elif how == 2:
        header[r.choice(("b9", "w1", "__metadata__"))] = header.pop(name)
    elif how == 3:
        entry.pop(r.choice(sorted(entry)), None) if entry else None
    elif how == 4:
        entry["extra"] = _odd(r)
    elif how < 7 and isinstance(entry.get("data_offsets"), list) and entry["data_offsets"]:
        places = entry["data_offsets"]
        k = r.randrange(len(places))
        shifts = (1, -1, 4, -4, 512, 2**40)
        places[k] = places[k] + r.choice(shifts) if type(places[k]) is int else _odd(r)
        if r.random() < 0.3:
            places[k] = _odd(r)
    else:
        entry[r.choice(("dtype", "shape", "data_offsets"))] = _odd(r)


def _edit_text(text: str, header: dict[str, Any], r: random.Random) -> str:
    """Another text of a header: some mean the same."""
    name = r.choice(sorted(header)) if header else "x"
    again = json.dumps({name: header.get(name)})[1:]
    return r.choice(
        (
            text + " " * r.randrange(64),
            " " + text,
            text[:-1] + ", " + again if header else text,
            "[" * 200_000,
            r.choice(_TEXTS),
            text.replace('"', "'"),
            text[:-1],
        )
    )
