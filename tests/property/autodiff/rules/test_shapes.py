"""Rules of operators that move, cut, join, gather and scatter, against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from helpers.drawing import ints, quiet, shapes
from helpers.effort import tries
from helpers.gradients import Array, check, draw, reference, runtime, single, with_symbols
from helpers.graphs import parse

QUIET = quiet(25)
NEWEST = onnx.defs.onnx_opset_version()
OPSETS = st.sampled_from([13, 15, 16, 18, 20, NEWEST])


@QUIET
@given(st.data())
def test_reshape_and_transpose(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    x = draw(shape)
    check(single("Reshape", x, ints(-1)))
    check(single("Flatten", x, axis=data.draw(st.integers(-len(shape), len(shape)))))
    perm = data.draw(st.permutations(range(len(shape))))
    check(single("Transpose", x, perm=perm))
    check(single("Transpose", x))


@QUIET
@given(st.data())
def test_squeeze_and_unsqueeze(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3))
    rank = len(shape)
    count = data.draw(st.integers(1, 2))
    axes = data.draw(
        st.lists(st.integers(0, rank + count - 1), unique=True, min_size=count, max_size=count)
    )
    axes = [axis - (rank + count) * data.draw(st.integers(0, 1)) for axis in axes]
    made = single("Unsqueeze", draw(shape), ints(*axes))
    check(made)
    wide = np.expand_dims(draw(shape), tuple(axes))
    check(single("Squeeze", wide, ints(*axes)))
    check(single("Squeeze", wide))


@QUIET
@given(st.data())
def test_expand_and_tile(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3))
    to = [n if n > 1 else data.draw(st.integers(1, 3)) for n in shape]
    lead = data.draw(st.lists(st.integers(1, 2), max_size=2))
    check(single("Expand", draw(shape), ints(*lead, *to)))
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    check(single("Tile", draw(shape), ints(*repeats)))


@QUIET
@given(st.data())
def test_concat(data: st.DataObject) -> None:
    shape = list(data.draw(shapes(1, 3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for seed in range(data.draw(st.integers(1, 4))):
        shape[axis] = data.draw(st.integers(1, 3))
        parts.append(draw(shape, seed))
    made = single("Concat", *parts, axis=axis)
    check(made)
    names = list(made[1])
    check(made, xs=[data.draw(st.sampled_from(names))])


@QUIET
@given(st.data())
def test_split(data: st.DataObject) -> None:
    shape = list(data.draw(shapes(1, 3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    shape[axis] = sum(parts)
    made = single("Split", draw(shape), ints(*parts), outputs=len(parts), axis=axis)
    check(made)
    names = [f"y{k}" for k in range(len(parts))]
    check(made, ys=data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))


def test_split_evenly() -> None:
    check(single("Split", draw((7, 2)), outputs=3, num_outputs=3))
    check(single("Split", draw((6, 2)), outputs=3, opset=13))


@settings(QUIET, max_examples=tries(60))
@given(st.data())
def test_slice(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    rank = len(shape)
    axes = data.draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=1, max_size=rank))
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        first = data.draw(st.integers(0, shape[axis] - 1))
        count = data.draw(st.integers(1, shape[axis]))
        if step > 0:
            starts.append(first - shape[axis] * data.draw(st.integers(0, 1)))
            ends.append(data.draw(st.sampled_from([first + count, 2**31 - 1, 2**62])))
        else:
            starts.append(first)
            ends.append(first - count if first - count >= 0 else -(2**31))
    x = draw(shape)
    made = single("Slice", x, ints(*starts), ints(*ends), ints(*axes), ints(*steps))
    check(made)
    check(as_inputs(made, ["x1", "x2"]), xs=["x0"])


def as_inputs(
    made: tuple[onnx.ModelProto, dict[str, Array]], names: list[str]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The same model with some initializers as graph inputs: nothing of them is known."""
    model, feeds = onnx.ModelProto.FromString(made[0].SerializeToString()), dict(made[1])
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    for tensor in model.graph.initializer:
        if tensor.name in names:
            feeds[tensor.name] = onnx.numpy_helper.to_array(tensor)
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    copies = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model), feeds


@QUIET
@given(st.data())
def test_pad(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(3, 5), min_size=1, max_size=3))
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    opset = 19 if mode == "wrap" else data.draw(st.sampled_from([13, 18, 20]))
    low = 0
    axes = list(range(len(shape)))
    if opset >= 18 and data.draw(st.booleans()):
        axes = data.draw(st.lists(st.sampled_from(axes), unique=True, min_size=1))
    pads = [data.draw(st.integers(low, 2)) for _ in range(2 * len(axes))]
    value = np.asarray(0.7) if mode == "constant" and data.draw(st.booleans()) else None
    more = [ints(*axes)] if len(axes) < len(shape) else []
    inputs = [draw(shape), ints(*pads)]
    if value is not None or more:
        inputs.append(value)  # type: ignore[arg-type]
    made = single("Pad", *inputs, *more, opset=opset, mode=mode)
    check(made)
    if mode == "constant" and not more:
        check(as_inputs(made, ["x1"]), xs=["x0"])


@QUIET
@given(st.data())
def test_gather(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3, 4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    count = data.draw(shapes(0, 2))
    places = np.asarray(data.draw(st.lists(st.integers(-size, size - 1), min_size=6, max_size=6)))
    indices = np.resize(places, count).astype(data.draw(st.sampled_from([np.int32, np.int64])))
    made = single("Gather", draw(shape), indices, axis=axis, opset=data.draw(OPSETS))
    check(made)
    check(as_inputs(made, ["x1"]), xs=["x0"])


@pytest.mark.parametrize("places", [[1], [1, 2], [0, 1, 2, 3], [-2, -1]])
def test_gather_neighbours(places: list[int]) -> None:
    """Known neighbours become a Pad."""
    trained = check(single("Gather", draw((2, 4)), ints(*places), axis=1))
    assert "ScatterElements" not in {node.op_type for node in trained.graph.node}


@QUIET
@given(st.data())
def test_gather_elements(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3, 4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    count = [data.draw(st.integers(1, n)) for n in shape]
    count[axis] = data.draw(st.integers(1, 5))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    indices = random.integers(-size, size, count)
    opset = data.draw(st.sampled_from([13, 16, 20]))
    made = single("GatherElements", draw(shape), indices, axis=axis, opset=opset)
    check(made, run=runtime)  # ONNX's own evaluator wants equal dimensions


@QUIET
@given(st.data())
def test_gather_nd(data: st.DataObject) -> None:
    batch = data.draw(st.integers(0, 1))
    shape = data.draw(shapes(1 + batch, 3, 4))
    depth = data.draw(st.integers(1, len(shape) - batch))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = [*shape[:batch], *data.draw(shapes(1, 2))]
    columns = [random.integers(-n, n, count) for n in shape[batch : batch + depth]]
    indices = np.stack(columns, axis=-1)
    opset = data.draw(OPSETS)
    check(single("GatherND", draw(shape), indices, batch_dims=batch, opset=opset))


@QUIET
@given(st.data())
def test_scatter_elements(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3, 4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = [data.draw(st.integers(1, n)) for n in shape]
    # Without repetition: which of several written to one place wins is not defined.
    order = np.argsort(
        random.random([n if k != axis % len(shape) else shape[axis] for k, n in enumerate(count)]),
        axis=axis,
    )
    indices = np.take(order, range(count[axis]), axis=axis)
    kind = data.draw(st.sampled_from(["none", "add"]))
    updates = draw(count, 1)
    made = single("ScatterElements", draw(shape), indices, updates, axis=axis, reduction=kind)
    check(made, run=runtime)


@QUIET
@given(st.data())
def test_scatter_nd(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3, 4))
    depth = data.draw(st.integers(1, len(shape)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = np.stack(
        np.unravel_index(random.permutation(np.prod(shape[:depth])), shape[:depth]), axis=-1
    )
    indices = places[: data.draw(st.integers(1, len(places)))]
    updates = draw((len(indices), *shape[depth:]), 1)
    kind = data.draw(st.sampled_from(["none", "add"]))
    check(single("ScatterND", draw(shape), indices, updates, reduction=kind))


@QUIET
@given(st.data())
def test_top_k(data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3, 5))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    count = data.draw(st.integers(1, shape[axis]))
    kinds = [onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64]
    largest = data.draw(st.integers(0, 1))
    check(
        single(
            "TopK",
            draw(shape),
            ints(count),
            outputs=2,
            out_dtypes=kinds,
            axis=axis,
            largest=largest,
        )
    )


@QUIET
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 3))
def test_depth_to_space(batch: int, channels: int, height: int, block: int) -> None:
    x = draw((batch, channels * block * block, height, 2))
    for mode in ("DCR", "CRD"):
        check(single("DepthToSpace", x, blocksize=block, mode=mode))
    x = draw((batch, channels, height * block, 2 * block))
    check(single("SpaceToDepth", x, blocksize=block))


@QUIET
@given(shapes(2, 4, 4), st.integers(0, 1), st.none() | st.integers(-3, 3))
def test_trilu(shape: tuple[int, ...], upper: int, diagonal: int | None) -> None:
    more = [np.asarray(diagonal, dtype=np.int64)] if diagonal is not None else []
    check(single("Trilu", draw(shape), *more, upper=upper))


def test_reverse_sequence() -> None:
    check(single("ReverseSequence", draw((4, 3, 2)), ints(2, 4, 1)))
    check(single("ReverseSequence", draw((3, 4)), ints(2, 4, 1), batch_axis=0, time_axis=1))


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]),
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ij,k->k", [(2, 3), (4,)]),
    ("i,j->ij", [(2,), (3,)]),
    ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 2)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bi,bj,bk->ijk", [(2, 2), (2, 3), (2, 2)]),
    ("bhqd,bhkd->bhqk", [(1, 2, 3, 2), (1, 2, 4, 2)]),
]


@pytest.mark.parametrize(("equation", "sizes"), EINSUMS)
def test_einsum(equation: str, sizes: list[tuple[int, ...]]) -> None:
    check(single("Einsum", *(draw(s, k) for k, s in enumerate(sizes)), equation=equation))


@QUIET
@given(st.data())
def test_cross_entropy(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]))
    rest = data.draw(shapes(0, 2))
    classes = data.draw(st.integers(1, 4))
    shape = (2, classes, *rest)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    labels = random.integers(0, classes, (2, *rest))
    attributes: dict[str, Any] = {"reduction": data.draw(st.sampled_from(["none", "sum", "mean"]))}
    if data.draw(st.booleans()):
        ignored = data.draw(st.sampled_from([-100, 0]))
        attributes["ignore_index"] = ignored
        labels.reshape(-1)[0] = ignored
        if data.draw(st.booleans()) and labels.size > 1:
            labels.reshape(-1)[1] = classes - 1
    weights = [np.linspace(0.5, 1.5, classes)] if data.draw(st.booleans()) else []
    made = single(op, draw(shape), labels, *weights, **attributes)
    value = next(iter(reference(*made).values()))
    if np.isfinite(value).all():  # a mean over nothing is no number
        check(made)


def test_cross_entropy_with_logarithms() -> None:
    """Both outputs bring gradients in."""
    check(single("SoftmaxCrossEntropyLoss", draw((2, 3)), ints(2, 0), outputs=2))


def test_symbolic_dimensions() -> None:
    """The gradients of a model that has names for dimensions, run with sizes."""
    model = parse(
        """g (double[N,S,3] x, double[N,T,3] z, double[S,1] bias)
          => (double[A,B,3] scaled, double[C,D,3] other, double[E,F,3] biased)
        <int64[1] one = {1}, int64[1] end = {-1}, int64[2] flat = {-1, 3},
         int64[3] twos = {1, 2, 1}, int64[3] picked = {1, 1, 0}> {
          joined = Concat <axis = 1> (x, z)  cut = Slice (joined, one, end, one)
          rows = Reshape (cut, flat)  mean = ReduceMean <keepdims = 0> (rows)
          tiled = Tile (x, twos)  scaled = Mul (tiled, mean)
          some = Gather <axis = 1> (z, picked)  turned = Transpose <perm = [1, 0, 2]> (some)
          other = Add (turned, mean)
          soft = Softmax <axis = 1> (x)  biased = Add (soft, bias) }"""
    )
    check((model, {"x": draw((2, 4, 3), 1), "z": draw((2, 3, 3), 2), "bias": draw((4, 1), 3)}))


def test_dimensions_that_may_broadcast() -> None:
    """Whether N or M is 1 is known at run time only."""
    for one, other in (((2, 3), (2, 3)), ((1, 3), (2, 3)), ((2, 3), (1, 3))):
        model, floats = single("Mul", draw(one, 1), draw(other, 2))
        check((with_symbols(model, {"x0": ["N", 3], "x1": ["M", 3]}), floats))
