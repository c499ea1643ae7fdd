"""Why a model needs more than before, in one line each: what a reviewer reads first.

From two entries alone, so that it works against a lock as well as against the model of another
commit. The likeliest cause stands first:

1. *sizes*: an input, most often its batch, has other dimensions.
2. *types*: tensors have a wider element type.
3. *fusion*: a fused operator has gone, and what it consists of has come in its place.
4. *order*: the nodes and their sizes are the same and run in another order.
5. *stash* and *tensors*: tensors are in memory at the peak that were not.

What an older lock does not tell (:mod:`memplan.api.check.traits`) is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from memplan.api.check.compare_locks import CheckEntry, FamilyDelta, LockDiff, diff
from memplan.api.check.current import Current
from memplan.api.check.lock import LockEntry
from memplan.api.check.traits import Traits
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


class Kind(StrEnum):
    """What sort of change it is; the words are part of the JSON contract."""

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

    kind: Kind
    text: str
    detail: str = ""

    @property
    def line(self) -> str:
        """All of it."""
        return f"{self.text}: {self.detail}" if self.detail else self.text


def causes(before: LockEntry, now: Current) -> tuple[Cause, ...]:
    """Why ``now`` needs more than ``before``, the likeliest first; never empty."""
    changes = diff(before, now)
    old, new = before.traits, now.entry.traits
    found = []
    if old is not None and new is not None:
        found = [*_sizes(old, new), *_types(old, new), *_fusions(old, new)]
        if not found and old.structure == new.structure and _moved(changes):
            text = "another order: the same nodes with the same sizes run in a different order"
            found.append(Cause(Kind.ORDER, text))
    # Tensors that are larger, each, need no second line that calls them more.
    resized = {Kind.SIZES, Kind.TYPES}.intersection(cause.kind for cause in found)
    if changes.families and not resized:
        found.append(_tensors(changes.families))
    return tuple(found) or (_unexplained(changes),)


def causes_of(entry: CheckEntry) -> tuple[Cause, ...]:
    """Why a model needs more than it is held against; nothing where it does not."""
    before, now = entry.explained_by, entry.now
    if before is None or now is None or now.entry.peak_bytes <= before.peak_bytes:
        return ()
    return causes(before, now)


def _moved(changes: LockDiff) -> bool:
    """Whether the file is another one, or what a session makes of it."""
    return "fingerprint" in changes.fields or "runtime" in changes.fields


def _unexplained(changes: LockDiff) -> Cause:
    if "fingerprint" in changes.fields:
        grown = [c for c in changes.classes if c.delta_bytes > 0]
        name = max(grown, key=lambda c: c.delta_bytes).name if grown else ""
        return Cause(Kind.TENSORS, f"more {printable(name) or 'tensors'} at the peak")
    text = "the graph is the same as in the lock: that was edited, or memplan counts differently"
    return Cause(Kind.SAME, text)


def _sizes(old: Traits, new: Traits) -> list[Cause]:
    """Inputs that are larger; what is smaller explains no growth."""
    pairs = [(name, _shape(a), _shape(b)) for name, a, b in _paired(old.inputs, new.inputs)]
    pairs = [(name, a, b) for name, a, b in pairs if math.prod(a) < math.prod(b)]
    if not pairs:
        return []
    batches = {(a[:1], b[:1]) for _, a, b in pairs if a[1:] == b[1:]}
    if len(batches) == 1 and all(a[1:] == b[1:] for _, a, b in pairs):
        before, after = next(iter(batches))
        names = _names([name for name, _, _ in pairs])
        return [Cause(Kind.SIZES, f"larger batch: {before[0]} -> {after[0]} in {names}")]
    name, a, b = pairs[0]
    more = f" and {counted(len(pairs) - 1, 'more input')}" if len(pairs) > 1 else ""
    shapes = " -> ".join("x".join(map(str, shape)) or "scalar" for shape in (a, b))
    return [Cause(Kind.SIZES, f"larger input: {printable(name)} {shapes}{more}")]


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


def _types(old: Traits, new: Traits) -> list[Cause]:
    """The type with most tensors gone and the one with most tensors come, if about as many of a
    wider one of the same kind came: else nodes were replaced, not widened."""
    changed = {t: new.types.get(t, 0) - old.types.get(t, 0) for t in {**old.types, **new.types}}
    gone, lost = min(changed.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    come, more = max(changed.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    wider = any(come in wide and gone in narrow for narrow, wide in _WIDER)
    if not wider or lost >= 0 or more <= 0 or 2 * min(more, -lost) < max(more, -lost):
        return []
    text = f"wider element type: {gone} -> {come} in {counted(min(more, -lost), 'tensor')}"
    return [Cause(Kind.TYPES, text)]


def _fusions(old: Traits, new: Traits) -> list[Cause]:
    fewer = {op: n - new.operators.get(op, 0) for op, n in old.operators.items()}
    more = {op: n - old.operators.get(op, 0) for op, n in new.operators.items()}
    more = {op: n for op, n in more.items() if n > 0}
    found = []
    for op, count in sorted(fewer.items(), key=lambda item: (-item[1], item[0])):
        if count > 0 and _fell_apart(op, count, more):
            shows = _FUSED.get(op.removeprefix(_VENDOR))
            parts = sorted(more.items(), key=lambda item: (item[0] != shows, -item[1], item[0]))[:4]
            became = ", ".join(f"{n} {printable(name)}" for name, n in parts)
            found.append(
                Cause(Kind.FUSION, f"fusion lost: {count} {printable(op)} became {became}")
            )
    return found[:1]


def _fell_apart(op: str, count: int, more: Mapping[str, int]) -> bool:
    name = op.removeprefix(_VENDOR)
    if name == op and op not in _FUSED:
        return False
    # One node for each would be another operator, not the parts of this one.
    shows = _FUSED.get(name)
    return sum(more.values()) > count and (shows is None or shows in more)


def _tensors(families: Iterable[FamilyDelta]) -> Cause:
    families = list(families)
    stashes = [f for f in families if f.family.tensors.tensor_class == "stash"]
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
    largest = chosen[0].family.tensors
    detail = f"{printable(largest.name)}, {chosen[0].count} x {format_bytes(largest.nbytes)}"
    return Cause(Kind.STASH if stashes else Kind.TENSORS, text, detail)


def _names(names: list[str]) -> str:
    return listed([printable(name) for name in names], _MOST_NAMES)
