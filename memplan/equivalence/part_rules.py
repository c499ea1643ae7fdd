"""Operators that compute a range of their result from the same range of what they read.

A rule gets an operand that is a part along an axis, and says along which axes the others must be
parts (None: they are read whole), and along which the results are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memplan.equivalence.loop_call import Call
from memplan.equivalence.normal_forms import Part
from memplan.equivalence.terms import ABSENT


@dataclass(frozen=True, slots=True)
class Operand:
    """A term that is read, its shape where it is known, and what it is a part of, if anything."""

    term: int
    shape: tuple[int, ...] | None
    part: Part | None


@dataclass(frozen=True, slots=True)
class Found:
    """Axes by input and by output slot, None: not a part. ``sums``: the output is a summand, along
    ``axis`` of the first operand."""

    reads: tuple[int | None, ...]
    makes: tuple[int | None, ...] = ()
    sums: bool = False
    axis: int = 0


Rule = Callable[[Call, Sequence[Operand], int, int], Found | None]


def _by_element(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Every element comes from those that broadcasting lays on it. An operand with one element
    along the axis is repeated, unless it is itself that part."""
    shapes = [operand.shape for operand in operands if operand.term != ABSENT]
    if any(shape is None for shape in shapes):
        return None
    rank = max(len(shape) for shape in shapes if shape is not None)
    target = axis + rank - len(operands[slot].shape or ())
    reads: list[int | None] = []
    for operand in operands:
        own = target - rank + len(operand.shape or ())
        shape = operand.shape or ()
        single = own >= 0 and operand.term != ABSENT and shape[own] == 1 and operand.part is None
        reads.append(None if operand.term == ABSENT or own < 0 or single else own)
    return Found(tuple(reads), (target,))


def _rank(operand: Operand) -> int:
    return len(operand.shape or ())


def _softmax(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Rows are normalized one by one."""
    rank = _rank(operands[0])
    if call.opset < 13 or not rank or axis == int(call.attributes.get("axis", -1)) % rank:
        return None
    return Found((axis,), (axis,))


def _layer_norm(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """So are they here; scale and bias belong to the last axes."""
    rank = _rank(operands[0])
    first = int(call.attributes.get("axis", -1)) % max(rank, 1)
    flat = all(o.shape is not None and len(o.shape) <= rank - first for o in operands[1:])
    if slot != 0 or axis >= first or not flat:
        return None
    return Found((axis, *(None for _ in operands[1:])), (axis, axis, axis))


def _skip_norm(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """The same for a sum of two tensors of one shape."""
    if operands[0].shape != operands[1].shape or axis >= _rank(operands[0]) - 1 or slot > 1:
        return None
    reads = (axis, axis, *(None for _ in operands[2:]))
    return Found(reads, (axis, axis, axis, axis))


def _reduction(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Axes that stay are ranges; over others, the sum alone is one of summands."""
    rank, axes = _rank(operands[0]), call.ints(1, "axes")
    if slot != 0 or not rank or (axes is None and call.read(1) != ABSENT):
        return None
    if not axes and int(call.attributes.get("noop_with_empty_axes", 0)):
        return None
    reduced = {a % rank for a in axes} if axes else set(range(rank))
    reads = (axis, *(None for _ in operands[1:]))
    if axis in reduced:
        return Found(reads, sums=True, axis=axis) if call.op == "ReduceSum" else None
    keeps = int(call.attributes.get("keepdims", 1))
    return Found(reads, (axis - (0 if keeps else sum(a < axis for a in reduced)),))


def _arg_reduction(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Places along another axis stay what they are."""
    rank = _rank(operands[0])
    reduced = int(call.attributes.get("axis", 0)) % max(rank, 1)
    if axis == reduced:
        return None
    keeps = int(call.attributes.get("keepdims", 1))
    return Found((axis,), (axis - (not keeps and reduced < axis),))


def _product(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Rows of the first factor, columns of the second, and batches of either; inner axes of both
    give summands."""
    if any(operand.shape is None for operand in operands) or slot > 1:
        return None
    if any(call.attributes.get(name, 0) for name in ("transBatchA", "transBatchB")):
        return None
    ranks = _rank(operands[0]), _rank(operands[1])
    if min(ranks) < 2:
        return None
    rank, own = max(ranks), ranks[slot]
    flipped = bool(call.attributes.get(("transA", "transB")[slot], 0))
    outer = own - 2 if (slot == 0) != flipped else own - 1
    other = (0, 1)[1 - slot]
    if axis < own - 2:
        return _batches(operands, slot, axis, rank)
    if axis != outer:
        inner = _inner_axis(call, operands[other], other)
        reads = (axis, inner) if slot == 0 else (inner, axis)
        return Found(reads, sums=True) if len(operands) == 2 else None
    target = rank - 2 if slot == 0 else rank - 1
    factors = (axis, None) if slot == 0 else (None, axis)
    added = (_added_axis(operand, target) for operand in operands[2:])
    return Found((*factors, *added), (target,))


def _inner_axis(call: Call, operand: Operand, slot: int) -> int:
    flipped = bool(call.attributes.get(("transA", "transB")[slot], 0))
    return _rank(operand) - (1 if (slot == 0) != flipped else 2)


def _batches(operands: Sequence[Operand], slot: int, axis: int, rank: int) -> Found | None:
    target = axis + rank - _rank(operands[slot])
    reads: list[int | None] = []
    for operand in operands[:2]:
        own, shape = target - rank + _rank(operand), operand.shape or ()
        single = own < 0 or (shape[own] == 1 and operand.part is None)
        reads.append(None if single else own)
    return Found(tuple(reads), (target,)) if len(operands) == 2 else None


def _added_axis(operand: Operand, target: int) -> int | None:
    """The axis of what a Gemm adds, if it does not repeat along ``target``."""
    own, shape = target - 2 + _rank(operand), operand.shape or ()
    return None if own < 0 or (shape[own] == 1 and operand.part is None) else own


def _gather(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Ranges of the indices, or of what is not indexed."""
    data, indices = _rank(operands[0]), _rank(operands[1])
    if operands[0].shape is None or operands[1].shape is None:
        return None
    indexed = int(call.attributes.get("axis", 0)) % max(data, 1)
    if slot == 1:
        return Found((None, axis), (indexed + axis,))
    if axis == indexed:
        return None
    return Found((axis, None), (axis if axis < indexed else axis - 1 + indices,))


def _elements(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Ranges of an axis that is not indexed; that all are as long there, who reads them asks."""
    rank = _rank(operands[0])
    if any(o.shape is None or len(o.shape) != rank for o in operands) or not rank:
        return None
    if axis == int(call.attributes.get("axis", 0)) % rank:
        return None
    return Found(tuple(axis for _ in operands), (axis,))


def _one_hot(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Ranges of the indices."""
    rank = _rank(operands[0]) + 1
    new = int(call.attributes.get("axis", -1)) % rank
    return Found((axis, None, None), (axis + (new <= axis),)) if slot == 0 else None


def _transpose(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """An axis goes where it goes."""
    perm = call.attributes.get("perm") or list(reversed(range(_rank(operands[0]))))
    return Found((axis,), ([int(p) for p in perm].index(axis),))


def _split(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Along another axis."""
    rank = _rank(operands[0])
    if slot != 0 or not rank or axis == int(call.attributes.get("axis", 0)) % rank:
        return None
    reads = (axis, *(None for _ in operands[1:]))
    return Found(reads, tuple(axis for _ in range(_MOST_OUTPUTS)))


def _concat(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Along another axis."""
    rank = _rank(operands[0])
    if not rank or axis == int(call.attributes.get("axis", 0)) % rank:
        return None
    return Found(tuple(axis for _ in operands), (axis,))


def _slice(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Along other axes."""
    axes = call.ints(3)
    rank = _rank(operands[0])
    if slot != 0 or not rank or axes is None or axis in {a % rank for a in axes}:
        return None
    return Found((axis, *(None for _ in operands[1:])), (axis,))


def _pad(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Along other axes."""
    pads, rank = call.ints(1), _rank(operands[0])
    if slot != 0 or pads is None or len(pads) != 2 * rank or call.read(3) != ABSENT:
        return None
    if pads[axis] or pads[axis + rank]:
        return None
    return Found((axis, *(None for _ in operands[1:])), (axis,))


def _trilu(call: Call, operands: Sequence[Operand], slot: int, axis: int) -> Found | None:
    """Matrix by matrix."""
    whole = slot == 0 and axis < _rank(operands[0]) - 2
    return Found((axis, *(None for _ in operands[1:])), (axis,)) if whole else None


_MOST_OUTPUTS = 64
_ELEMENTWISE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Sign", "Exp", "Log", "Sqrt", "Reciprocal"),
    *("Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "Softplus"),
    *("Softsign", "Erf", "Gelu", "Sin", "Cos", "Floor", "Ceil", "Round", "Min", "Max", "Sum"),
    *("Mean", "Where", "Cast", "Identity", "Equal", "Less", "LessOrEqual", "Greater", "And"),
    *("GreaterOrEqual", "Not", "Or", "Xor", "IsNaN", "IsInf", "Clip", "PRelu", "Mod"),
    *("FastGelu", "BiasGelu", "QuickGelu"),
)
_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _by_element),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(
        ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"), _layer_norm
    ),
    "SkipLayerNormalization": _skip_norm,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduction),
    **dict.fromkeys(("MatMul", "FusedMatMul", "Gemm"), _product),
    "Gather": _gather,
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    "OneHot": _one_hot,
    "Transpose": _transpose,
    "Split": _split,
    "Concat": _concat,
    "Slice": _slice,
    "Pad": _pad,
    "Trilu": _trilu,
}
"""By operator; names of ONNX and of ONNX Runtime do not clash."""
