"""Views, copies, indexing, gathering, scattering and generating operators."""

from __future__ import annotations

import numpy as np
from cases import Catalogue, Const, f32, given, ints, scalar, typed

PERMUTATIONS = (
    (0, 1, 2, 3),
    (0, 1, 3, 2),
    (0, 2, 1, 3),
    (1, 0, 2, 3),
    (3, 0, 1, 2),
    (1, 2, 3, 0),
    (0, 2, 3, 1),
    (0, 3, 1, 2),
    (3, 2, 1, 0),
    (2, 0, 3, 1),
)


def _views(book: Catalogue) -> None:
    for dtype in ("float32", "float16", "int64", "bool"):
        book.add("Reshape", dtype, typed(dtype, 5, 17, 24), ints(17, -1))
        book.add("Unsqueeze", dtype, typed(dtype, 5, 17, 24), ints(0))
        book.add("Squeeze", dtype, typed(dtype, 5, 1, 24), ints(1))
        book.add("Flatten", dtype, typed(dtype, 5, 17, 24), axis=2)
        book.add("Reshape", f"{dtype} same", typed(dtype, 5, 17, 24), ints(5, 17, 24))
    book.add("Unsqueeze", "no axes", f32(5, 17, 24), ints())
    book.add("Unsqueeze", "opset 11", f32(5, 17, 24), opset=11, axes=[0])
    book.add("Squeeze", "opset 11", f32(5, 1, 24), opset=11, axes=[1])
    book.add("Reshape", "dynamic shape", f32(5, 17, 24), given([17, 120]))
    book.add("Shape", "plain", f32(5, 17, 24))
    book.add("Size", "plain", f32(5, 17, 24))


def _copies(book: Catalogue) -> None:
    for dtype in ("float32", "float16", "int64", "bool"):
        book.add("Expand", f"{dtype} same", typed(dtype, 5, 17, 24), ints(1))
        book.add("Expand", f"{dtype} grow", typed(dtype, 5, 1, 24), ints(5, 17, 24))
        book.add("Tile", f"{dtype} once", typed(dtype, 5, 17, 24), ints(1, 1, 1))
        book.add("Tile", f"{dtype} twice", typed(dtype, 5, 17, 24), ints(2, 1, 3))
        book.add(
            "Slice", f"{dtype} part", typed(dtype, 5, 17, 24), ints(1, 2), ints(4, 9), ints(0, 2)
        )
        book.add("Slice", f"{dtype} all", typed(dtype, 5, 17, 24), ints(0), ints(5), ints(0))
        book.add("Concat", f"{dtype} two", typed(dtype, 5, 17, 24), typed(dtype, 5, 3, 24), axis=1)
        book.add("Concat", f"{dtype} one", typed(dtype, 5, 17, 24), axis=1)
        book.add(
            "Split", f"{dtype} equal", typed(dtype, 6, 18, 24), outputs=3, axis=1, num_outputs=3
        )
        book.add("Split", f"{dtype} one", typed(dtype, 6, 18, 24), axis=1, num_outputs=1)
    book.add("Expand", "scalar grow", f32(), ints(5, 17, 24))
    book.add("Expand", "front", f32(24), ints(5, 17, 24))
    book.add("Slice", "steps", f32(5, 17, 24), ints(16, 0), ints(-18, 24), ints(1, 2), ints(-1, 2))
    book.add("Concat", "last axis", f32(5, 17, 24), f32(5, 17, 3), axis=2)
    book.add("Split", "sizes", f32(6, 18, 24), ints(5, 13), outputs=2, axis=1)
    book.add("Split", "last axis", f32(6, 18, 24), outputs=2, axis=-1, num_outputs=2)
    for perm in PERMUTATIONS:
        name = "".join(map(str, perm))
        book.add("Transpose", name, f32(3, 5, 7, 8), perm=list(perm))
    book.add("Transpose", "1023 int64", typed("int64", 3, 5, 7, 8), perm=[1, 0, 2, 3])
    book.add("Transpose", "2D", f32(33, 65), perm=[1, 0])
    book.add("Transpose", "2D float16", typed("float16", 33, 65), perm=[1, 0])
    book.add("Transpose", "unit dims", f32(1, 5, 7, 8), perm=[1, 0, 2, 3])
    book.add("Transpose", "heads large", f32(4, 64, 8, 32), perm=[0, 2, 1, 3])
    for mode in ("constant", "reflect", "edge", "wrap"):
        book.add("Pad", mode, f32(2, 3, 7, 8), ints(0, 0, 1, 2, 0, 0, 2, 1), mode=mode)
    book.add("Pad", "none", f32(2, 3, 7, 8), ints(0, 0, 0, 0, 0, 0, 0, 0))
    book.add("Pad", "negative", f32(2, 3, 7, 8), ints(0, 0, -1, -2, 0, 0, 2, 1))
    book.add("Pad", "int64", typed("int64", 2, 3, 7, 8), ints(0, 0, 1, 2, 0, 0, 2, 1))
    book.add("Pad", "axes", f32(2, 3, 7, 8), ints(1, 2), None, ints(-1))
    book.add("DepthToSpace", "DCR", f32(2, 8, 5, 6), blocksize=2)
    for op in ("DepthToSpace", "SpaceToDepth"):
        book.add(op, "block 1", f32(2, 8, 5, 6), blocksize=1)
    book.add("DepthToSpace", "CRD", f32(2, 8, 5, 6), blocksize=2, mode="CRD")
    book.add("SpaceToDepth", "plain", f32(2, 3, 6, 8), blocksize=2)
    book.add("ReverseSequence", "plain", f32(7, 4, 9), given([3, 7, 1, 5]))
    book.add("CenterCropPad", "plain", f32(5, 17, 24), ints(5, 10, 30))


def _gather(book: Catalogue) -> None:
    index = given(np.arange(12).reshape(3, 4) % 5)
    for dtype in ("float32", "float16", "int64", "bool"):
        book.add("Gather", f"{dtype} axis 0", typed(dtype, 5, 17, 24), index)
    book.add("Gather", "axis 1", f32(5, 17, 24), index, axis=1)
    book.add("Gather", "int32 index", f32(5, 17, 24), given([1, 4], "int32"))
    book.add("Gather", "const index", f32(5, 17, 24), ints(1, 4))
    book.add("Gather", "same shape", f32(5, 17, 24), given([4, 3, 2, 1, 0]))
    book.add("Gather", "embedding", f32(500, 64), given(np.arange(256).reshape(4, 64)))
    book.add("Gather", "index shape", typed("int64", 500), given(np.arange(500)))
    for axis in (0, 1, 2):
        book.add(
            "GatherElements",
            f"axis {axis}",
            f32(5, 6, 7),
            given(np.arange(210).reshape(5, 6, 7) % 5),
            axis=axis,
        )
    book.add(
        "GatherElements",
        "int32",
        typed("int64", 5, 6, 7),
        given(np.arange(210).reshape(5, 6, 7) % 5, "int32"),
        axis=1,
    )
    pairs = np.stack([np.arange(12) % 5, np.arange(12) % 6], -1).reshape(3, 4, 2)
    book.add("GatherND", "slices", f32(5, 6, 7), given(pairs))
    book.add("GatherND", "larger", f32(5, 6, 7), given(np.tile(pairs, (5, 1, 1))))
    book.add("GatherND", "same shape", f32(5, 6, 7), given(np.arange(5).reshape(5, 1)))
    book.add("GatherND", "scalars", f32(5, 6), given(pairs))
    book.add("GatherND", "batch", f32(3, 6, 7), given(np.arange(6).reshape(3, 2, 1)), batch_dims=1)
    book.add("GatherND", "int64 data", typed("int64", 5, 6, 7), given(pairs))
    book.add("Compress", "axis", f32(5, 17, 24), given([1, 0, 1, 1, 0], "bool"), axis=0)
    book.add("NonZero", "float32", f32(5, 17, 24))
    book.add("NonZero", "bool", typed("bool", 5, 17, 24))
    book.add("Unique", "sorted", typed("int64", 200), outputs=4)
    book.add("Unique", "axis", typed("int64", 20, 7), outputs=4, axis=0)


def _scatter(book: Catalogue) -> None:
    grid = given(np.arange(60).reshape(3, 4, 5) % 5)
    for reduction in ("none", "add", "mul", "max"):
        book.add(
            "ScatterElements",
            reduction,
            f32(5, 6, 7),
            grid,
            f32(3, 4, 5),
            axis=0,
            reduction=reduction,
        )
        book.add(
            "ScatterND",
            reduction,
            f32(5, 6, 7),
            given([[0], [3]]),
            f32(2, 6, 7),
            reduction=reduction,
        )
    same = given(np.arange(210).reshape(5, 6, 7) % 5)
    book.add("ScatterElements", "same shape", f32(5, 6, 7), same, f32(5, 6, 7), axis=1)
    book.add(
        "ScatterElements", "int64", typed("int64", 5, 6, 7), same, typed("int64", 5, 6, 7), axis=1
    )
    book.add(
        "ScatterElements",
        "float16",
        typed("float16", 5, 6, 7),
        same,
        typed("float16", 5, 6, 7),
        axis=1,
    )
    book.add(
        "ScatterElements",
        "int32 index",
        f32(5, 6, 7),
        given(np.arange(210).reshape(5, 6, 7) % 5, "int32"),
        f32(5, 6, 7),
        axis=1,
    )
    book.add("Scatter", "opset 9", f32(5, 6, 7), same, f32(5, 6, 7), axis=1, opset=9)
    book.add(
        "ScatterND", "same shape", f32(5, 6, 7), given(np.arange(5).reshape(5, 1)), f32(5, 6, 7)
    )
    book.add(
        "ScatterND", "int64", typed("int64", 5, 6, 7), given([[0], [3]]), typed("int64", 2, 6, 7)
    )
    book.add(
        "ScatterND",
        "large",
        f32(500, 64),
        given(np.arange(256).reshape(4, 64, 1)),
        f32(4, 64, 64),
        reduction="add",
    )
    book.add("TensorScatter", "plain", f32(2, 8, 4), f32(2, 3, 4), given([0, 1]), axis=1, opset=24)


def _generate(book: Catalogue) -> None:
    book.add("ConstantOfShape", "float32", given([5, 17, 24]))
    book.add("ConstantOfShape", "const shape", ints(5, 17, 24))
    book.add("Range", "int64", given(0), given(300), given(2))
    book.add("Range", "float32", scalar(0.0), scalar(30.0), scalar(0.5))
    book.add("Trilu", "upper", f32(5, 17, 24))
    book.add("Trilu", "lower k", f32(5, 17, 24), scalar(1, "int64"), upper=0)
    book.add("Trilu", "bool", typed("bool", 5, 17, 24))
    book.add("Trilu", "int64", typed("int64", 5, 17, 24))
    book.add("EyeLike", "plain", f32(17, 24))
    hot = Const(np.array([0.0, 1.0], np.float32))
    book.add("OneHot", "int64", given(np.arange(12).reshape(3, 4)), scalar(24, "int64"), hot)
    book.add(
        "OneHot", "axis 0", given(np.arange(12).reshape(3, 4)), scalar(24, "int64"), hot, axis=0
    )
    book.add("OneHot", "int32", given(np.arange(12), "int32"), scalar(24, "int32"), hot)
    for dtype in ("float32", "float64", "int64"):
        book.add("CumSum", dtype, typed(dtype, 5, 17, 24), scalar(1, "int64"))
    book.add(
        "CumSum", "exclusive reverse", f32(5, 17, 24), scalar(2, "int64"), exclusive=1, reverse=1
    )
    book.add("CumSum", "dynamic axis", f32(5, 17, 24), given(0))


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    for part in (_views, _copies, _gather, _scatter, _generate):
        part(book)
