"""Gradients where a derivative does not exist or two inputs tie, against PyTorch's autograd.

Both run in float64 (float32 where ONNX Runtime has no float64 kernel). PyTorch is the oracle
(``pip install memplan[oracle]``); where ONNX means something else, the case says what and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import Array, in_float32, model_of, runtime, single
from helpers.gradients import frozen as freeze
from memplan.autodiff.backward import Request, build_gradients

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional
pytestmark = pytest.mark.ort

Made = tuple[onnx.ModelProto, dict[str, Array]]
TOLERANCES = {np.float64: 1e-12, np.float32: 1e-5}


def ours(made: Made, dy: Array, y: str = "y0") -> dict[str, Array]:
    """Gradients of Σ y·dy by all float inputs, as the generated graph has them on ONNX Runtime."""
    model, feeds = made
    trained = build_gradients(model, Request((y,), tuple(feeds), ("dy",)))
    onnx.checker.check_model(trained, full_check=True)
    return runtime(trained, {**feeds, "dy": dy})


def theirs(function: Callable[..., Any], feeds: Mapping[str, Array], dy: Array) -> dict[str, Array]:
    """The same by PyTorch."""
    given = [torch.tensor(array, requires_grad=True) for array in feeds.values()]
    result = function(*given)
    assert tuple(result.shape) == dy.shape, (result.shape, dy.shape)
    (result * torch.tensor(dy)).sum().backward()
    zeros = [torch.zeros_like(g) if g.grad is None else g.grad for g in given]
    return {name: grad.numpy() for name, grad in zip(feeds, zeros, strict=True)}


def seeds(shape: tuple[int, ...], dtype: type = np.float64) -> Array:
    """Gradients of the output, none 0 and none like another."""
    return np.asarray(np.arange(1, 1 + int(np.prod(shape))).reshape(shape) / 4, dtype)


def same(made: Made, function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Assert that both have the same gradients by every float input, all finite."""
    feeds = made[1]
    kind = next(iter(feeds.values())).dtype.type
    dy = seeds(shape, kind)
    found, wanted = ours(made, dy), theirs(function, feeds, dy)
    for name, grad in wanted.items():
        mine = found[f"{name}_grad"]
        assert mine.shape == grad.shape
        np.testing.assert_allclose(mine, grad, rtol=TOLERANCES[kind], atol=TOLERANCES[kind])


def narrow(made: Made) -> Made:
    """The same model and inputs in float32."""
    model, feeds = made
    return in_float32(model), {name: array.astype(np.float32) for name, array in feeds.items()}


KINKED = np.asarray([[-4.0, -3.0, -1.0, -0.5, -0.0], [0.0, 0.5, 1.0, 3.0, 4.0]])
SHAPE = KINKED.shape
SMALL = 1e-30
"""Beside a kink."""


UNARY: dict[str, tuple[Mapping[str, Any], Callable[[Any], Any]]] = {
    "Relu": ({}, torch.relu),
    "Abs": ({}, torch.abs),
    "Sign": ({}, torch.sign),
    "LeakyRelu": ({"alpha": 0.125}, lambda x: F.leaky_relu(x, 0.125)),
    "Elu": ({"alpha": 0.5}, lambda x: F.elu(x, 0.5)),
    "HardSwish": ({}, F.hardswish),
    "ThresholdedRelu": ({"alpha": 0.5}, lambda x: F.threshold(x, 0.5, 0)),
    "Softsign": ({}, F.softsign),
    "Tanh": ({}, torch.tanh),
    "Sigmoid": ({}, torch.sigmoid),
    "Softplus": ({}, F.softplus),
    "Gelu": ({}, F.gelu),
    "Mish": ({}, F.mish),
    "Floor": ({}, torch.floor),
    "Round": ({}, torch.round),
}


def unary(op: str, x: Array, attributes: Mapping[str, Any]) -> Made:
    return narrow(single(op, x, opset=22, **attributes))


@pytest.mark.parametrize("op", [op for op in UNARY if op not in ("Sign", "Floor", "Round")])
def test_kinks_of_activations(op: str) -> None:
    attributes, function = UNARY[op]
    same(unary(op, KINKED, attributes), function, SHAPE)
    beside = np.asarray([[-SMALL, SMALL, 1 - 1e-6], [3 - 1e-6, 3 + 1e-6, -3 + 1e-6]])
    same(unary(op, beside, attributes), function, beside.shape)


def test_hard_sigmoid_at_its_ends() -> None:
    """PyTorch's has the slope 1/6; ONNX's default is 0.2."""
    made = unary("HardSigmoid", KINKED, {"alpha": 1 / 6, "beta": 0.5})
    same(made, F.hardsigmoid, SHAPE)


SATURATED = np.asarray([[-1000.0, -88.0, -40.0], [40.0, 88.0, 1000.0]])


@pytest.mark.parametrize(
    "op", ["Sigmoid", "Tanh", "Softplus", "Gelu", "Mish", "Softsign", "HardSwish", "Elu"]
)
def test_saturated_activations(op: str) -> None:
    attributes, function = UNARY[op]
    same(unary(op, SATURATED, attributes), function, SATURATED.shape)


@pytest.mark.parametrize("op", ["Sign", "Floor", "Round"])
def test_steps_have_no_gradient(op: str) -> None:
    """Beside another use of x, whose gradient is then all there is."""
    nodes = [
        onnx.helper.make_node(op, ["x0"], ["s"]),
        onnx.helper.make_node("Mul", ["s", "x0"], ["y0"]),
    ]
    made = model_of(nodes, {"x0": KINKED}, {"y0": onnx.TensorProto.DOUBLE})
    same(made, lambda x: UNARY[op][1](x) * x, SHAPE)


def test_prelu_at_zero() -> None:
    slope = np.asarray([0.25])
    same(narrow(single("PRelu", KINKED, slope)), F.prelu, SHAPE)


def test_clip_at_its_bounds() -> None:
    """0, as PyTorch's hardtanh and relu6 have it, and its clamp since 2.14; before, that has 1."""
    made, dy = single("Clip", KINKED, np.asarray(-1.0), np.asarray(1.0)), seeds(SHAPE)
    wanted = theirs(lambda v: F.hardtanh(v, -1.0, 1.0), {"x0": KINKED}, dy)["x0"]
    np.testing.assert_array_equal(ours(made, dy)["x0_grad"], wanted)


def test_bounds_of_clip_that_are_learnt() -> None:
    """Between and beyond the bounds."""
    x = np.asarray([[-4.0, -1.5, 0.0], [0.5, 0.75, 2.0]])
    same(
        single("Clip", x, np.asarray(-1.0), np.asarray(1.0)),
        lambda v, low, high: torch.minimum(torch.maximum(v, low), high),
        x.shape,
    )


TIED = (
    np.asarray([[1.0, 2.0, 3.0, -0.0], [4.0, 4.0, -5.0, 0.0]]),
    np.asarray([[1.0, 1.0, 3.0, 0.0], [4.0, 5.0, -5.0, -0.0]]),
)


@pytest.mark.parametrize(("op", "function"), [("Max", torch.maximum), ("Min", torch.minimum)])
def test_ties_of_two_inputs(op: str, function: Any) -> None:
    """Half to each."""
    same(single(op, *TIED), function, TIED[0].shape)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_ties_of_three_inputs(op: str) -> None:
    """Shared evenly, as along an axis."""
    values = [
        np.asarray(v) for v in ([1.0, 2.0, 0.0, 2.0], [1.0, 1.0, 0.0, 2.0], [1.0, 2.0, 0.0, 1.0])
    ]
    extreme = torch.amax if op == "Max" else torch.amin
    same(single(op, *values), lambda *given: extreme(torch.stack(given), 0), (4,))


def reduced(op: str, x: Array, axes: list[int], keepdims: int = 0) -> Made:
    return single(op, x, np.asarray(axes), keepdims=keepdims)


@pytest.mark.parametrize(("op", "function"), [("ReduceMax", torch.amax), ("ReduceMin", torch.amin)])
def test_ties_of_extremes(op: str, function: Any) -> None:
    """Shared evenly, as PyTorch's ``amax`` does."""
    x = np.asarray([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [-0.0, 0.0, 5.0, -5.0]])
    for axes, shape in (([1], (3,)), ([0], (4,))):
        same(reduced(op, x, axes), lambda v, axes=tuple(axes): function(v, axes), shape)
    same(reduced(op, x, [0, 1]), lambda v: function(v, (0, 1)), ())


@pytest.mark.parametrize("axes", [[1], [0, 1]])
@pytest.mark.parametrize(("op", "order"), [("ReduceL1", 1), ("ReduceL2", 2)])
def test_norms_of_zeros(op: str, order: int, axes: list[int]) -> None:
    x = np.asarray([[0.0, -0.0, 0.0], [0.0, 3.0, -4.0]])
    shape = (2,) if axes == [1] else ()
    made = reduced(op, x, axes)
    same(made, lambda v: torch.linalg.vector_norm(v, order, tuple(axes)), shape)
    zeros = reduced(op, np.zeros((2, 3)), axes)
    same(zeros, lambda v: torch.linalg.vector_norm(v, order, tuple(axes)), shape)


def test_products_with_zeros() -> None:
    """No zero, one and two of them in a row."""
    x = np.asarray([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]])
    same(reduced("ReduceProd", x, [1]), lambda v: v.prod(1), (3,))


@pytest.mark.parametrize("op", ["ReduceLogSumExp", "ReduceSumSquare", "ReduceMean"])
def test_other_reductions_of_equal_and_large_elements(op: str) -> None:
    function = {
        "ReduceLogSumExp": lambda v: torch.logsumexp(v, 1),
        "ReduceSumSquare": lambda v: (v * v).sum(1),
        "ReduceMean": lambda v: v.mean(1),
    }[op]
    x = np.asarray([[0.0, 0.0, 0.0], [80.0, -80.0, 80.0]])
    same(reduced(op, x, [1]), function, (2,))


def test_square_root_at_zero() -> None:
    """Infinite on both sides, and not a number for a gradient of 0."""
    x = np.asarray([[0.0, 4.0], [0.0, 1.0]])
    made, dy = single("Sqrt", x), np.asarray([[1.0, 2.0], [-1.0, 3.0]])
    found = ours(made, dy)["x0_grad"]
    np.testing.assert_array_equal(found, theirs(torch.sqrt, {"x": x}, dy)["x"])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("frozen", [True, False], ids=["number", "tensor"])
def test_powers_at_zero(exponent: float, frozen: bool) -> None:
    x = np.asarray([[0.0, 2.0, 4.0], [0.0, 1.0, 0.5]])
    e = np.asarray(exponent)
    made = single("Pow", x, e)
    if frozen:
        made = freeze(made, "x1")
    dy = seeds(x.shape)
    if frozen and exponent == 0:
        return  # no gradient at all: nothing depends on x
    found = ours(made, dy)
    wanted = (
        theirs(lambda v: v**exponent, {"x0": x}, dy)
        if frozen
        else theirs(torch.pow, {"x0": x, "x1": e}, dy)
    )
    for name, grad in wanted.items():
        np.testing.assert_allclose(found[f"{name}_grad"], grad, rtol=1e-12)


def test_where_does_not_mix_its_sides() -> None:
    """What was not chosen gets 0, even where the chosen gradient is infinite."""
    chosen = np.asarray([[True, False], [False, True]])
    a, b = np.asarray([[1.0, np.inf], [np.nan, 2.0]]), np.asarray([[np.nan, 3.0], [4.0, np.inf]])
    made = single("Where", chosen, a, b)
    same(made, lambda x, y: torch.where(torch.tensor(chosen), x, y), (2, 2))


def test_gathers_of_the_same_element() -> None:
    x, places = KINKED, np.asarray([1, 1, 0, -1, 1])
    same(single("Gather", x, places, axis=0), lambda v: v[torch.tensor(places)], (5, 5))
    same(single("Gather", x, places, axis=1), lambda v: v[:, torch.tensor(places)], (2, 5))
    index = np.asarray([[0, 0, 4], [4, 4, 4]])
    same(
        single("GatherElements", x, index, axis=1),
        lambda v: torch.gather(v, 1, torch.tensor(index)),
        (2, 3),
    )
    pairs = np.asarray([[0, 0], [0, 0], [1, 4]])
    same(single("GatherND", x, pairs), lambda v: v[pairs[:, 0], pairs[:, 1]], (3,))


def test_top_k_with_ties() -> None:
    """ONNX takes the lower index of equal elements, PyTorch any: by what was taken, both agree."""
    x = np.asarray([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    made = single("TopK", x, np.asarray([2]), outputs=2, out_dtypes=[11, 7], axis=1)
    dy = seeds((2, 2))
    model, feeds = made
    taken = runtime(model, feeds)["y1"]
    np.testing.assert_array_equal(taken, [[1, 2], [0, 1]])
    found = ours(made, dy)["x0_grad"]
    wanted = theirs(lambda v: torch.gather(v, 1, torch.tensor(taken)), {"x": x}, dy)["x"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_max_pools_with_ties(strides: list[int]) -> None:
    """The first element of a window that has its largest value."""
    x = np.asarray([[[[1, 1, 0, 0], [1, 1, 0, 0], [2, 2, 3, 3], [2, 2, 3, 2]]]], np.float64)
    made = narrow(single("MaxPool", x, kernel_shape=[2, 2], strides=strides))
    shape = (1, 1, 3, 3) if strides == [1, 1] else (1, 1, 2, 2)
    same(made, lambda v: F.max_pool2d(v, 2, strides), shape)


def test_global_max_pool_shares_evenly() -> None:
    x = np.asarray([[[[1, 3], [3, 0]], [[2, 2], [2, 2]]]], np.float64)
    same(narrow(single("GlobalMaxPool", x)), lambda v: v.amax((2, 3), keepdim=True), (1, 2, 1, 1))


def test_layer_norm_of_constants() -> None:
    """The variance is 0, and epsilon all that is left."""
    x = np.asarray([[2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    scale, bias = np.asarray([1.0, 2.0, 3.0, 4.0]), np.asarray([0.0, 1.0, 0.0, 1.0])
    made = narrow(single("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-2))
    same(made, lambda v, w, b: F.layer_norm(v, (4,), w, b, 1e-2), (3, 4))


def test_batch_and_group_norm_of_constants() -> None:
    x = np.ones((2, 2, 2, 2)) * np.asarray([2.0, -1.0]).reshape(1, 2, 1, 1)
    scale, bias = np.asarray([1.0, 2.0]), np.asarray([0.5, -0.5])
    made = narrow(single("InstanceNormalization", x, scale, bias, epsilon=1e-2))
    same(made, lambda v, w, b: F.instance_norm(v, weight=w, bias=b, eps=1e-2), (2, 2, 2, 2))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_saturated_softmax(op: str) -> None:
    x = np.asarray([[1000.0, -1000.0, 0.0], [0.0, 0.0, 0.0], [-1e4, -1e4, 1e4], [88.0, 89.0, 88.0]])
    function = F.softmax if op == "Softmax" else F.log_softmax
    same(single(op, x, axis=1), lambda v: function(v, 1), x.shape)


def test_softmax_of_masked_rows() -> None:
    """-inf as masks have it; a row with one element left."""
    x = np.asarray([[0.0, -np.inf, 1.0], [-np.inf, 2.0, -np.inf]])
    same(single("Softmax", x, axis=1), lambda v: F.softmax(v, 1), x.shape)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_that_ignores_labels(reduction: str, weighted: bool) -> None:
    """Labels that are ignored may lie outside the classes."""
    x = np.asarray([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [500.0, -500.0, 0.0], [1.0, 0.0, 0.0]])
    labels = np.asarray([2, -100, 0, 1])
    weights = np.asarray([0.5, 1.0, 2.0]) if weighted else None
    made = narrow(
        single(
            "SoftmaxCrossEntropyLoss", x, labels, weights, ignore_index=-100, reduction=reduction
        )
    )
    if weighted:
        made = freeze(made, "x2")
    kept = None if weights is None else torch.tensor(weights, dtype=torch.float32)
    same(
        made,
        lambda v: F.cross_entropy(
            v, torch.tensor(labels), kept, ignore_index=-100, reduction=reduction
        ),
        (4,) if reduction == "none" else (),
    )


def test_cross_entropy_of_ignored_labels_alone() -> None:
    """A mean over nothing: not a number, and so are the gradients of PyTorch; memplan's too."""
    x, labels = np.asarray([[1.0, 2.0]]), np.asarray([-1])
    made = narrow(single("SoftmaxCrossEntropyLoss", x, labels, ignore_index=-1, reduction="sum"))
    same(
        made,
        lambda v: F.cross_entropy(v, torch.tensor(labels), ignore_index=-1, reduction="sum"),
        (),
    )


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.75])
def test_dropout_by_the_mask_that_was_drawn(ratio: float) -> None:
    x, share = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.asarray(ratio, np.float32)
    made = single("Dropout", x, share, np.asarray(True), outputs=2, out_dtypes=[1, 9], seed=5)
    model, feeds = freeze(made, "x1")
    dy = seeds(x.shape, np.float32)
    trained = build_gradients(model, Request(("y0",), ("x0",), ("dy",)))
    found = runtime(trained, {**feeds, "dy": dy})
    mask = torch.tensor(found["y1"])
    wanted = theirs(lambda v: v * mask / (1 - ratio), {"x0": x}, dy)["x0"]
    np.testing.assert_allclose(found["x0_grad"], wanted, rtol=1e-6)
    assert ratio == 0 or 0 < np.mean(found["y1"]) < 1


def test_what_is_captured_has_the_ties_of_the_installed_pytorch() -> None:
    """Every function of ``helpers/ties.py`` in one step, against its own backward."""
    pytest.importorskip("onnxscript")
    from helpers.ties import CASES, AtTies
    from helpers.torch_steps import captured

    module, one = AtTies(CASES), torch.ones(())
    capture = captured(memplan.TorchStep(module, None, (one,)), weights="embed")
    found = runtime(capture.model, {"one": one.numpy()})
    module(one).backward()
    differ = [
        f"{name}: {grad.tolist()}, PyTorch has {parameter.grad.tolist()}"
        for name, parameter in module.named_parameters()
        if not np.allclose(grad := found[f"{name}_grad"], parameter.grad, rtol=1e-4, atol=1e-6)
    ]
    assert not differ, "\n".join(differ)


@pytest.mark.parametrize("whole", [0.0, 0.5, 1.0])
def test_forms_have_the_share_that_they_are_asked_for(whole: float) -> None:
    """Whatever PyTorch is installed: what a version gives decides, not its number."""
    pytest.importorskip("onnxscript")
    from memplan.pytorch.ties import Shares, tie_table

    table = tie_table(Shares(whole, whole, whole))
    aten = torch.ops.aten
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    assert (aten.clamp_min.default in table) == (whole > 0)
    forms = {aten.fmax.default: torch.ones(3), aten.clamp_min.Tensor: torch.ones(3)}
    if whole == 1:
        forms[aten.clamp_min.default] = 1.0
    for operator, bound in forms.items():
        y = table[operator](x, bound)
        assert y.tolist() == [1, 1, 2]
        if whole:
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert grad.tolist() == [0, whole, 1]
