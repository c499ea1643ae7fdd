"""Comparisons of what an activation gives: where they tell the same as those of what it reads.

``Relu``, ``LeakyRelu``, ``ThresholdedRelu``, ``Clip`` and ``Max`` or ``Min`` with constants never
fall, and hand on what lies between two bounds: no lower result for what is below the first, no
higher one for what is above the second. So ``y > c`` where ``x > c`` for every c from the first
bound on, below the second; the others follow. -0 and 0 compare alike.

A slope of 0 does fall: 0 times minus infinity is NaN.

NaN compares as false. ``Clip`` and ``LeakyRelu`` hand it on (on the CPU measured:
tests/ort/test_free_bytes.py; on CUDA ``clip_impl.cu``, ``activations_impl.cu``); ``Relu`` and
``Max`` may make it their lower bound, ``Min`` its upper one, so there only comparisons count that
are false at that bound, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import Applied
from memplan.equivalence.terms import ABSENT, Array, Terms

# What every floating-point type holds: a Clip without a bound may stop at the largest finite one.
_ANY_FLOAT = 65504.0
_MIRRORED = {
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
    "Equal": "Equal",
}
COMPARISONS = tuple(_MIRRORED)


@dataclass(frozen=True, slots=True)
class _Between:
    """Handed on unchanged from ``low`` to ``high``; ``nan``: comparisons that are true of none of
    the values that NaN may become (None: it stays)."""

    source: int
    low: float
    high: float
    nan: tuple[str, ...] | None = None


def compared(call: Call) -> int | None:
    """The term of the same comparison with what the activations read, as far down as it holds."""
    if call.applied is None or len(call.reads) != 2 or ABSENT in call.reads:
        return None
    terms, reads = call.terms, list(call.reads)
    slot = next((s for s in (0, 1) if terms.value(reads[1 - s]) is not None), None)
    if slot is None:
        return None
    constant = terms.value(reads[1 - slot])
    assert constant is not None
    op = call.op if slot == 0 else _MIRRORED[call.op]
    while (below := _below(terms, reads[slot], op, constant)) is not None:
        reads[slot] = below
    if tuple(reads) == call.reads:
        return None
    return terms.output(replace(call.applied, reads=tuple(reads)), 0)


def _below(terms: Terms, term: int, op: str, constant: Array) -> int | None:
    """What an activation reads, if comparing that tells the same."""
    made = terms.made_by(term, 0)
    if made is None or made.domain or not made.reads or not constant.size:
        return None
    if made.op == "Abs":
        alike = op == "Equal" and not np.any(constant)
        return made.reads[0] if alike else None
    found = _between(terms, made)
    if found is None or not _same_shape(terms, found.source, term):
        return None
    least, most = constant.min().item(), constant.max().item()
    if not (least <= most):  # NaN
        return None
    return found.source if _tells(op, found, least, most) else None


def _tells(op: str, found: _Between, least: float, most: float) -> bool:
    if found.nan is not None and op not in found.nan:
        return False
    if op in ("Greater", "LessOrEqual"):
        return found.low <= least and most < found.high
    if op in ("Less", "GreaterOrEqual"):
        return found.low < least and most <= found.high
    return found.low < least and most < found.high


_FALSE_BELOW = ("Greater", "GreaterOrEqual", "Equal")
_FALSE_ABOVE = ("Less", "LessOrEqual", "Equal")


def _between(terms: Terms, made: Applied) -> _Between | None:
    """Between which bounds an operator hands on what it reads."""
    given, infinite = attributes_of(made), float("inf")
    if made.op == "Relu":
        return _Between(made.reads[0], 0.0, infinite, _FALSE_BELOW)
    if made.op == "LeakyRelu" and 0 < given.get("alpha", 0.01) < infinite:
        return _Between(made.reads[0], 0.0, infinite)
    if made.op == "ThresholdedRelu" and given.get("alpha", 1.0) >= 0:
        return _Between(made.reads[0], given.get("alpha", 1.0), infinite, _FALSE_BELOW)
    if made.op == "Clip":
        low = _bound(terms, made, 1, given.get("min", -_ANY_FLOAT))
        high = _bound(terms, made, 2, given.get("max", _ANY_FLOAT))
        return None if low is None or high is None else _Between(made.reads[0], low, high)
    if made.op in ("Max", "Min"):
        return _limited(terms, made)
    return None


def _bound(terms: Terms, made: Applied, slot: int, default: float) -> float | None:
    """A bound of Clip: a constant, or what stands for one that is left out. Whole numbers stay
    such: as floats, those above 2^53 would be their neighbours."""
    if slot >= len(made.reads) or made.reads[slot] == ABSENT:
        return default
    value = terms.value(made.reads[slot])
    return None if value is None or value.size != 1 else value.item()


def _limited(terms: Terms, made: Applied) -> _Between | None:
    """``Max`` or ``Min`` of one tensor and constants."""
    values = [terms.value(read) for read in made.reads]
    free = [read for read, value in zip(made.reads, values, strict=True) if value is None]
    limits = [value for value in values if value is not None and value.size]
    if len(free) != 1 or len(limits) != len(values) - 1 or not limits:
        return None
    if made.op == "Max":
        low = max(value.max().item() for value in limits)
        nan = any(np.isnan(value).any() for value in limits)
        return None if nan else _Between(free[0], low, float("inf"), _FALSE_BELOW)
    high = min(value.min().item() for value in limits)
    nan = any(np.isnan(value).any() for value in limits)
    return None if nan else _Between(free[0], float("-inf"), high, _FALSE_ABOVE)


def _same_shape(terms: Terms, source: int, result: int) -> bool:
    """Whether the activation broadcasts nothing: by what is known, or as it has one input."""
    made = terms.made_by(result, 0)
    if made is not None and made.op not in ("Max", "Min"):
        return True
    first, second = terms.fact(source).shape, terms.fact(result).shape
    if first is not None and first == second:
        return True
    others: Sequence[Array | None] = (
        [terms.value(read) for read in made.reads if read != source] if made is not None else []
    )
    return all(value is not None and value.shape == () for value in others)
