"""Reductions, normalizations along axes, selections."""

from __future__ import annotations

from cases import Catalogue, f32, given, ints, typed

REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]
SHAPE = (4, 6, 10, 12)
AXES = (
    (0,),
    (1,),
    (2,),
    (3,),
    (0, 1),
    (2, 3),
    (0, 2),
    (1, 3),
    (0, 3),
    (1, 2),
    (0, 1, 2),
    (1, 2, 3),
    (0, 2, 3),
    (0, 1, 3),
    (0, 1, 2, 3),
)


def _reductions(book: Catalogue) -> None:
    for op in REDUCTIONS:
        for axes in AXES:
            name = "".join(map(str, axes))
            for keep in (0, 1):
                book.add(op, f"axes {name} keep {keep}", f32(*SHAPE), ints(*axes), keepdims=keep)
        book.add(op, "all", f32(*SHAPE))
        book.add(op, "noop", f32(*SHAPE), ints(), noop_with_empty_axes=1)
        book.add(op, "unit axis", f32(4, 1, 10, 12), ints(1), keepdims=1)
        book.add(op, "unit axes mixed", f32(4, 1, 10, 1, 12), ints(0, 1, 4), keepdims=1)
        book.add(op, "opset 11", f32(*SHAPE), opset=11, axes=[1, 3])
        book.add(op, "3D middle", f32(6, 40, 8), ints(1), keepdims=1)
        book.add(op, "5D alternating", f32(3, 4, 5, 6, 7), ints(0, 2, 4), keepdims=1)
        book.add(op, "5D alternating inner", f32(3, 4, 5, 6, 7), ints(1, 3), keepdims=0)
        for dtype in ("float64", "int32", "int64", "float16"):
            book.add(op, f"{dtype} outer", typed(dtype, *SHAPE), ints(0, 2), keepdims=1)
            book.add(op, f"{dtype} inner", typed(dtype, *SHAPE), ints(1, 3), keepdims=1)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp"):
        book.add(op, "dynamic axes", f32(*SHAPE), given([1, 3]), keepdims=1)
        book.add(op, "large outer", f32(64, 32, 96), ints(0, 1), keepdims=0)
        book.add(op, "large mixed", f32(16, 24, 32, 24), ints(0, 2), keepdims=1)
        book.add(op, "large inner outer", f32(16, 24, 32, 24), ints(1, 3), keepdims=1)
    for op in ("ArgMax", "ArgMin"):
        for axis in (0, 1, 3):
            book.add(op, f"axis {axis}", f32(*SHAPE), axis=axis, keepdims=1)
        book.add(op, "unit axis", typed("float64", 4, 1, 10), axis=1, keepdims=1)


def _softmax(book: Catalogue) -> None:
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in (0, 1, 2, -1):
            book.add(op, f"axis {axis}", f32(5, 17, 24), axis=axis)
            book.add(op, f"axis {axis} float64", typed("float64", 5, 17, 24), axis=axis)
        book.add(op, "image channel", f32(2, 8, 6, 10), axis=1)
        book.add(op, "1D", f32(24), axis=0)
        book.add(op, "4D axis 2", f32(3, 4, 5, 6), axis=2)
        book.add(op, "opset 11 default", f32(5, 17, 24), opset=11)
        book.add(op, "default", f32(5, 17, 24))
        book.add(op, "unit trailing", f32(5, 17, 1), axis=1)
        book.add(op, "unit leading", f32(1, 17, 24), axis=0)
        book.add(op, "2D axis 0", f32(17, 24), axis=0)
        book.add(op, "opset 11 axis 1", f32(5, 17, 24), axis=1, opset=11)
        book.add(op, "large last", f32(64, 16, 96), axis=-1)
        book.add(op, "large axis 1", f32(64, 16, 96), axis=1)
        book.add(op, "float16", typed("float16", 5, 17, 24), axis=-1)


def _select(book: Catalogue) -> None:
    for axis in (0, 1, 2):
        book.add("TopK", f"axis {axis}", f32(5, 17, 24), ints(3), outputs=2, axis=axis)
    book.add("TopK", "k 1", f32(5, 17, 24), ints(1), outputs=2)
    book.add("TopK", "unsorted", f32(5, 17, 24), ints(4), outputs=2, sorted=0)
    book.add("TopK", "smallest", f32(5, 17, 24), ints(4), outputs=2, largest=0)
    book.add("TopK", "whole", f32(5, 17, 24), ints(24), outputs=2)
    book.add("TopK", "int64", typed("int64", 5, 17, 24), ints(24), outputs=2)
    book.add("TopK", "float64", typed("float64", 5, 17, 24), ints(3), outputs=2)
    book.add("TopK", "large", f32(64, 1000), ints(40), outputs=2)
    for p in (1, 2):
        book.add("LpNormalization", f"p {p}", f32(5, 17, 24), axis=1, p=p)
    book.add("MeanVarianceNormalization", "plain", f32(2, 3, 7, 8))
    book.add("NegativeLogLikelihoodLoss", "mean", f32(6, 10), given([0, 1, 2, 3, 4, 5]))
    book.add("SoftmaxCrossEntropyLoss", "mean", f32(6, 10), given([0, 1, 2, 3, 4, 5]))


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    for part in (_reductions, _softmax, _select):
        part(book)
