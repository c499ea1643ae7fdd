"""Gradients of convolutions, pools, norms and Resize: symbolic shapes, forms, refusals."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import (
    Array,
    check,
    draw,
    frozen,
    in_float32,
    runtime,
    single,
    with_symbols,
)
from helpers.graphs import parse
from memplan.autodiff.rules import windows
from memplan.errors import ModelError
from memplan.proto.metadata import node_metadata

Made = tuple[onnx.ModelProto, dict[str, Array]]


def backward_ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(
        node.op_type
        for node in model.graph.node
        if node_metadata(node).get("memplan.phase") == "backward"
    )


def backward_reads(model: onnx.ModelProto) -> set[str]:
    return {
        name
        for node in model.graph.node
        if node_metadata(node).get("memplan.phase") == "backward"
        for name in node.input
    }


def conv(shape: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Made:
    return single("Conv", draw(shape), draw(weight, 1), draw(weight[:1], 2), **attributes)


def symbolic(made: Made, *dims: str | int) -> Made:
    """With such dimensions of x0."""
    return with_symbols(made[0], {"x0": dims}), made[1]


# -- symbolic shapes -----------------------------------------------------------------------------

CONVS = {
    "plain": {"pads": [1, 1, 1, 1]},
    "strided": {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    "dilated": {"dilations": [2, 1], "strides": [2, 1]},
    "groups": {"group": 2, "pads": [1, 1, 0, 1], "strides": [1, 2]},
    "same": {"auto_pad": "SAME_LOWER"},
}


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("dims", [("N", 4, 5, 6), ("N", 4, "H", "W")])
def test_conv_of_symbolic_sizes(case: str, dims: tuple[str | int, ...]) -> None:
    group = CONVS[case].get("group", 1)
    check(symbolic(conv((2, 4, 5, 6), (4, 4 // group, 3, 2), **CONVS[case]), *dims))  # type: ignore[operator]


def test_pointwise_conv_of_symbolic_sizes() -> None:
    check(symbolic(conv((2, 3, 5, 4), (2, 3, 1, 1), strides=[2, 1]), "N", 3, "H", "W"))


def test_conv_transpose_of_symbolic_sizes() -> None:
    inputs = draw((2, 4, 3, 4)), draw((4, 1, 2, 3), 1)
    attributes: dict[str, Any] = {"strides": [2, 1], "output_padding": [1, 0], "group": 2}
    for dims in (("N", 4, 3, 4), ("N", 4, "H", "W")):
        check(symbolic(single("ConvTranspose", *inputs, **attributes), *dims))


def test_padding_that_needs_sizes() -> None:
    made = conv((2, 4, 5, 6), (4, 4, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2])
    with pytest.raises(ModelError, match="needs static shapes"):
        check(symbolic(made, "N", 4, "H", "W"))


@pytest.mark.parametrize("dims", [("N", 2, 6, 7), ("N", 2, "H", "W")])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_pools_of_symbolic_sizes(op: str, dims: tuple[str | int, ...]) -> None:
    window = {} if op.startswith("Global") else {"kernel_shape": [3, 2], "strides": [2, 2]}
    check(symbolic(single(op, draw((2, 2, 6, 7)), **window), *dims))


@pytest.mark.parametrize("dims", [("N", 4, 3, 2), ("N", 4, "H", "W")])
@pytest.mark.parametrize(
    "op", ["BatchNormalization", "InstanceNormalization", "GroupNormalization"]
)
def test_norms_of_symbolic_sizes(op: str, dims: tuple[str | int, ...]) -> None:
    vectors = [draw((4,), 1), draw((4,), 2)]
    attributes: dict[str, Any] = {"epsilon": 0.1}
    if op == "BatchNormalization":
        made = single(
            op,
            draw((2, 4, 3, 2)),
            *vectors,
            draw((4,), 3),
            draw((4,), 4, 0.2, 2),
            outputs=3,
            training_mode=1,
            **attributes,
        )
        check(symbolic(made, *dims), xs=["x0", "x1", "x2"], ys=["y0"])
        return
    if op == "GroupNormalization":
        attributes["num_groups"] = 2
    made = single(op, draw((2, 4, 3, 2)), *vectors, opset=21, **attributes)
    model = with_symbols(made[0], {"x0": dims, "y0": dims})  # it has no shape inference
    check((model, made[1]))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_symbolic_sizes(mode: str) -> None:
    scales = np.asarray([1, 1, 2, 3], np.float32)
    made = frozen(single("Resize", draw((2, 2, 3, 2)), None, scales, mode=mode), "x2")
    check(symbolic(made, "N", 2, 3, 2))
    if mode == "nearest":  # repeated elements are summed, whatever their number
        model = check(symbolic(made, "N", "C", "H", "W"))
        assert backward_ops(model)["MatMul"] == 0
    else:
        with pytest.raises(ModelError, match="static shapes"):
            check(symbolic(made, "N", 2, "H", "W"))


# -- forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "transposed"),
    [
        ((2, 3, 9, 9), (4, 3, 3, 3), {}, 3),  # channels as the last axis: both, and the result
        ((2, 4, 9, 9), (4, 2, 3, 3), {"group": 2}, 0),  # samples as groups
        ((4, 3, 4, 4), (4, 3, 3, 3), {}, 3),
        ((4, 3, 5, 5), (4, 3, 1, 1), {}, 2),  # a matrix product
        ((1, 3, 5, 5), (4, 3, 1, 1), {}, 0),
    ],
)
def test_weight_gradient(
    shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], transposed: int
) -> None:
    """Nothing is unrolled, and nothing transposed but for kernels of long rows."""
    model = check(conv(shape, weight, **attributes), xs=["x1"])
    assert backward_ops(model)["Transpose"] == transposed
    sizes = {
        value.name: np.prod([dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in (*model.graph.value_info, *model.graph.output)
    }
    largest = max(np.prod(shape), sizes["y0"], shape[0] * np.prod(weight))
    assert max(sizes.values()) <= largest


MIRRORED = {
    "plain": ((2, 5, 7, 6), (3, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    "uneven": ((2, 5, 6, 7), (3, 5, 2, 3), {"pads": [1, 2, 0, 0]}),
    "dilated": ((2, 4, 8, 7), (2, 4, 3, 2), {"dilations": [2, 3], "pads": [4, 0, 1, 3]}),
    "a line": ((2, 5, 9), (3, 5, 4), {"pads": [3, 2]}),
    "one row": ((2, 5, 6, 7), (3, 5, 1, 3), {"pads": [0, 1, 0, 1]}),
    "one element": ((2, 5, 4, 4), (3, 5, 1, 1), {}),
    "same": ((2, 5, 7, 6), (3, 5, 3, 2), {"auto_pad": "SAME_LOWER"}),
}


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("case", MIRRORED)
def test_by_the_reversed_kernel(
    case: str, batch: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More channels in than out: dX is a convolution, and dW one of dY by X."""
    monkeypatch.setattr(windows, "_MANY", 0)
    shape, weight, attributes = MIRRORED[case]
    made = symbolic(conv(shape, weight, **attributes), batch, *shape[1:])
    model = check(made, xs=["x0", "x1"])
    found = backward_ops(model)
    assert found["ConvTranspose"] == 0
    assert found["Slice"] == (0 if case == "one element" else 2)


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((3, 5, 3, 3), {"strides": [2, 1]}),
        ((3, 5, 2, 2), {"pads": [2, 0, 0, 0]}),  # a window of padding only
        ((6, 5, 3, 3), {}),  # fewer channels in than out
        ((20, 25, 3, 3), {}),  # few pixels for so many channels
    ],
)
def test_not_by_the_reversed_kernel(
    weight: tuple[int, ...], attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_MANY", 0)
    model = check(conv((1, weight[1], 7, 6), weight, **attributes), xs=["x0", "x1"])
    assert backward_ops(model)["ConvTranspose"] == 1


@pytest.mark.parametrize("weight", [(3, 5, 2, 3), (3, 5, 1, 1)])
def test_weight_gradient_of_symbolic_sizes(weight: tuple[int, ...]) -> None:
    """Channels too: the weight tells how many."""
    made = conv((2, 5, 6, 7), weight, pads=[0, 0, 0, 0])
    check(symbolic(made, "N", "C", "H", "W"), xs=["x1"])


def test_a_small_product_is_not_by_the_reversed_kernel() -> None:
    model = check(conv((2, 5, 7, 6), (3, 5, 3, 3)), xs=["x0"])
    assert backward_ops(model)["ConvTranspose"] == 1
    model = check(symbolic(conv((2, 3, 7, 6), (5, 3, 1, 1)), "N", 3, 7, 6), xs=["x0"])
    assert backward_ops(model)["ConvTranspose"] == 0  # nothing to unfold


def test_only_what_is_asked_for_is_read() -> None:
    made = conv((2, 3, 5, 5), (4, 3, 3, 3))
    for x, wanted in (("x0", {"x1"}), ("x1", {"x0"}), ("x2", set())):
        assert backward_reads(check(made, xs=[x])) & {"x0", "x1", "x2"} == wanted


def test_max_pool_keeps_small_indices() -> None:
    model = check(single("MaxPool", draw((2, 2, 6, 6)), kernel_shape=[3, 3], strides=[2, 2]))
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    kept = [name for name in backward_reads(model) if name.startswith("node/")]
    assert onnx.TensorProto.INT32 in {types.get(name) for name in kept}
    assert "x0" not in backward_reads(model)


def test_batch_norm_in_training_keeps_its_input_alone() -> None:
    """And mean and variance; it runs in inference mode, which every provider has."""
    vectors = [draw((3,), k, 0.3, 2) for k in range(1, 5)]
    made = single("BatchNormalization", draw((2, 3, 4)), *vectors, outputs=3, training_mode=1)
    model = check(made, xs=["x0", "x1", "x2"], ys=["y0"])
    made_forward = {
        name
        for node in model.graph.node
        if node_metadata(node).get("memplan.phase") != "backward"
        for name in node.output
    }
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.value_info, *model.graph.input)
    }
    read = backward_reads(model)
    assert "x0" in read
    assert all(shapes[name] == [3] for name in read & made_forward)
    assert not any(item.name == "training_mode" for n in model.graph.node for item in n.attribute)


def test_statistics_written_out_are_seen() -> None:
    """As exporters write them for norms without running statistics."""
    text = """g (double[2,3,4] x, double[3] s, double[3] b) => (double[2,3,4] y)
        <int64[2] axes = {0, 2}>
        { m = ReduceMean<keepdims = 0>(x, axes) k = ReduceMean(x, axes) d = Sub(x, k)
          q = Mul(d, d) v = ReduceMean<keepdims = 0>(q, axes)
          y = BatchNormalization(x, s, b, m, v) }"""
    feeds = {"x": draw((2, 3, 4)), "s": draw((3,), 1), "b": draw((3,), 2)}
    model = check((parse(text), feeds))
    assert backward_reads(model).isdisjoint({"d", "q", "k"})
    other = text.replace("Sub(x, k)", "Sub(x, two)").replace(
        "<int64[2] axes = {0, 2}>", "<int64[2] axes = {0, 2}, double two = {2}>"
    )
    check((parse(other), feeds))  # no variance: it gets a gradient of its own


def test_layer_norm_reads_the_saved_statistics() -> None:
    model, feeds = single("LayerNormalization", draw((2, 3, 4)), draw((4,), 1), draw((4,), 2))
    made = memplan.gradients(in_float32(model), model.graph.output[0].name, list(feeds))
    (node,) = (n for n in made.graph.node if n.op_type == "LayerNormalization")
    assert set(node.output[1:]) <= backward_reads(made)
    assert node.output[0] not in backward_reads(made)


def test_statistics_of_layer_norm_in_float64_are_not_those_saved_in_float32() -> None:
    made = single("LayerNormalization", draw((2, 3, 4)) + 1000, draw((4,), 1), draw((4,), 2))
    check(made, run=runtime)
