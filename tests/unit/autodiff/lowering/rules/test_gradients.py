"""Every foreign gradient against finite differences of its operator, in float64.

The same graphs run on stock ONNX Runtime in float32, whose outputs must be those of float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from helpers.lowering import ATEN, Case, check_gradients, node, onnx_node, outputs_of, some

pytestmark = pytest.mark.ort
Array = Any
RELU_LIKE = {
    "Relu": ("Relu", {}, "x"),
    "Sigmoid": ("Sigmoid", {}, "y"),
    "Tanh": ("Tanh", {}, "y"),
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.2}, "y"),
    "Elu": ("Elu", {"alpha": 0.7}, "y"),
    "Sin": ("Sin", {}, "x"),
}


@pytest.mark.parametrize("op", RELU_LIKE)
def test_activation(op: str) -> None:
    forward, attributes, saved = RELU_LIKE[op]
    nodes = [
        onnx_node(forward, "x", "y", **attributes),
        node(f"{op}Grad", f"y_grad {saved}", "x_grad", **attributes),
    ]
    check_gradients(Case(nodes, {"x": some(3, 4), "y_grad": some(3, 4, seed=1)}, ["y", "x_grad"]))


@pytest.mark.parametrize(
    ("forward", "backward", "bias", "attributes"),
    [
        ("Gelu", "GeluGrad", False, {}),
        ("BiasGelu", "BiasGeluGrad_dX", True, {}),
        ("FastGelu", "FastGeluGrad", False, {}),
        ("FastGelu", "FastGeluGrad", True, {}),
        ("FastGelu", "BiasFastGeluGrad_dX", True, {}),
        ("QuickGelu", "QuickGeluGrad", False, {}),
        ("QuickGelu", "QuickGeluGrad", False, {"alpha": 0.9}),
    ],
)
def test_gelu(forward: str, backward: str, bias: bool, attributes: dict[str, Any]) -> None:
    given = "x b" if bias else "x"
    nodes = [
        node(forward, given, "y", **attributes),
        node(backward, f"y_grad {given}", "x_grad", **attributes),
    ]
    feeds = {"x": some(3, 4), "y_grad": some(3, 4, seed=1)}
    feeds |= {"b": some(4, seed=2)} if bias else {}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"]))


@pytest.mark.parametrize(
    ("op", "name", "axis"),
    [
        ("Softmax", "SoftmaxGrad_13", 1),
        ("LogSoftmax", "LogSoftmaxGrad_13", 0),
        ("Softmax", "SoftmaxGrad", 2),
        ("LogSoftmax", "LogSoftmaxGrad", 2),
    ],
)
def test_softmax(op: str, name: str, axis: int) -> None:
    nodes = [
        onnx_node(op, "x", "y", axis=axis),
        node(name, "y_grad y", "x_grad", axis=axis),
    ]
    feeds = {"x": some(2, 3, 4), "y_grad": some(2, 3, 4, seed=1)}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"]))


def test_softmax_over_several_axes() -> None:
    """Before opset 13, all axes from ``axis`` on are one."""
    y = np.exp(some(2, 3, 4))
    y /= y.sum((1, 2), keepdims=True)
    feeds = {"y": y, "y_grad": some(2, 3, 4, seed=1)}
    product = feeds["y_grad"] * y
    nodes = [node("SoftmaxGrad", "y_grad y", "x_grad", axis=1)]
    found = outputs_of(Case(nodes, feeds, ["x_grad"]))["x_grad"]
    np.testing.assert_allclose(found, product - y * product.sum((1, 2), keepdims=True), atol=1e-12)
    nodes = [node("LogSoftmaxGrad", "y_grad l", "x_grad", axis=1)]
    feeds = {"l": np.log(y), "y_grad": feeds["y_grad"]}
    found = outputs_of(Case(nodes, feeds, ["x_grad"]))["x_grad"]
    total = feeds["y_grad"].sum((1, 2), keepdims=True)
    np.testing.assert_allclose(found, feeds["y_grad"] - y * total, atol=1e-12)


# -- normalizations ----------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "scale"), [(-1, (5,)), (1, (3, 5))])
def test_layer_norm(axis: int, scale: tuple[int, ...]) -> None:
    forward = onnx_node("LayerNormalization", "x scale bias", "y mean inv", axis=axis)
    backward = node(
        "LayerNormalizationGrad",
        "y_grad x scale mean inv",
        "x_grad scale_grad bias_grad",
        axis=axis,
    )
    feeds = {"x": some(4, 3, 5), "scale": some(*scale, seed=2), "bias": some(*scale, seed=3)}
    feeds["y_grad"] = some(4, 3, 5, seed=1)
    check_gradients(Case([forward, backward], feeds, ["y", "x_grad", "scale_grad", "bias_grad"]))


def test_layer_norm_of_an_opset_that_has_none() -> None:
    """onnxruntime-training has it in ONNX's domain before ONNX had it."""
    forward = onnx_node("LayerNormalization", "x scale bias", "y mean inv")
    backward = node("LayerNormalizationGrad", "y_grad x scale mean inv", "x_grad _ bias_grad")
    feeds = {"x": some(4, 5), "scale": some(5, seed=2), "bias": some(5, seed=3)}
    feeds["y_grad"] = some(4, 5, seed=1)
    case = Case([forward, backward], feeds, ["y", "x_grad", "bias_grad"], opset=14)
    check_gradients(case)


def test_invertible_layer_norm() -> None:
    forward = onnx_node("LayerNormalization", "x scale bias", "y mean inv")
    backward = node(
        "InvertibleLayerNormalizationGrad",
        "y_grad y scale bias inv",
        "x_grad scale_grad bias_grad",
    )
    feeds = {"x": some(4, 5), "scale": some(5, seed=2), "bias": some(5, seed=3)}
    feeds["y_grad"] = some(4, 5, seed=1)
    check_gradients(Case([forward, backward], feeds, ["y", "x_grad", "scale_grad", "bias_grad"]))


def test_simplified_layer_norm() -> None:
    forward = node("SimplifiedLayerNormalization", "x scale", "y inv", epsilon=1e-3)
    backward = node("SimplifiedLayerNormalizationGrad", "y_grad x scale inv", "x_grad scale_grad")
    feeds = {"x": some(4, 5), "scale": some(5, seed=2), "y_grad": some(4, 5, seed=1)}
    found = check_gradients(Case([forward, backward], feeds, ["y", "x_grad", "scale_grad"]))
    root = np.sqrt((feeds["x"] ** 2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(found["y"], feeds["x"] / root * feeds["scale"], atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 4, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    channels = shape[1]
    forward = node(
        "BatchNormInternal", "x scale bias m v", "y m1 v1 mean inv", epsilon=1e-3, momentum=0.8
    )
    backward = node(
        "BatchNormalizationGrad",
        "y_grad x scale mean inv",
        "x_grad scale_grad bias_grad",
        epsilon=1e-3,
    )
    feeds = {"x": some(*shape), "y_grad": some(*shape, seed=1)}
    feeds |= {n: some(channels, seed=k + 2) for k, n in enumerate(("scale", "bias", "m"))}
    feeds["v"] = some(channels, seed=6, low=0.5)
    outputs = ["y", "m1", "v1", "x_grad", "scale_grad", "bias_grad"]
    found = check_gradients(Case([forward, backward], feeds, outputs))
    axes = (0, *range(2, len(shape)))
    mean, variance = feeds["x"].mean(axes), feeds["x"].var(axes)
    np.testing.assert_allclose(found["m1"], feeds["m"] * 0.8 + mean * 0.2, atol=1e-12)
    np.testing.assert_allclose(found["v1"], feeds["v"] * 0.8 + variance * 0.2, atol=1e-12)


# -- windows -----------------------------------------------------------------------------------

CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (2, 3, 7, 6), (4, 3, 3, 2), {}),
    ("Conv", (2, 3, 7, 6), (4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ("Conv", (2, 4, 8, 8), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ("Conv", (2, 3, 7), (4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2]}),
    ("ConvTranspose", (2, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 1, 0, 1]}),
    ("ConvTranspose", (2, 4, 5), (4, 2, 3), {"group": 2, "output_padding": [1], "strides": [2]}),
]


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
def test_convolution(case: int) -> None:
    op, x, weight, attributes = CONVOLUTIONS[case]
    channels = weight[0] if op == "Conv" else weight[1] * attributes.get("group", 1)
    forward = onnx_node(op, "x w b", "y", kernel_shape=weight[2:], **attributes)
    feeds = {"x": some(*x), "w": some(*weight, seed=1), "b": some(channels, seed=2)}
    shape = outputs_of(Case([forward], feeds, ["y"]))["y"].shape
    feeds["y_grad"] = some(*shape, seed=3)
    backward = node(
        f"{op}Grad", "y_grad x w", "x_grad w_grad b_grad", kernel_shape=weight[2:], **attributes
    )
    check_gradients(Case([forward, backward], feeds, ["y", "x_grad", "w_grad", "b_grad"]))


def test_weights_alone() -> None:
    """The first layer's input needs no gradient."""
    feeds = {"x": some(2, 3, 7, 6), "w": some(4, 3, 3, 3, seed=1), "b": some(4, seed=4)}
    forward = onnx_node("Conv", "x w b", "y", kernel_shape=[3, 3])
    feeds["y_grad"] = some(2, 4, 5, 4, seed=3)
    backward = node("ConvGrad", "y_grad x w", "_ w_grad b_grad", kernel_shape=[3, 3])
    check_gradients(Case([forward, backward], feeds, ["y", "w_grad", "b_grad"]))


POOLS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("MaxPool", (2, 3, 6, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("MaxPool", (2, 3, 6, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    ("MaxPool", (2, 3, 9), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ("AveragePool", (2, 3, 6, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", (2, 3, 6, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", (2, 3, 6), {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
    ("AveragePool", (2, 3, 7), {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("case", range(len(POOLS)))
def test_pool(case: int, domain: str) -> None:
    op, x, attributes = POOLS[case]
    saved = "y indices" if op == "MaxPool" else "y"
    forward = onnx_node(op, "x", saved, **attributes)
    feeds = {"x": some(*x)}
    feeds["y_grad"] = some(*outputs_of(Case([forward], feeds, ["y"]))["y"].shape, seed=1)
    given = "y_grad indices" if op == "MaxPool" else "y_grad"
    backward = node(f"{op}Grad", given, "x_grad", domain, **attributes)
    check_gradients(Case([forward, backward], feeds, ["y", "x_grad"]))


def test_resize() -> None:
    forward = onnx_node("Resize", "x _ scales", "y", mode="linear")
    backward = node("ResizeGrad", "y_grad x _ scales", "x_grad", mode="linear")
    feeds = {"x": some(1, 2, 3, 4), "y_grad": some(1, 2, 6, 8, seed=1)}
    constants = {"scales": np.asarray([1, 1, 2, 2], np.float32)}
    case = Case([forward, backward], feeds, ["y", "x_grad"], constants)
    check_gradients(case)


# -- indices -----------------------------------------------------------------------------------

INDICES = np.asarray([[0, 2, 2], [4, 0, -1]])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int, constant: bool) -> None:
    """The shape is a constant, or of a tensor."""
    x = some(5, 5, 5)
    shape = () if constant else (onnx_node("Shape", "x", "s"),)
    forward = onnx_node("Gather", "x i", "y", axis=axis)
    backward = node("GatherGrad", "s i y_grad", "x_grad", axis=axis)
    feeds = {"x": x, "i": INDICES}
    feeds["y_grad"] = some(*np.take(x, INDICES, axis).shape, seed=1)
    constants = {"s": np.asarray([5, 5, 5])} if constant else {}
    check_gradients(Case([*shape, forward, backward], feeds, ["y", "x_grad"], constants))


def test_gather_elements() -> None:
    places = np.asarray([[0, 1, 0, 1], [2, 2, 1, 1]])
    forward = onnx_node("GatherElements", "x i", "y", axis=0)
    backward = node("GatherElementsGrad", "y_grad s i", "x_grad", axis=0)
    feeds = {"x": some(3, 4), "i": places, "y_grad": some(2, 4, seed=1)}
    constants = {"s": np.asarray([3, 4])}
    check_gradients(Case([forward, backward], feeds, ["y", "x_grad"], constants))


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_nd(batch: int) -> None:
    places = np.asarray([[[1], [0], [1]], [[2], [2], [0]]])
    forward = onnx_node("GatherND", "x i", "y", batch_dims=batch)
    backward = node("GatherNDGrad", "s i y_grad", "x_grad", batch_dims=batch)
    shape = (2, 3, 3) if batch else (2, 3, 4, 3)
    x = some(2, 4, 3) if batch else some(4, 4, 3)
    feeds = {"x": x, "i": places, "y_grad": some(*shape, seed=1)}
    nodes = [onnx_node("Shape", "x", "s"), forward, backward]
    check_gradients(Case(nodes, feeds, ["y", "x_grad"]))


@pytest.mark.parametrize(
    ("bounds", "shape"),
    [
        ({"b": [1], "e": [4], "a": [1]}, (4, 3, 3)),
        ({"b": [1, -1], "e": [4, -4], "a": [0, 2], "t": [2, -2]}, (2, 5, 2)),
    ],
)
def test_slice(bounds: dict[str, list[int]], shape: tuple[int, ...]) -> None:
    names = " ".join(bounds)
    forward = onnx_node("Slice", f"x {names}", "y")
    backward = node("SliceGrad", f"y_grad s {names}", "x_grad")
    feeds = {"x": some(4, 5, 3), "y_grad": some(*shape, seed=1)}
    constants = {name: np.asarray(numbers) for name, numbers in bounds.items()}
    nodes = [onnx_node("Shape", "x", "s"), forward, backward]
    check_gradients(Case(nodes, feeds, ["y", "x_grad"], constants))


@pytest.mark.parametrize("padding", [-1, 2])
def test_embedding(padding: int) -> None:
    ids = np.asarray([[0, 2, 2], [4, 0, 1]])
    forward = node("ATen", "x i p no no", "y", ATEN, operator="embedding")
    rows = [onnx_node("Shape", "x", "s"), onnx_node("Gather", "s zero", "n", name="rows")]
    backward = node(
        "ATen", "y_grad i n p no no", "x_grad", ATEN, name="back", operator="embedding_backward"
    )
    feeds = {"x": some(5, 3), "i": ids, "y_grad": some(2, 3, 3, seed=1)}
    constants = {"zero": np.asarray([0]), "p": np.asarray(padding), "no": np.asarray(False)}
    case = Case([forward, *rows, backward], feeds, ["y", "x_grad"], constants)
    if padding < 0:
        check_gradients(case)
        return
    wanted = np.zeros((5, 3))
    for place, index in np.ndenumerate(ids):
        wanted[index] += feeds["y_grad"][place] * (index != padding)
    np.testing.assert_allclose(outputs_of(case)["x_grad"], wanted, atol=1e-12)


# -- arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1), (1, 1)])
def test_div(shape: tuple[int, ...]) -> None:
    feeds = {"a": some(3, 4), "b": some(*shape, seed=2, low=0.5), "y_grad": some(3, 4, seed=1)}
    nodes = [onnx_node("Div", "a b", "y"), node("DivGrad", "y_grad a b", "a_grad b_grad")]
    check_gradients(Case(nodes, feeds, ["y", "a_grad", "b_grad"]))


@pytest.mark.parametrize("ratio", [0.25, None])
def test_dropout(ratio: float | None) -> None:
    mask = some(3, 4, seed=5) > 0
    share = 0.5 if ratio is None else ratio
    nodes = [
        onnx_node("Div", "x kept", "scaled"),
        onnx_node("Where", "mask scaled zero", "y"),
        node("DropoutGrad", "y_grad mask" + ("" if ratio is None else " ratio yes"), "x_grad"),
    ]
    constants = {"kept": np.asarray(1 - share), "zero": np.asarray(0.0), "yes": np.asarray(True)}
    constants |= {} if ratio is None else {"ratio": np.asarray(ratio, np.float32)}
    feeds = {"x": some(3, 4), "y_grad": some(3, 4, seed=1), "mask": mask}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"], constants))


@pytest.mark.parametrize("training", [False, True])
def test_dropout_whose_mode_is_fed(training: bool) -> None:
    mask = some(3, 4, seed=5) > 0
    nodes = [node("DropoutGrad", "y_grad mask ratio mode", "x_grad")]
    feeds = {"y_grad": some(3, 4), "mask": mask, "ratio": np.asarray(0.25)}
    feeds["mode"] = np.asarray(training)
    found = outputs_of(Case(nodes, feeds, ["x_grad"]))["x_grad"]
    dropped = np.where(mask, feeds["y_grad"] / 0.75, 0)
    np.testing.assert_allclose(found, dropped if training else feeds["y_grad"], atol=1e-12)


def test_fake_quantization() -> None:
    """Straight through inside of the range: the derivative of rounding is taken for 1."""
    x = some(3, 4, low=-3, high=9)
    nodes = [
        node("FakeQuant", "x scale zero", "y mask", quant_min=0, quant_max=15),
        node("FakeQuantGrad", "y_grad mask", "x_grad"),
    ]
    constants = {"scale": np.asarray(0.5), "zero": np.asarray(3.0)}
    feeds = {"x": x, "y_grad": some(3, 4, seed=1)}
    case = Case(
        nodes, feeds, ["y", "mask", "x_grad"], constants, types={"mask": onnx.TensorProto.BOOL}
    )
    found = outputs_of(case)
    number = np.round(x / 0.5) + 3
    inside = (number >= 0) & (number <= 15)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(found["mask"], inside)
    np.testing.assert_allclose(found["y"], (number.clip(0, 15) - 3) * 0.5)
    np.testing.assert_allclose(found["x_grad"], np.where(inside, feeds["y_grad"], 0))
