"""Gradients where a derivative does not exist or two inputs tie, against PyTorch's autograd.

Both run in float64 (float32 where ONNX Runtime has no float64 kernel). PyTorch is the oracle
(``pip install memplan[oracle]``); where ONNX means something else, the case says what and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
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


def ours(made: Made, dy: Array) -> dict[str, Array]:
    """Gradients of Σ y·dy by all float inputs, as the generated graph has them on ONNX Runtime."""
    model, feeds = made
    trained = build_gradients(model, Request(("y0",), tuple(feeds), ("dy",)))
    onnx.checker.check_model(trained, full_check=True)
    return runtime(trained, {**feeds, "dy": dy})


def theirs(
    function: Callable[..., Any], feeds: Mapping[str, Array], dy: Array | None = None
) -> tuple[Array, dict[str, Array]]:
    """``dy`` (default: no two elements alike, none 0), and the same gradients by PyTorch."""
    given = [torch.tensor(array, requires_grad=True) for array in feeds.values()]
    result = function(*given)
    if dy is None:
        dy = np.arange(1, 1 + result.numel()).reshape(result.shape) / 4
    dy = np.asarray(dy, next(iter(feeds.values())).dtype)
    (result * torch.tensor(dy)).sum().backward()
    zeros = [torch.zeros_like(g) if g.grad is None else g.grad for g in given]
    return dy, {name: grad.numpy() for name, grad in zip(feeds, zeros, strict=True)}


def same(made: Made, function: Callable[..., Any]) -> None:
    """Assert that both have the same gradients by every float input."""
    dy, wanted = theirs(function, made[1])
    found, tolerance = ours(made, dy), TOLERANCES[dy.dtype.type]
    for name, grad in wanted.items():
        mine = found[f"{name}_grad"]
        assert mine.shape == grad.shape
        np.testing.assert_allclose(mine, grad, rtol=tolerance, atol=tolerance)


# --- one operator each --------------------------------------------------------------------------

KINKED = np.asarray([[-4.0, -3.0, -1.0, -0.5, -0.0], [0.0, 0.5, 1.0, 3.0, 4.0]])
SMALL = 1e-30
BESIDE = np.asarray([[-SMALL, SMALL, 1 - 1e-6], [3 - 1e-6, 3 + 1e-6, -3 + 1e-6]])
SATURATED = np.asarray([[-1000.0, -88.0, -40.0], [40.0, 88.0, 1000.0]])
ACTIVATIONS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "Relu": ({}, torch.relu),
    "Abs": ({}, torch.abs),
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
}
SMOOTH = ("Sigmoid", "Tanh", "Softplus", "Gelu", "Mish", "Softsign", "HardSwish", "Elu")


class Case:
    """A node and the function of PyTorch that has its gradients.

    ``narrow``: in float32; ``frozen``: inputs that are initializers.
    """

    def __init__(
        self,
        op: str,
        function: Callable[..., Any],
        *inputs: object,
        narrow: bool = False,
        frozen: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        self.op, self.function, self.inputs = op, function, inputs
        self.narrow, self.frozen, self.more = narrow, frozen, more

    def made(self) -> Made:
        """The model and its inputs."""
        inputs = [None if given is None else np.asarray(given) for given in self.inputs]
        model, feeds = single(self.op, *inputs, **self.more)
        if self.narrow:
            model = in_float32(model)
            feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        return freeze((model, feeds), *self.frozen) if self.frozen else (model, feeds)


def activation(op: str, x: Array) -> Case:
    """In float32: ONNX Runtime has few of them in float64."""
    attributes, function = ACTIVATIONS[op]
    return Case(op, function, x, narrow=True, opset=22, **attributes)


TIED = [
    [[1.0, 2.0, 3.0, -0.0], [4.0, 4.0, -5.0, 0.0]],
    [[1.0, 1.0, 3.0, 0.0], [4.0, 5.0, -5.0, -0.0]],
]
THREE = [[1.0, 2.0, 0.0, 2.0], [1.0, 1.0, 0.0, 2.0], [1.0, 2.0, 0.0, 1.0]]
ROWS = np.asarray([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [-0.0, 0.0, 5.0, -5.0]])
HALF_ZERO = np.asarray([[0.0, -0.0, 0.0], [0.0, 3.0, -4.0]])
BASES = [[0.0, 2.0, 4.0], [0.0, 1.0, 0.5]]
LARGE = [[0.0, 0.0, 0.0], [80.0, -80.0, 80.0]]
EXTREMES = {"Max": (torch.maximum, torch.amax), "Min": (torch.minimum, torch.amin)}
CHOSEN = np.asarray([[True, False], [False, True]])
PLACES, INDEX = np.asarray([1, 1, 0, -1, 1]), np.asarray([[0, 0, 4], [4, 4, 4]])
PAIRS = np.asarray([[0, 0], [0, 0], [1, 4]])
IMAGE = [[[[1.0, 1, 0, 0], [1, 1, 0, 0], [2, 2, 3, 3], [2, 2, 3, 2]]]]
ONES = np.ones((2, 2, 2, 2)) * np.asarray([2.0, -1.0]).reshape(1, 2, 1, 1)
LOGITS = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [500.0, -500.0, 0.0], [1.0, 0.0, 0.0]]
LABELS = np.asarray([2, -100, 0, 1])

CASES = {
    **{f"{op} at kinks": activation(op, KINKED) for op in ACTIVATIONS},
    **{f"{op} beside kinks": activation(op, BESIDE) for op in ACTIVATIONS},
    **{f"{op} saturated": activation(op, SATURATED) for op in SMOOTH},
    # PyTorch's has the slope 1/6; ONNX's default is 0.2.
    "HardSigmoid": Case("HardSigmoid", F.hardsigmoid, KINKED, narrow=True, alpha=1 / 6, beta=0.5),
    "PRelu": Case("PRelu", F.prelu, KINKED, [0.25], narrow=True),
    "Clip by bounds that are learnt": Case(  # between and beyond the bounds
        "Clip",
        lambda v, low, high: torch.minimum(torch.maximum(v, low), high),
        *([[-4.0, -1.5, 0.0], [0.5, 0.75, 2.0]], -1.0, 1.0),
    ),
    **{f"{op} of two": Case(op, two, *TIED) for op, (two, _) in EXTREMES.items()},
    # Shared evenly, as along an axis.
    **{
        f"{op} of three": Case(op, lambda *given, f=f: f(torch.stack(given), 0), *THREE)
        for op, (_, f) in EXTREMES.items()
    },
    **{
        f"Reduce{op} {axes}": Case(
            f"Reduce{op}", lambda v, f=f, axes=axes: f(v, axes), ROWS, axes, keepdims=0
        )
        for (op, (_, f)), axes in product(EXTREMES.items(), [(1,), (0,), (0, 1)])
    },
    **{
        f"ReduceL{order} {axes} {name}": Case(
            f"ReduceL{order}",
            lambda v, order=order, axes=axes: torch.linalg.vector_norm(v, order, axes),
            *(x, axes),
            keepdims=0,
        )
        for order, axes, (name, x) in product(
            [1, 2], [(1,), (0, 1)], [("some zeros", HALF_ZERO), ("zeros", HALF_ZERO * 0)]
        )
    },
    "ReduceProd": Case(  # no zero, one and two of them in a row
        "ReduceProd",
        lambda v: v.prod(1),
        *([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]], [1]),
        keepdims=0,
    ),
    "ReduceLogSumExp": Case(
        "ReduceLogSumExp", lambda v: torch.logsumexp(v, 1), LARGE, [1], keepdims=0
    ),
    "ReduceSumSquare": Case("ReduceSumSquare", lambda v: (v * v).sum(1), LARGE, [1], keepdims=0),
    "ReduceMean": Case("ReduceMean", lambda v: v.mean(1), LARGE, [1], keepdims=0),
    **{
        f"Pow by the number {e}": Case("Pow", lambda v, e=e: v**e, BASES, e, frozen=("x1",))
        for e in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    },
    **{
        f"Pow by a tensor of {e}": Case("Pow", torch.pow, BASES, e)
        for e in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    },
    # What was not chosen gets 0, even where the chosen gradient is infinite.
    "Where": Case(
        "Where",
        lambda x, y: torch.where(torch.tensor(CHOSEN), x, y),
        *(CHOSEN, [[1.0, np.inf], [np.nan, 2.0]], [[np.nan, 3.0], [4.0, np.inf]]),
    ),
    "Gather of rows": Case("Gather", lambda v: v[torch.tensor(PLACES)], KINKED, PLACES, axis=0),
    "Gather of columns": Case(
        "Gather", lambda v: v[:, torch.tensor(PLACES)], KINKED, PLACES, axis=1
    ),
    "GatherElements": Case(
        "GatherElements", lambda v: torch.gather(v, 1, torch.tensor(INDEX)), KINKED, INDEX, axis=1
    ),
    "GatherND": Case("GatherND", lambda v: v[PAIRS[:, 0], PAIRS[:, 1]], KINKED, PAIRS),
    # The first element of a window that has its largest value.
    **{
        f"MaxPool by {step}": Case(
            "MaxPool",
            lambda v, step=step: F.max_pool2d(v, 2, step),
            IMAGE,
            narrow=True,
            kernel_shape=[2, 2],
            strides=[step, step],
        )
        for step in (1, 2)
    },
    "GlobalMaxPool": Case(  # shared evenly
        "GlobalMaxPool",
        lambda v: v.amax((2, 3), keepdim=True),
        [[[[1.0, 3], [3, 0]], [[2, 2], [2, 2]]]],
        narrow=True,
    ),
    "LayerNormalization of constants": Case(  # the variance is 0, and epsilon all that is left
        "LayerNormalization",
        lambda v, w, b: F.layer_norm(v, (4,), w, b, 1e-2),
        [[2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]],
        *([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]),
        narrow=True,
        axis=-1,
        epsilon=1e-2,
    ),
    "InstanceNormalization of constants": Case(
        "InstanceNormalization",
        lambda v, w, b: F.instance_norm(v, weight=w, bias=b, eps=1e-2),
        *(ONES, [1.0, 2.0], [0.5, -0.5]),
        narrow=True,
        epsilon=1e-2,
    ),
    **{
        f"{op} saturated": Case(
            op,
            lambda v, f=f: f(v, 1),
            [[1000.0, -1000.0, 0.0], [0.0, 0.0, 0.0], [-1e4, -1e4, 1e4], [88.0, 89.0, 88.0]],
            axis=1,
        )
        for op, f in (("Softmax", F.softmax), ("LogSoftmax", F.log_softmax))
    },
    "Softmax of masked rows": Case(  # -inf as masks have it; a row with one element left
        "Softmax",
        lambda v: F.softmax(v, 1),
        [[0.0, -np.inf, 1.0], [-np.inf, 2.0, -np.inf]],
        axis=1,
    ),
    # Labels that are ignored may lie outside the classes.
    **{
        f"{reduction} of losses, weights {weights}": Case(
            "SoftmaxCrossEntropyLoss",
            lambda v, how=reduction, w=weights: F.cross_entropy(
                v,
                torch.tensor(LABELS),
                None if w is None else torch.tensor(w),
                ignore_index=-100,
                reduction=how,
            ),
            *(LOGITS, LABELS, weights),
            narrow=True,
            frozen=() if weights is None else ("x2",),
            ignore_index=-100,
            reduction=reduction,
        )
        for reduction, weights in product(["mean", "sum", "none"], [None, [0.5, 1.0, 2.0]])
    },
    "losses of ignored labels alone": Case(
        "SoftmaxCrossEntropyLoss",
        lambda v: F.cross_entropy(v, torch.tensor([-1]), ignore_index=-1, reduction="sum"),
        *([[1.0, 2.0]], [-1]),
        narrow=True,
        ignore_index=-1,
        reduction="sum",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    same(CASES[name].made(), CASES[name].function)


# --- what more is to be said ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "function"), [("Sign", torch.sign), ("Floor", torch.floor), ("Round", torch.round)]
)
def test_steps_have_no_gradient(op: str, function: Any) -> None:
    """Beside another use of x, whose gradient is then all there is."""
    nodes = [
        onnx.helper.make_node(op, ["x0"], ["s"]),
        onnx.helper.make_node("Mul", ["s", "x0"], ["y0"]),
    ]
    made = model_of(nodes, {"x0": KINKED}, {"y0": onnx.TensorProto.DOUBLE})
    same(made, lambda x: function(x) * x)


def test_clip_at_its_bounds() -> None:
    """0, as PyTorch's hardtanh and relu6 have it, and its clamp since 2.14; before, that has 1."""
    dy, wanted = theirs(lambda v: F.hardtanh(v, -1.0, 1.0), {"x0": KINKED})
    found = ours(single("Clip", KINKED, np.asarray(-1.0), np.asarray(1.0)), dy)
    np.testing.assert_array_equal(found["x0_grad"], wanted["x0"])


def test_square_root_at_zero() -> None:
    """Infinite on both sides."""
    x = np.asarray([[0.0, 4.0], [0.0, 1.0]])
    dy, wanted = theirs(torch.sqrt, {"x": x}, np.asarray([[1.0, 2.0], [-1.0, 3.0]]))
    np.testing.assert_array_equal(ours(single("Sqrt", x), dy)["x0_grad"], wanted["x"])


def test_top_k_with_ties() -> None:
    """ONNX takes the lower index of equal elements, PyTorch any: by what was taken, both agree."""
    x = np.asarray([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    made = single("TopK", x, np.asarray([2]), outputs=2, out_dtypes=[11, 7], axis=1)
    taken = runtime(*made)["y1"]
    np.testing.assert_array_equal(taken, [[1, 2], [0, 1]])
    same(made, lambda v: torch.gather(v, 1, torch.tensor(taken)))


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.75])
def test_dropout_by_the_mask_that_was_drawn(ratio: float) -> None:
    x, share = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.asarray(ratio, np.float32)
    made = single("Dropout", x, share, np.asarray(True), outputs=2, out_dtypes=[1, 9], seed=5)
    model, feeds = freeze(made, "x1")
    trained = build_gradients(model, Request(("y0",), ("x0",), ("dy",)))
    dy = np.arange(1, 25, dtype=np.float32).reshape(4, 6) / 4
    found = runtime(trained, {**feeds, "dy": dy})
    mask = torch.tensor(found["y1"])
    _, wanted = theirs(lambda v: v * mask / (1 - ratio), {"x0": x}, dy)
    np.testing.assert_allclose(found["x0_grad"], wanted["x0"], rtol=1e-6)
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
