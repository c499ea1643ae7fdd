"""Why a model needs more than before, in one line each: what a reviewer reads first.

From two entries alone, so that it works against a lock as well as against the model of another
commit. The likeliest cause stands first:

1. *torch*: another PyTorch captured the step.
2. *sizes*: an input, most often its batch, has other dimensions.
3. *types*: tensors have a wider element type.
4. *fusion*: a fused operator has gone, and what it consists of has come in its place.
5. *order*: the nodes and their sizes are the same and run in another order.
6. *stash* and *tensors*: tensors are in memory at the peak that were not.

What an older lock does not tell (:mod:`memplan.api.check.traits`) is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memplan.api.check.differences import (
    NewTensors,
    changed_fields,
    class_changes,
    new_tensors,
)
from memplan.api.check.peak import Peak
from memplan.units import counted, format_bytes, listed, printable

_MOST_NAMES = 3
_MOST_DIGITS = 18  # of a size that memplan wrote
_HALF = ("float16", "bfloat16")
_WIDER = (
    (_HALF, ("float32", "float64")),
    (("float32",), ("float64",)),
    (("int8", "uint8", "bool"), ("int32", "int64", *_HALF, "float32")),
    (("int32",), ("int64",)),
)
# Operators that stand for several, and one that shows when they are taken apart.
_FUSED = {
    "Attention": "Softmax",
    "BatchNormalization": "Sqrt",
    "Gelu": "Erf",
    "Gemm": "MatMul",
    "GroupNormalization": "InstanceNormalization",
    "InstanceNormalization": "ReduceMean",
    "LayerNormalization": "ReduceMean",
    "LogSoftmax": "Log",
    "RMSNormalization": "ReduceMean",
    "RotaryEmbedding": "Concat",
    "Softmax": "Exp",
    "Swish": "Sigmoid",
}
_VENDOR = "com.microsoft:"


class CauseKind(StrEnum):
    """What sort of change it is; the words are part of the JSON contract."""

    TORCH = "torch"
    SIZES = "sizes"
    TYPES = "types"
    FUSION = "fusion"
    ORDER = "order"
    STASH = "stash"
    TENSORS = "tensors"
    SAME = "same-graph"


@dataclass(frozen=True, slots=True)
class Cause:
    """A sort of change, and one line that says it with the names of the model; ``detail`` is the
    largest example, where there are several."""

    kind: CauseKind
    text: str
    detail: str = ""

    @property
    def line(self) -> str:
        """All of it."""
        return f"{self.text}: {self.detail}" if self.detail else self.text


def causes(before: Peak, now: Peak) -> tuple[Cause, ...]:
    """Why ``now`` needs more than ``before``, the likeliest first; never empty."""
    fields, new = changed_fields(before, now), new_tensors(before, now)
    found = [*_sizes(before, now), *_types(before, now), *_fusions(before, now)]
    # Whether the file is another one, or what a session makes of it.
    moved = "fingerprint" in fields or "runtime" in fields
    if not found and before.structure and before.structure == now.structure and moved:
        text = "another order: the same nodes with the same sizes run in a different order"
        found.append(Cause(CauseKind.ORDER, text))
    # Tensors that are larger, each, need no second line that calls them more.
    resized = {CauseKind.SIZES, CauseKind.TYPES}.intersection(cause.kind for cause in found)
    if new and not resized:
        found.append(_tensors(new))
    if not found and "fingerprint" in fields:
        grown = {name: nbytes for name, nbytes in class_changes(before, now).items() if nbytes > 0}
        name = max(grown, key=lambda name: grown[name], default="tensors")
        found.append(Cause(CauseKind.TENSORS, f"more {printable(name)} at the peak"))
    if not found:
        text = (
            "the graph is the same as in the lock: that was edited, or memplan counts differently"
        )
        found.append(Cause(CauseKind.SAME, text))
    if "torch" in fields:
        text = f"captured by another PyTorch: {before.torch} -> {now.torch}"
        found.insert(0, Cause(CauseKind.TORCH, printable(text), found[0].text))
    return tuple(found)


def _sizes(old: Peak, new: Peak) -> list[Cause]:
    """Inputs that are larger; what is smaller explains no growth."""
    inputs = _paired(old.inputs or {}, new.inputs or {})
    pairs = [(name, _shape(a), _shape(b)) for name, a, b in inputs]
    pairs = [(name, a, b) for name, a, b in pairs if math.prod(a) < math.prod(b)]
    if not pairs:
        return []
    batches = {(a[:1], b[:1]) for _, a, b in pairs if a[1:] == b[1:]}
    if len(batches) == 1 and all(a[1:] == b[1:] for _, a, b in pairs):
        before, after = next(iter(batches))
        names = _names([name for name, _, _ in pairs])
        return [Cause(CauseKind.SIZES, f"larger batch: {before[0]} -> {after[0]} in {names}")]
    name, a, b = pairs[0]
    more = f" and {counted(len(pairs) - 1, 'more input')}" if len(pairs) > 1 else ""
    shapes = " -> ".join("x".join(map(str, shape)) or "scalar" for shape in (a, b))
    return [Cause(CauseKind.SIZES, f"larger input: {printable(name)} {shapes}{more}")]


def _paired(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Inputs that are there on both sides: by name, or by place where an exporter renamed all."""
    if not old.keys() & new.keys() and len(old) == len(new):
        return [(name, a, b) for (name, b), a in zip(new.items(), old.values(), strict=True)]
    return [(name, old[name], new[name]) for name in new if name in old]


def _shape(text: str) -> tuple[int, ...]:
    """The sizes in ``float32[8,128]``; nothing where a lock was edited into something else."""
    inside = text.partition("[")[2].rstrip("]")
    sizes = [size for size in inside.split(",") if size.isdecimal() and size.isascii()]
    return tuple(int(size[:_MOST_DIGITS]) for size in sizes)


def _types(old: Peak, new: Peak) -> list[Cause]:
    """The type with most tensors gone and the one with most tensors come, if about as many of a
    wider one of the same kind came: else nodes were replaced, not widened."""
    before, now = old.types or {}, new.types or {}
    changed = {name: now.get(name, 0) - before.get(name, 0) for name in {**before, **now}}
    gone, lost = min(changed.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    come, more = max(changed.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    wider = any(come in wide and gone in narrow for narrow, wide in _WIDER)
    if not wider or lost >= 0 or more <= 0 or 2 * min(more, -lost) < max(more, -lost):
        return []
    text = f"wider element type: {gone} -> {come} in {counted(min(more, -lost), 'tensor')}"
    return [Cause(CauseKind.TYPES, text)]


def _fusions(old: Peak, new: Peak) -> list[Cause]:
    before, now = old.operators or {}, new.operators or {}
    fewer = {op: n - now.get(op, 0) for op, n in before.items()}
    more = {op: n - before.get(op, 0) for op, n in now.items() if n > before.get(op, 0)}
    found = []
    for op, count in sorted(fewer.items(), key=lambda item: (-item[1], item[0])):
        if count > 0 and _fell_apart(op, count, more):
            shows = _FUSED.get(op.removeprefix(_VENDOR))
            parts = sorted(more.items(), key=lambda item: (item[0] != shows, -item[1], item[0]))[:4]
            became = ", ".join(f"{n} {printable(name)}" for name, n in parts)
            found.append(
                Cause(CauseKind.FUSION, f"fusion lost: {count} {printable(op)} became {became}")
            )
    return found[:1]


def _fell_apart(op: str, count: int, more: Mapping[str, int]) -> bool:
    name = op.removeprefix(_VENDOR)
    if name == op and op not in _FUSED:
        return False
    # One node for each would be another operator, not the parts of this one.
    shows = _FUSED.get(name)
    return sum(more.values()) > count and (shows is None or shows in more)


def _tensors(families: Sequence[NewTensors]) -> Cause:
    stashes = [f for f in families if f.tensors.tensor_class == "stash"]
    chosen = stashes or families
    grown = [f for f in chosen if f.grew_from_bytes is not None]
    count = sum(f.count for f in chosen)
    number = f"{count}" if all(f.exact for f in chosen) else f"up to {count}"
    tensors = "tensor" if count == 1 else "tensors"
    if len(grown) == len(chosen):
        text = f"{number} {tensors} at the peak {'is' if count == 1 else 'are'} larger"
    elif stashes:
        text = f"{number} more {tensors} stay{'s' if count == 1 else ''} live into backward"
    else:
        text = f"{number} more {tensors} in memory at the peak"
    largest = chosen[0].tensors
    detail = f"{largest.place}, {chosen[0].count} x {format_bytes(largest.nbytes)}"
    detail += f", made at {printable(largest.line)}" if largest.line else ""
    return Cause(CauseKind.STASH if stashes else CauseKind.TENSORS, text, detail)


def _names(names: list[str]) -> str:
    return listed([printable(name) for name in names], _MOST_NAMES)
