"""Gradients of max pools without Indices, against the form with them and PyTorch's."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memplan
from helpers.drawing import quiet
from helpers.effort import tries
from helpers.gradients import runtime
from helpers.graphs import parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.autodiff.backward import Request, build_gradients
from memplan.autodiff.finished_graph import finished
from memplan.errors import ModelError
from memplan.shapes.tensor_type import TensorType, value_info

QUIET = quiet(tries(60))
FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "halves": ((8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "rows left over": ((9, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "resnet": ((9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "every place": ((5, 6), {"kernel_shape": [3, 2]}),
    "gaps": ((9, 9), {"kernel_shape": [2, 1], "strides": [4, 3]}),
    "dilated": ((9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "dilations": [2, 3]}),
    "rounded up": ((8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "same": ((7, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    "line": ((11,), {"kernel_shape": [4], "strides": [3], "pads": [2, 1]}),
    "volume": ((5, 4, 6), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 3]}),
    "points": ((5, 5), {"kernel_shape": [1, 1], "strides": [2, 2]}),
}


def pool(sizes: tuple[int, ...], attributes: dict[str, Any], dtype: int = 1) -> onnx.ModelProto:
    node = onnx.helper.make_node("MaxPool", ["x"], ["y"], "pool", **attributes)
    x = value_info("x", TensorType(dtype, ("N", 3, *sizes)))
    y = onnx.helper.make_tensor_value_info("y", dtype, None)
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.shape_inference.infer_shapes(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    )


def gradient(model: onnx.ModelProto, x: Any, seed: int, *, portable: bool) -> tuple[Any, Any]:
    """The gradient of Σ y·dy, and dy; the portable form is what it says."""
    made = finished(build_gradients(model, Request(("y",), ("x",), ("dy",), portable=portable)))
    ops = {node.op_type for node in made.graph.node}
    pools = [node for node in made.graph.node if node.op_type == "MaxPool"]
    assert ("ScatterElements" in ops) is not portable
    assert len(pools[0].output) == (1 if portable else 2)
    shape = runtime(model, {"x": x})["y"].shape
    dy = np.random.default_rng(seed).standard_normal(shape).astype(x.dtype)
    return runtime(made, {"x": x, "dy": dy})["x_grad"], dy


def drawn(sizes: tuple[int, ...], seed: int = 0, dtype: type = np.float32) -> Any:
    """Few numbers, so that most windows tie."""
    return np.random.default_rng(seed).integers(-2, 2, (2, 3, *sizes)).astype(dtype)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_bits_are_those_of_the_form_with_indices(name: str, dtype: type) -> None:
    sizes, attributes = FORMS[name]
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    model, x = pool(sizes, attributes, kind), drawn(sizes, 1, dtype)
    one, other = (gradient(model, x, 2, portable=which)[0] for which in (False, True))
    assert one.dtype == dtype
    assert one.tobytes() == other.tobytes()


@QUIET
@given(st.data())
def test_whatever_the_windows(data: Any) -> None:
    rank = data.draw(st.integers(1, 2))
    kernel, strides, dilations = (
        data.draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank))
        for most in (3, 3, 2)
    )
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    sizes = tuple(
        data.draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(kernel, dilations, strict=True)
    )
    names = ("kernel_shape", "strides", "dilations", "pads")
    attributes = dict(zip(names, (kernel, strides, dilations, pads), strict=True))
    model, x = pool(sizes, attributes), drawn(sizes, data.draw(st.integers(0, 99)))
    one, other = (gradient(model, x, 3, portable=which)[0] for which in (False, True))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ["halves", "resnet", "every place", "dilated"])
def test_ties_go_where_pytorch_sends_them(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    sizes, attributes = FORMS[name]
    x = drawn(sizes, 4)
    found, dy = gradient(pool(sizes, attributes), x, 5, portable=True)
    given_x = torch.tensor(x, requires_grad=True)
    pads = attributes.get("pads", [0, 0])[0]
    steps, apart = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    y = torch.nn.functional.max_pool2d(given_x, attributes["kernel_shape"], steps, pads, apart)
    (y * torch.tensor(dy)).sum().backward()
    np.testing.assert_allclose(found, given_x.grad.numpy(), rtol=1e-6, atol=1e-6)


def test_a_window_without_a_largest_element_keeps_its_gradient() -> None:
    """Of NaN alone: it must not vanish."""
    sizes, attributes = FORMS["halves"]
    found, dy = gradient(
        pool(sizes, attributes), drawn(sizes) * np.float32("nan"), 6, portable=True
    )
    assert np.isclose(found.sum(), dy.sum(), rtol=1e-4)


def test_sizes_that_are_not_known_are_told() -> None:
    model = parse(
        'g (float[2,3,"H","W"] x) => (float[2,3,"h","w"] y) '
        "{ y = MaxPool <kernel_shape = [2,2]> (x) }"
    )
    with pytest.raises(ModelError, match="needs static shapes"):
        build_gradients(model, Request(("y",), ("x",), ("dy",), portable=True))


NET = """g (float[4,1,8,8] x) => (float[4,5] logits)
  <int64[2] flat = {4, -1}> {
    c = Conv <pads = [1,1,1,1]> (x, k)
    p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
    f = Reshape (p, flat)
    logits = Gemm <transB = 1> (f, w) }"""


def test_a_portable_step_has_the_losses_of_the_other() -> None:
    model = parse(NET)
    rng = np.random.default_rng(0)
    for name, sizes in (("w", (5, 16)), ("k", (1, 1, 3, 3))):
        value = rng.standard_normal(sizes).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    x = rng.standard_normal((4, 1, 8, 8)).astype(np.float32)
    feeds = {"x": x, "labels": np.asarray([0, 4, 2, 1])}
    found = []
    for portable in (False, True):
        options = GradOptions("cross-entropy", logits="logits", portable=portable)
        made = grad(model, options).model
        ops = {node.op_type for node in made.graph.node}
        assert ("LogSoftmax" in ops) is not portable
        pools = [node for node in made.graph.node if node.op_type == "MaxPool"]
        assert len(pools[0].output) == (1 if portable else 2)
        found.append(runtime(made, feeds))
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=2e-5, atol=1e-6)


def test_a_captured_step_is_pytorchs() -> None:
    torch: Any = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    batch = (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2]))
    step = memplan.TorchStep(
        net, lambda model, x, t: nn.functional.cross_entropy(model(x), t), batch
    )
    found = memplan.capture(step, portable=True)
    assert found.check.verdict == "equal"
    ops = [node.op_type for node in found.model.graph.node]
    assert ops.count("MaxPool") == 2
    assert "LogSoftmax" not in ops
    assert all(len(node.output) == 1 for node in found.model.graph.node)
