"""Layers of :mod:`drafts`: arithmetic, functions, products and reductions.

Each draws one operator, by preference in a form that few models have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from drafts import DOUBLE, Draft, Rejected
from onnx import TensorProto

Layer = Callable[[Draft, str], object]
LAYERS: dict[str, Layer] = {}


def layer(*ops: str) -> Callable[[Layer], Layer]:
    """Register a layer for operators."""

    def register(function: Layer) -> Layer:
        LAYERS.update(dict.fromkeys(ops, function))
        return function

    return register


def some(d: Draft, **choices: tuple[Any, ...]) -> dict[str, Any]:
    """Values for some of the attributes; the others are left out."""
    return {name: d.r.choice(values) for name, values in choices.items() if d.maybe(0.6)}


@layer("Sigmoid", "Tanh", "Sin", "Cos", "Erf", "Softplus", "Softsign", "Mish", "Neg", "Identity")
@layer("Atan", "Asinh", "Relu", "Abs", "HardSwish", "Exp", "Sinh", "Cosh")
def unary(d: Draft, op: str) -> None:
    d.add(op, [d.pick()])


_DOMAINS = {
    "Log": (0.1, 50.0),
    "Sqrt": (0.1, 50.0),
    "Reciprocal": (0.2, 50.0),
    "Acos": (-0.9, 0.9),
    "Asin": (-0.9, 0.9),
    "Acosh": (1.2, 50.0),
    "Atanh": (-0.9, 0.9),
    "Tan": (-1.2, 1.2),
}


@layer(*_DOMAINS)
def on_domain(d: Draft, op: str) -> None:
    low, high = _DOMAINS[op]
    d.add(op, [d.within(d.pick(), low, min(high, 4.0) if op != "Sqrt" else high)])


@layer("Elu", "Selu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Gelu", "Swish")
def shaped(d: Draft, op: str) -> None:
    slopes = (0.3, 1.0, 1.7, -0.6)
    given = {
        "Selu": some(d, alpha=slopes, gamma=slopes),
        "HardSigmoid": some(d, alpha=(0.3, 0.2, 1.0, -0.4), beta=(0.5, 0.1, 0.0)),
        "Gelu": some(d, approximate=("none", "tanh")),
        "ThresholdedRelu": some(d, alpha=(0.3, 0.0, -0.5)),
        "Celu": some(d, alpha=(0.3, 1.0, 1.7)),
    }
    d.add(op, [d.pick()], **given.get(op, some(d, alpha=slopes)))


@layer("Floor", "Ceil", "Round", "Sign", "Hardmax", "EyeLike", "RandomUniformLike")
@layer("RandomNormalLike")
def without_slope(d: Draft, op: str) -> None:
    if op.startswith("Random") and d.opset >= 22:
        raise Rejected  # ONNX Runtime has no kernel
    x = d.ranked(2, 2) if op == "EyeLike" else d.full(1)
    given = {
        "RandomUniformLike": {"low": 0.5, "high": 0.5},
        "RandomNormalLike": {"scale": 1e-30, "mean": 0.25},
        "EyeLike": some(d, k=(0, 1, -1)),
    }
    (flat,) = d.add(op, [x], **given.get(op, {}))
    d.add(d.r.choice(("Add", "Mul")), [flat, x])


@layer("Add", "Sub", "Mul", "Mul again", "Div", "PRelu")
def binary(d: Draft, op: str) -> None:
    a = d.pick()
    b = d.beside(a)
    if op == "PRelu":  # its slope broadcasts one way only
        b = d.of([n if d.maybe(0.6) else 1 for n in d.arrays[a].shape][d.r.choice((0, 0, 1)) :])
    if op == "Div":
        b = d.within(b, 0.3, 4.0) if d.maybe(0.5) else d.within(b, -4.0, -0.3)
    pair = [a, b] if op in ("Div", "PRelu") or d.maybe(0.5) else [b, a]
    d.add(op, pair)


@layer("Pow")
def power(d: Draft, op: str) -> None:
    x = d.pick()
    exponent = d.r.choice((-1, 0, 1, 2, 3, 0.5, -2, 1.5, "tensor", "ints"))
    if exponent == "tensor":
        d.add(op, [d.within(x, 0.2, 3.0), d.beside(x)])
        return
    if exponent == "ints":
        if d.opset < 12:
            raise Rejected
        whole = d.ints([d.r.choice((0, 1, 2, 3)) for _ in range((d.arrays[x].shape or (1,))[-1])])
        d.add(op, [x, whole])
        return
    kind = np.int64 if isinstance(exponent, int) and d.opset >= 12 and d.maybe(0.3) else np.float64
    base = x if exponent in (0, 1, 2, 3) else d.within(x, 0.3, 4.0)
    d.add(op, [base, d.constant(exponent if d.maybe(0.5) else [exponent], kind)])


@layer("Max", "Min", "Sum", "Mean")
def many(d: Draft, op: str) -> None:
    a = d.pick()
    d.add(op, [a, *(d.beside(a) for _ in range(d.r.choice((0, 1, 1, 2))))])


@layer("Where")
def chosen(d: Draft, op: str) -> None:
    a = d.pick()
    b = d.beside(a)
    if d.maybe(0.5):
        (test,) = d.add(d.r.choice(("Greater", "Less")), [d.beside(a), d.constant(0.05)])
    else:
        shape = d.arrays[d.beside(a)].shape
        test = d.constant([d.maybe(0.5) for _ in range(math.prod(shape))], bool)
        d.arrays[test] = d.arrays[test].reshape(shape)
        if test not in d.constants:
            raise Rejected
    d.add(op, [test, a, b])


@layer("Clip")
def clip(d: Draft, op: str) -> None:
    x = d.pick()
    low, high = d.r.choice(((-0.7, 0.8), (-0.5, None), (None, 0.4), (None, None), (0.3, -0.2)))
    if d.opset < 11:
        d.add(op, [x], min=low, max=high)
        return
    bounds = []
    for bound in (low, high):
        if bound is None:
            bounds.append("")
        else:
            bounds.append(d.leaf((), bound, bound) if d.maybe(0.3) else d.constant(bound))
    d.add(op, [x, *bounds])


@layer("Dropout")
def dropout(d: Draft, op: str) -> None:
    x, count = d.pick(), d.r.choice((1, 2))
    if d.opset < 12:
        d.add(op, [x], count, **some(d, ratio=(0.0, 0.3)))
        return
    training = d.maybe(0.4)
    ratio = d.constant(0.0 if training else d.r.choice((0.0, 0.4)))
    d.add(op, [x, ratio, d.constant(training, bool)] if training or d.maybe(0.4) else [x], count)


@layer("Cast")
def cast(d: Draft, op: str) -> None:
    """To float32 and back around a function; or of a test, or to the same type."""
    x = d.pick()
    kind = d.r.randrange(3)
    if kind == 0:
        d.add(op, [x], to=DOUBLE)
    elif kind == 1:
        (test,) = d.add("Less", [x, d.constant(0.1)])
        d.add("Mul", [*d.add(op, [test], to=DOUBLE), x])
    else:
        narrow = d.add("Tanh", d.add(op, [x], to=TensorProto.FLOAT))
        d.add(op, narrow, to=DOUBLE)
        d.made = [name for name in d.made if d.arrays[name].dtype == np.float64]


def turned(d: Draft, x: str) -> str:
    """The tensor, or a transposition of it, the identity among them."""
    rank = d.arrays[x].ndim
    if not d.maybe(0.5):
        return x
    order = None if d.maybe(0.2) else d.r.choice(([*range(rank)], d.r.sample(range(rank), rank)))
    return d.add("Transpose", [x], perm=order)[0]


@layer("Transpose")
def transpose(d: Draft, op: str) -> None:
    turned(d, turned(d, d.pick()))


@layer("MatMul", "MatMul again")
def product(d: Draft, op: str) -> None:
    a = turned(d, d.ranked(1, 4))
    shape = d.arrays[a].shape
    kind = d.r.random()
    if kind < 0.15 and len(shape) > 1 and shape[-1] == shape[-2]:
        d.add("MatMul", [a, a])
        return
    if kind < 0.35 and len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        other = d.add("Transpose", [a], perm=order)[0]
    else:
        n, lead = d.r.choice((1, 2, 3)), list(shape[:-2])
        lead = d.r.choice(([], lead, [1 if d.maybe(0.5) else k for k in lead], [2, *lead][:3]))
        wanted = d.r.choice(([shape[-1]], [*lead, shape[-1], n]))
        other = turned_to(d, wanted)
    d.add("MatMul", [a, other])
    if d.maybe(0.3):
        turned(d, d.made[-1])


def turned_to(d: Draft, shape: list[int]) -> str:
    """A tensor of a shape, perhaps by a transposition."""
    if d.maybe(0.5) or len(shape) < 2:
        return d.of(shape)
    order = d.r.choice((d.r.sample(range(len(shape)), len(shape)), [*range(len(shape))]))
    before = [shape[order.index(k)] for k in range(len(shape))]
    return d.add("Transpose", [d.of(before)], perm=order)[0]


@layer("Gemm", "Gemm again")
def gemm(d: Draft, op: str) -> None:
    left = d.ranked(2, 2)
    given = some(d, transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5, -2.0), beta=(1.0, 0.3, 0.0))
    a = left if d.maybe(0.4) else turned(d, left)
    m, k = d.arrays[a].shape[:: -1 if given.get("transA") else 1]
    n = d.r.choice((1, 2, 3))
    wanted = [n, k] if given.get("transB") else [k, n]
    b = a if list(d.arrays[a].shape) == wanted and d.maybe(0.4) else turned_to(d, wanted)
    n = d.arrays[b].shape[0 if given.get("transB") else 1]
    term = d.r.choice((None, [], [1], [n], [1, n], [m, 1], [m, n], [1, 1]))
    if term is None and d.opset < 11:
        term = [n]
    inputs = [a, b] if term is None else [a, b, d.of(term)]
    (y,) = d.add("Gemm", inputs, **given)
    turned(d, y)


_EQUATIONS = (
    *("ij,jk->ik", "ij,kj", "bij,bjk->bik", "ij->ji", "ij->i", "ij->", "i,j->ij", "ij,ij->"),
    *("ij,ij->ij", "...ij,...jk->...ik", "...i->...", "ijk,jk->ik", "i,i->i", "ij,j,k->ik"),
    *("ii->i", "ii", "iij->j", "bhqd,bhkd->bhqk", "ij , jk -> ki", "ij", "...j,j", "ij,jk,kl->il"),
    *("a,a,a->a", "ba,b->", "i...->...i", "i,->i", "ijk->kj"),
)


@layer("Einsum")
def einsum(d: Draft, op: str) -> None:
    equation = d.r.choice(_EQUATIONS)
    sizes = {letter: d.r.choice((1, 2, 3)) for letter in "abcdefghijklmnopq"}
    dots = d.shape(d.r.choice((0, 1, 2)))
    inputs = []
    for term in equation.replace(" ", "").partition("->")[0].split(","):
        head, middle, tail = term.partition("...")
        lead = list(dots) if middle else []
        shape = [*(sizes[k] for k in head), *lead, *(sizes[k] for k in tail)]
        shape = [1 if d.maybe(0.05) and k in range(len(lead)) else n for k, n in enumerate(shape)]
        same = inputs and list(d.arrays[inputs[0]].shape) == shape and d.maybe(0.4)
        inputs.append(inputs[0] if same else d.of(shape))
    d.add(op, inputs, equation=equation)


_SINCE = {"ReduceSum": 13}


@layer("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
@layer("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduction(d: Draft, op: str) -> None:
    x = d.full(0)
    if op == "ReduceLogSum":
        x = d.within(x, 0.2, 4.0)
    rank, since = d.arrays[x].ndim, _SINCE.get(op, 18)
    axes = d.r.choice((None, d.axes(rank), d.axes(rank, 1), d.axes(rank, 1)))
    given = some(d, keepdims=(0, 1))
    if d.opset >= since:
        given |= some(d, noop_with_empty_axes=(0, 1))
    elif not axes:
        axes = None
    d.with_axes(op, x, axes, since, **given)


@layer("CumSum")
def cumulative(d: Draft, op: str) -> None:
    x = d.full(1)
    kind = d.r.choice((np.int64, np.int32))
    axis = d.constant(d.axis(d.arrays[x].ndim), kind)
    d.add(op, [x, axis], **some(d, reverse=(0, 1), exclusive=(0, 1)))


@layer("Softmax", "LogSoftmax")
def softmax(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    rank = d.arrays[x].ndim
    given = {} if d.maybe(0.3) else {"axis": d.axis(rank) if d.opset >= 11 else d.r.randrange(rank)}
    d.add(op, [x], **given)
