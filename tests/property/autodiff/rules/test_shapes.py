"""Rules of operators that move, cut, join, gather and scatter, against finite differences."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from helpers.drawing import ints, quiet, shapes
from helpers.effort import tries
from helpers.gradients import Array, check, draw, single, with_symbols
from helpers.graphs import parse

QUIET = quiet(25)
NEWEST = onnx.defs.onnx_opset_version()
OPSETS = st.sampled_from([13, 15, 16, 18, 20, NEWEST])


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
