"""Pieces of training code against PyTorch, a row each: gradients that are not those of the forward
graph, backwards and hooks of the user's own, what a step writes, and what ONNX has no form of."""

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.torch_steps import Reversed, captured, errors_by_name, outputs_of
from helpers.with_torch import F, nn, torch
from memplan.api.capture.capture_check import CaptureDiffersError
from memplan.errors import ModelError
from memplan.proto.surrogates import DOMAIN

checkpoint = torch.utils.checkpoint.checkpoint
TOLERANCE = 1e-4
"""Relative, in float32."""
Step = Callable[..., Any]
PIECES: dict[str, Step] = {}
"""Losses of a :class:`Net` and of what their other parameters name in :func:`batch`."""


class Net(nn.Module):
    """What all rows are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.rows, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.conv, self.deep = nn.Conv2d(1, 2, 3, padding=1), nn.Conv3d(1, 2, 2, bias=False)
        self.lstm, self.gru, self.rnn = (
            kind(4, 4, 2, dropout=0.5, batch_first=True) for kind in (nn.LSTM, nn.GRU, nn.RNN)
        )
        self.zero = nn.Parameter(torch.zeros(4))
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.fixed, self.last = torch.linspace(-1.0, 1.0, 4), None


def batch() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "x": torch.randn(6, 4),
        "labels": torch.tensor([0, 1, -100, 3, 2, 2]),
        "likely": torch.rand(6, 4).softmax(1),
        "truth": torch.tensor([[1.0, 0.0, 0.0, 1.0]]).repeat(6, 1),
        "tokens": torch.tensor([[0, 2, 3], [2, 2, 1], [6, 5, 5]]),
        "several": torch.tensor([[3, 0, -1, 1]]).repeat(6, 1),
        "image": torch.randn(2, 1, 7, 7),
        "volume": torch.randn(1, 1, 4, 4, 4),
    }


def inputs_of(step: Step) -> list[str]:
    return list(inspect.signature(step).parameters)[1:]


def piece(step: Step) -> Step:
    PIECES[step.__name__] = step
    return step


def end(m: Any, h: Any) -> Any:
    return m.b(h).square().mean()


# --- Where no gradient goes -----------------------------------------------------------------------


@piece
def detach_in_place(m: Any, x: Any) -> Any:
    h = m.a(x)
    g = h * 1
    g.detach_()
    return (m.b(h) * g).sum()


@piece
def straight_through(m: Any, x: Any) -> Any:
    h = m.a(x)
    return (h + (h.round() - h).detach()).square().mean()


@piece
def teacher(m: Any, x: Any) -> Any:
    with torch.no_grad():
        t = m.a(x)
    return F.mse_loss(m.b(m.a(x)), t)


@piece
def gradients_switched_off_and_on(m: Any, x: Any) -> Any:
    torch.set_grad_enabled(False)
    t = m.a(x)
    torch.set_grad_enabled(True)
    return F.mse_loss(m.b(m.a(x)), t)


@piece
def no_grad_around_enable_grad(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        t = h * 2
        with torch.enable_grad():
            q = m.b(t) * h
        m.mean.mul_(0.9).add_(h.mean(0))
    return (t * m.b(h) * q * m.mean).sum()


@piece
def gradients_of_several_batches(m: Any, x: Any) -> Any:
    """As docs/commands/capture.md says it: a loop without several calls of backward."""
    parts = x.chunk(3)
    return sum(end(m, m.a(part).tanh()) / len(parts) for part in parts)


@piece
def inference_mode(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.inference_mode():
        t = h * 2
    return (m.b(h) - t).sum()


@piece
def data_of_a_buffer_is_changed(m: Any, x: Any) -> Any:
    h = m.a(x)
    m.mean.data.mul_(0.5).add_(h.detach().mean(0))
    return (h * m.mean).sum()


@piece
def data_of_a_buffer_is_set(m: Any, x: Any) -> Any:
    h = m.a(x)
    m.mean.data = h.detach().mean(0)
    return (h * m.mean).sum()


@piece
def requires_grad_is_switched(m: Any, x: Any) -> Any:
    m.a.weight.requires_grad_(False)
    h = m.a(x)
    m.a.weight.requires_grad_(True)
    return m.b(h).square().sum()


@piece
def a_module_is_frozen_for_a_while(m: Any, x: Any) -> Any:
    for p in m.a.parameters():
        p.requires_grad = False
    h = m.a(m.b(x))
    for p in m.a.parameters():
        p.requires_grad = True
    return h.square().sum()


@piece
def changed_in_place_without_gradient(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h.mul_(2)
        h *= 1.5
    return m.b(h).square().sum()


@piece
def made_without_gradient_and_filled_with_one(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        k = h * 1
    k[1] = h[0]
    return (m.b(h) * k).square().sum()


@piece
def detach_in_a_branch(m: Any, x: Any) -> Any:
    branches = (lambda h: (h.detach() * h).sum(), lambda h: h.sum())
    return torch.cond(x.sum() > 0, *branches, (m.a(x),))


@piece
def divided_by_a_detached_norm(m: Any, x: Any) -> Any:
    h = m.b(m.a(x))
    return (h / h.detach().abs().max()).square().sum()


PIECES |= {
    "detach": lambda m, x: (m.a(x).detach() * m.b(m.a(x))).sum(),
    "a_part_behind_detach": lambda m, x: end(m, m.a(x).detach()),
    "data": lambda m, x: (m.a(x) * m.a(x).data).sum(),
}


# --- Losses and operators that are written in others ----------------------------------------------

WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0])
GROUPS = torch.tensor([[0, 1, 2, 1]]).repeat(6, 1)


def smoothed(**options: Any) -> Step:
    return lambda m, x, labels: F.cross_entropy(m.a(x), labels, label_smoothing=0.1, **options)


@piece
def smoothed_over_positions(m: Any, x: Any, labels: Any) -> Any:
    logits = m.a(x).reshape(2, 3, 4).transpose(1, 2)
    return nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels.reshape(2, 3))


@piece
def soft_labels(m: Any, x: Any, likely: Any) -> Any:
    losses = F.cross_entropy(m.a(x), likely, weight=WEIGHT, label_smoothing=0.1)
    return losses + F.cross_entropy(m.b(x), likely) + F.cross_entropy(m.c(x), m.a(x).softmax(1))


@piece
def large_logits(m: Any, x: Any, truth: Any) -> Any:
    pos_weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = F.binary_cross_entropy_with_logits(m.a(x) * 200, truth, pos_weight=pos_weight)
    second = F.binary_cross_entropy_with_logits(m.b(x), truth, weight=pos_weight, reduction="none")
    third = F.multilabel_soft_margin_loss(m.c(x) * 200, truth, reduction="sum")
    return first + second.square().sum() + third - F.logsigmoid(m.c(x) * 200).sum()


@piece
def norms_of_nothing(m: Any, x: Any) -> Any:
    nothing = m.a(x) * 0
    apart = F.pairwise_distance(nothing, m.b(x) * 0, p=3.0, eps=0.0)
    norms = torch.linalg.vector_norm(nothing, ord=3, dim=1) + F.normalize(nothing, p=3.0).sum(1)
    return (apart + norms).sum() + m.a(x).sum() + m.b(x).sum()


@piece
def distances(m: Any, x: Any) -> Any:
    h, many = m.a(x), m.b(x).repeat(5, 1)
    nearest = m.rows.weight[torch.cdist(h, m.rows.weight).argmin(1)]
    pairs = torch.cdist(h, h).sum() + torch.cdist(h, m.c(x), p=1.0).sum()
    return F.mse_loss(nearest, h.detach()) + pairs + torch.cdist(many, h).square().sum()


@piece
def means_of_scattered(m: Any, x: Any) -> Any:
    begun = m.b(x)[:3]
    means = begun.scatter_reduce(0, GROUPS, m.a(x), "mean")
    without = begun.scatter_reduce(0, GROUPS, m.a(x), "mean", include_self=False)
    return means.square().sum() + without.square().sum()


@piece
def gradients_by_frequency(m: Any, tokens: Any) -> Any:
    rows = F.embedding(tokens, m.rows.weight, padding_idx=5, scale_grad_by_freq=True)
    return rows.square().sum()


@piece
def divisor_of_an_average(m: Any, image: Any) -> Any:
    y = m.conv(image)
    first = F.avg_pool2d(y, 2, 2, divisor_override=3)
    second = F.avg_pool2d(y, 2, padding=1, ceil_mode=True, divisor_override=3)
    return first.square().sum() + second.square().sum()


@piece
def windows_that_begin_behind_the_image(m: Any, image: Any) -> Any:
    y = m.conv(image)
    inside = F.avg_pool2d(y, 2, padding=1, ceil_mode=True, count_include_pad=False)
    largest = nn.MaxPool2d(2, 4, ceil_mode=True)(y)
    return F.avg_pool2d(y, 2, padding=1, ceil_mode=True).square().sum() + (
        inside.square().sum() + largest.square().sum()
    )


PIECES |= {
    "smoothed_mean": smoothed(),
    "smoothed_mean_weighted": smoothed(weight=WEIGHT),
    "smoothed_sum": smoothed(reduction="sum"),
    "smoothed_sum_weighted": smoothed(reduction="sum", weight=WEIGHT),
    "smoothed_one_by_one": lambda m, x, labels: (
        smoothed(reduction="none")(m, x, labels) * torch.arange(6.0)
    ).sum(),
    "one_sample": lambda m, x: F.cross_entropy(m.a(x)[0], torch.tensor(2)),
    "gaussian": lambda m, x, likely: F.gaussian_nll_loss(
        m.a(x), likely, m.b(x).relu(), full=True, eps=1e-2
    ),
    "several_labels": lambda m, x, several: F.multilabel_margin_loss(m.a(x), several),
    "logarithms_of_sums": lambda m, x: (
        torch.logaddexp(m.a(x) * 100, m.b(x) * 100).sum() + torch.logaddexp2(m.a(x), x).sum()
    ),
    "bounds_of_two_types": lambda m, x: m.a(x).clamp(0, 0.5).square().sum(),
    "padding_index": lambda m, tokens: (
        F.embedding(tokens, m.rows.weight, padding_idx=-5).square().sum()
    ),
    "product_with_a_logarithm": lambda m, x: (
        torch.xlogy(m.zero, x.abs() + 1).sum() + m.a(x).square().mean()
    ),
    "convolution_of_volumes_without_bias": lambda m, volume: m.deep(volume).square().sum(),
}


# --- Backwards of the user's own ------------------------------------------------------------------


class Binary(torch.autograd.Function):
    """Straight through, within bounds."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.where(x > 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Pair(torch.autograd.Function):
    """Two inputs, two outputs, a context of its own, and a gradient for only one."""

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x * y, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        x, y = ctx.saved_tensors
        return 2 * first * y + second, (x * first if ctx.needs_input_grad[1] else None)


class Clipped(torch.autograd.Function):
    """The gradient within bounds, which a sum of gradients is not."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        found = grad.clone()
        found[found > 0.02] = 0.02
        return found / (1 + grad.abs().sum())


class Ranked(torch.autograd.Function):
    """Integers, a tensor without gradient, and a number beside the result."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: int) -> Any:
        values, order = x.sort(-1)
        size = x.abs().mean()
        ctx.mark_non_differentiable(size)
        ctx.save_for_backward(order)
        ctx.factor = factor
        return order, values, size

    @staticmethod
    def backward(ctx: Any, of_order: Any, grad: Any, of_size: Any) -> Any:
        (order,) = ctx.saved_tensors
        # PyTorch gives zeros for what has no gradient.
        return ctx.factor * torch.zeros_like(grad).scatter(-1, order, grad + of_size), None


class Turned(torch.autograd.Function):
    """A product in the backward alone."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad @ (x.t() @ x)


class Scaled(torch.autograd.Function):
    """A gradient that is larger than its tensor, and an argument with a default."""

    @staticmethod
    def forward(x: Any, bias: Any, slope: float = 1.0) -> Any:
        return x * slope + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.slope = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * ctx.slope * grad, grad * 4, None


def in_place_threefold(grad: Any) -> None:
    grad.mul_(3)


def tenfold(grad: Any) -> Any:
    return grad * 10


def hooked(h: Any, *hooks: Any) -> Any:
    for hook in hooks:
        h.register_hook(hook)
    return h


@piece
def two_results(m: Any, x: Any) -> Any:
    h = m.a(x)
    product, total = Pair.apply(h, m.b(h))
    return (product + total.tanh()).mean()


@piece
def twice_from_one_tensor(m: Any, x: Any) -> Any:
    """Two calls that read the same, of a backward that is not linear."""
    h = m.a(x)
    return end(m, Clipped.apply(h) + 2 * Clipped.apply(h))


@piece
def several_kinds_of_outputs(m: Any, x: Any) -> Any:
    order, values, size = Ranked.apply(m.a(x), 2)
    return (m.b(values) * size).square().mean() + 0 * order.sum()


@piece
def hook_behind_a_function(m: Any, x: Any) -> Any:
    h = hooked(Reversed.apply(m.a(x), 0.5), lambda grad: grad.sign())
    with torch.no_grad():
        target = m.b(h)
    return (m.b(h) - 2 * target).square().mean()


@piece
def constants_and_statistics(m: Any, x: Any) -> Any:
    m.last = h = m.norm(m.a(x)) * m.fixed + torch.tensor([1.0, 2.0, 3.0, 4.0])
    m.mean = 0.9 * m.mean + h.detach().mean(0)
    return end(m, Binary.apply(h))


@piece
def parameter_hook_in_forward(m: Any, x: Any) -> Any:
    if not m.a.weight._backward_hooks:  # or each step would add one
        m.a.weight.register_hook(tenfold)
    return end(m, m.a(x) + m.a(x.flip(0)))


@piece
def detached_beside(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        target = m.b(h)
    return (Reversed.apply(m.b(h.detach()), 1.0) - target).square().mean() + h.mean()


@piece
def under_autocast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        h = m.a(x)
    return end(m, Reversed.apply(h.float(), 0.5))


@piece
def function_under_autocast(m: Any, x: Any) -> Any:
    """Whose backward PyTorch runs outside of the block, in float32."""
    h = m.a(x)
    with torch.autocast("cpu", torch.bfloat16):
        h = Turned.apply(h)
    return end(m, h)


@piece
def in_a_checkpoint(m: Any, x: Any) -> Any:
    return end(m, checkpoint(lambda x: Reversed.apply(m.a(x), 2.0), x, use_reentrant=False))


PIECES |= {
    "custom_function": lambda m, x: end(m, Reversed.apply(m.a(x), 0.5)),
    "binary": lambda m, x: end(m, Binary.apply(m.a(x))),
    "broadcast": lambda m, x: end(m, Scaled.apply(m.a(x), m.a.bias, slope=0.5)),
    "not_all_outputs_are_read": lambda m, x: Pair.apply(m.a(x), m.b(m.a(x)))[0].mean(),
    "tensor_hook": lambda m, x: end(m, hooked(m.a(x), tenfold)),
    "clipped_by_hook": lambda m, x: end(m, hooked(m.a(x), lambda g: g.clamp(-0.01, 0.01))),
    "hook_in_place": lambda m, x: end(m, hooked(m.a(x), in_place_threefold)),
    "hook_that_only_looks": lambda m, x: end(m, hooked(m.a(x), lambda grad: None)),
    "hook_of_the_loss": lambda m, x: hooked(end(m, m.a(x)), lambda grad: 5 * grad),
}


# --- What a step writes ---------------------------------------------------------------------------


@piece
def statistics(m: Any, x: Any) -> Any:
    """The mean is written in place, read where a gradient is taken, and then assigned."""
    m.mean.mul_(0.5)
    h = m.a(x) * m.mean
    m.mean = 0.9 * m.mean + 0.1 * h.detach().mean(0)
    m.count = m.count + 1
    return (h * m.mean).square().mean()


@piece
def a_teacher_that_follows(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.frozen.weight.mul_(0.9).add_(m.a.weight, alpha=0.1)
    return (m.a(x) - m.frozen(x)).square().mean()


# --- All of them ----------------------------------------------------------------------------------

JOINT = 9
"""So many rows make one step, each with weights of its own: most of a capture's time is not spent
on its nodes."""
ROUGH = ("under_autocast", "function_under_autocast")


def joint(rows: Mapping[str, Step]) -> tuple[Any, dict[str, Any], Step]:
    """A model, its batch and its loss, of these rows; the loss of each is a metric."""
    torch.manual_seed(0)
    one = Net()
    module = nn.ModuleDict({name: copy.deepcopy(one) for name in rows})
    wanted = {key for step in rows.values() for key in inputs_of(step)}

    def loss(module: Any, **given: Any) -> Any:
        found = {
            name: step(module[name], *(given[key] for key in inputs_of(step)))
            for name, step in rows.items()
        }
        return torch.stack([*found.values()]).sum(), found

    return module, {key: value for key, value in batch().items() if key in wanted}, loss


def held(value: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in value.state_dict().items()}


def compare(module: Any, given: dict[str, Any], loss: Step, **settings: Any) -> memplan.Capture:
    """Hold losses, gradients and everything that a step writes against PyTorch's."""
    before = held(module)
    capture = captured(memplan.TorchStep(module, loss, given), **settings)
    found = outputs_of(capture.model, {name: value.numpy() for name, value in given.items()})
    module.load_state_dict(before)
    errors = errors_by_name(
        capture,
        module,
        list(given.values()),
        lambda: loss(module, **given),
        part=lambda name: name.partition(".")[0],
    )
    roots = {name: name.partition(".")[0] for name in errors}
    rough = {n: 100 * TOLERANCE for n, root in roots.items() if root in ROUGH}
    if rough:
        rough["loss"] = 100 * TOLERANCE
    assert {n: e for n, e in errors.items() if e > rough.get(n, TOLERANCE)} == {}
    after = {n: new for n, new in held(module).items() if not torch.equal(new, before[n])}
    assert set(capture.contract.new_values.values()) == set(after)
    for new, old in capture.contract.new_values.items():
        np.testing.assert_allclose(found[new], after[old], rtol=1e-4, atol=1e-5, err_msg=old)
    return capture


@pytest.mark.parametrize("first", range(0, len(PIECES), JOINT))
def test_loss_gradients_and_state_are_those_of_pytorch(first: int) -> None:
    capture = compare(*joint(dict([*PIECES.items()][first : first + JOINT])))
    assert {node.domain for node in capture.model.graph.node} == {""}
    assert DOMAIN not in {item.domain for item in capture.model.opset_import}


def a_choice_that_is_drawn(m: Any, x: Any) -> Any:
    """PyTorch detaches within its own function."""
    return (F.gumbel_softmax(m.a(x), hard=True) * m.b(x)).square().sum()


def a_branch_without_gradients(m: Any, x: Any) -> Any:
    with torch.no_grad():
        wanted = torch.cond(x.sum() > 0, m.a, m.b, (m.c(x),))
    return F.mse_loss(m.a(m.c(x)), wanted)


@pytest.mark.parametrize("step", [a_choice_that_is_drawn, a_branch_without_gradients])
def test_stops_within_what_pytorch_calls_are_right_by_the_check(step: Step) -> None:
    check = captured(memplan.TorchStep(Net(), step, {"x": batch()["x"]})).check
    assert check.verdict == "equal", check.lines


def test_a_batch_that_is_written_over_is_not_handed_out() -> None:
    x = batch()["x"]

    def step(m: Any, x: Any) -> Any:
        return m.a(x.mul_(2)).square().mean()

    net = nn.ModuleDict({"a": nn.Linear(4, 4)})
    capture = captured(memplan.TorchStep(net, step, {"x": x.clone()}))
    found = outputs_of(capture.model, {"x": x.numpy()})
    assert set(found) == {"loss", "a.weight_grad", "a.bias_grad"}
    np.testing.assert_allclose(found["loss"], step(net, x.clone()).detach(), rtol=1e-5)


def test_modules_in_a_branch_of_torch_cond() -> None:
    def step(m: Any, x: Any) -> Any:
        return torch.cond(x.abs().sum() > 0, m.a, m.frozen, (x,)).square().mean()

    compare(Net(), {"x": batch()["x"]}, step)


def test_sizes_stay_dynamic_and_nodes_tell_their_modules() -> None:
    def step(m: Any, x: Any) -> Any:
        with torch.no_grad():
            target = m.frozen(x)
        return constants_and_statistics(m, x) + F.mse_loss(m.a(x), target)

    net = Net()
    capture = compare(net, {"x": batch()["x"]}, step, dynamic="batch")
    sizes = {v.name: v.type.tensor_type.shape for v in capture.model.graph.input}
    assert sizes["x"].dim[0].dim_param == "batch"
    properties = (p for node in capture.model.graph.node for p in node.metadata_props)
    told = {p.value for p in properties if p.key == "memplan.module"}
    assert {"a", "norm", "b", "frozen"} <= told
    told = {p.key: p.value for p in capture.model.metadata_props}
    assert set(json.loads(told["memplan.gradients"]).values()) == set(capture.trained)
    onnx.checker.check_model(capture.model)


# --- Hooks that the model brings ------------------------------------------------------------------


def plain(m: Any, x: Any) -> Any:
    return end(m, m.a(x).tanh() + m.a(-x))


def with_parameter_hook() -> Any:
    net = Net()
    net.a.weight.register_hook(tenfold)
    net.b.weight.requires_grad_(False)
    return net


def with_tied_hook() -> Any:
    net = Net()
    net.a = nn.Sequential(nn.Linear(4, 4, bias=False), net.a)
    net.a[1].weight.register_hook(tenfold)
    net.third = net.a[1]
    return net


def with_two_hooks() -> Any:
    """The second is given what the first gives."""
    net = with_parameter_hook()
    net.a.weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
    return net


@pytest.mark.parametrize("make", [with_parameter_hook, with_tied_hook, with_two_hooks])
def test_hooks_that_the_model_brings(make: Any) -> None:
    torch.manual_seed(0)
    compare(make(), {"x": batch()["x"]}, plain)


def test_a_function_without_a_gradient_changes_nothing() -> None:
    """Under ``no_grad``, or of the batch alone, its backward is never called."""

    def step(m: Any, x: Any) -> Any:
        with torch.no_grad():
            target = Reversed.apply(m.a(x), 1.0)
        return F.mse_loss(m.b(target) + Reversed.apply(x, 1.0), target)

    assert captured(memplan.TorchStep(Net(), step, {"x": batch()["x"]})).trained


def test_a_scaled_loss_an_optimizer_and_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    net, x = Net(), batch()["x"]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = held(net)
    given = memplan.TorchStep(net, constants_and_statistics, {"x": x}, optimizer, scaler=1024.0)
    capture = captured(given)
    assert net.last is None
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    found = outputs_of(capture.model, {"x": x.numpy()})
    constants_and_statistics(net, x).backward()
    wanted = net.b.weight - 0.1 * net.b.weight.grad
    new = next(n for n, old in capture.contract.new_values.items() if old == "b.weight")
    np.testing.assert_allclose(found[new], wanted.detach(), atol=1e-6)


# --- What cannot be said --------------------------------------------------------------------------


def with_full_backward_hook() -> Any:
    net = Net()
    net.b.register_full_backward_hook(lambda _m, given, _o: tuple(-3 * g for g in given))
    return net


def with_full_backward_pre_hook() -> Any:
    net = Net()
    net.b.register_full_backward_pre_hook(lambda _m, grads: tuple(-3 * g for g in grads))
    return net


def with_late_hook() -> Any:
    net = Net()
    net.a.weight.register_post_accumulate_grad_hook(lambda p: None)
    return net


def with_a_frozen_weight() -> Any:
    net = Net()
    net.a.weight.requires_grad_(False)
    return net


def node_hook(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.grad_fn.register_hook(lambda given, _: tuple(g if g is None else 3 * g for g in given))
    return end(m, h)


def saved_tensors(m: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, tenfold):
        return end(m, m.a(x))


def read_before(m: Any, x: Any) -> Any:
    h = m.a(x)
    early = m.b(h)
    return (early * hooked(h, tenfold)).square().mean()


def removed(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.register_hook(tenfold).remove()
    return end(m, h)


def from_outside_of_a_block(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        m.a.weight.register_hook(tenfold)
        h = m.a(x)
    return end(m, h.float()) + m.a.weight.sum()


class Written(Binary):
    """In place."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.mul_(2)


class Missing(Pair):
    """A pair that asks which gradient there is."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        Pair.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)


class Noted(torch.autograd.Function):
    """A backward that writes a buffer."""

    @staticmethod
    def forward(ctx: Any, x: Any, seen: Any) -> Any:
        ctx.seen = seen
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.seen.copy_(grad.mean(0))
        return grad, None


class Peeking(Reversed):
    """A backward that cannot be traced."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad / float(grad.abs().max()), None


def in_a_branch(m: Any, x: Any) -> Any:
    branches = (lambda h: Reversed.apply(h, 1.0).sum(), lambda h: h.sum())
    return torch.cond(x.abs().sum() > 0, *branches, (m.a(x),))


def changed_behind_autograds_back(m: Any, x: Any) -> Any:
    h = m.a(x) * 1
    h.detach().mul_(2)
    return m.b(h).square().sum()


def a_view_changed_behind_autograds_back(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h[0].mul_(2)
    return m.b(h).square().sum()


def sequences(m: Any, x: Any) -> Any:
    logs = m.a(x)[:, None].log_softmax(-1)
    return F.ctc_loss(logs, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))


def thawed(m: Any, x: Any) -> Any:
    m.a.weight.requires_grad_(True)
    return m.a(x).sum()


LINE = r"test_captured_pieces\.py:\d+\)"
# Who brings it, the step, and what the refusal names; with the line of the code where there is one.
REFUSED: dict[str, tuple[Any, Step, str]] = {
    "backward hook": (with_full_backward_hook, plain, f"module hook '<lambda> on b'.*{LINE}"),
    "pre-hook": (with_full_backward_pre_hook, plain, f"module hook '<lambda> on b'.*{LINE}"),
    "late hook": (
        with_late_hook,
        plain,
        f"post-accumulate-grad hook '<lambda> on a.weight'.*{LINE}",
    ),
    "node hook": (Net, node_hook, f"autograd node 'AddmmBackward0'.*{LINE}"),
    "saved tensors": (Net, saved_tensors, f"saved-tensor hook 'tenfold'.*{LINE}"),
    "read before": (Net, read_before, f"tensor hook 'tenfold'.*{LINE}"),
    "hooked twice": (
        Net,
        lambda m, x: end(m, hooked(m.a(x), tenfold, lambda grad: grad.sign())),
        f"tensor hook '<lambda>'.*{LINE}",
    ),
    "written behind": (
        Net,
        lambda m, x: end(m, hooked(m.a(x), tenfold).mul_(2)),
        f"tensor hook 'tenfold'.*{LINE}",
    ),
    "removed": (Net, removed, f"tensor hook 'tenfold'.*{LINE}"),
    "from outside": (Net, from_outside_of_a_block, f"tensor hook 'tenfold'.*{LINE}"),
    "in place": (Net, lambda m, x: end(m, Written.apply(m.a(x) + 1)), f"'Written'.*{LINE}"),
    "missing": (Net, lambda m, x: Missing.apply(m.a(x), m.b(x))[0].mean(), f"'Missing'.*{LINE}"),
    "noted": (Net, lambda m, x: end(m, Noted.apply(m.a(x), m.mean)), f"'Noted'.*{LINE}"),
    "peeking": (Net, lambda m, x: end(m, Peeking.apply(m.a(x), 1.0)), f"'Peeking'.*{LINE}"),
    "in a branch": (Net, in_a_branch, rf"Function in a branch.*{LINE}"),
    "behind autograd's back": (Net, changed_behind_autograds_back, rf"detach\(\).*{LINE}"),
    "a view of it": (Net, a_view_changed_behind_autograds_back, rf"detach\(\).*{LINE}"),
    "thawed": (with_a_frozen_weight, thawed, "requires_grad_"),
    "sequences": (Net, sequences, "ctc_loss"),
    "drawn slopes": (Net, lambda m, x: F.rrelu(m.a(x), training=True).sum(), "rrelu"),
    "pairs": (Net, lambda m, x: F.pdist(m.a(x)).sum(), "pdist"),
    "limited": (
        Net,
        lambda m, tokens: F.embedding(tokens, m.rows.weight, max_norm=1.0).sum(),
        "max_norm",
    ),
    "nothing is trained": (
        Net,
        lambda m, x: m.a(x).detach().square().mean(),
        "no parameter that requires a gradient leads to the loss",
    ),
}


@pytest.mark.parametrize(("make", "step", "named"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_said_is_refused_by_name_and_line(make: Any, step: Step, named: str) -> None:
    given = {key: batch()[key] for key in inputs_of(step)}
    with pytest.raises(memplan.MemplanError) as caught:
        captured(memplan.TorchStep(make(), step, given))
    assert re.search(named, f"{caught.value.message} {caught.value.hint}"), caught.value.message
    assert LINE not in named or caught.value.exit_code == ModelError.exit_code


# --- What is drawn --------------------------------------------------------------------------------


def without_replacement(m: Any, x: Any) -> Any:
    drawn = torch.multinomial(torch.tensor([0.7, 0.1, 0.1, 0.1]), 2)
    return (drawn[0] == drawn[1]).float() + torch.rand(()) * 0.01 + m.a(x).sum() * 0


def mixed(m: Any, x: Any) -> Any:
    share = torch.rand(())
    return m.a(share * x + (1 - share) * x[torch.randperm(6)]).square().mean()


def policy(m: Any, x: Any) -> Any:
    choice = torch.distributions.Categorical(logits=m.a(x))
    actions = choice.sample()
    return -(choice.log_prob(actions) * actions).mean()


def layered(kind: Any) -> Step:
    """Dropout between layers that are recurrent."""
    return lambda m, x: getattr(m, kind)(m.a(x)[None])[0].square().mean()


DRAWS: dict[str, Step] = {
    "bernoulli_of_a_constant": lambda m, x: (
        (m.a(x) * torch.bernoulli(torch.full((6, 1), 0.25))).square().mean()
    ),
    "bernoulli_of_probabilities": lambda m, x: (
        torch.bernoulli(torch.full_like(x, 0.1) + x * 0).mean() + m.a(x).sum() * 0
    ),
    "dropout_of_a_constant": lambda m, x: (
        (m.a(x) * F.dropout(torch.ones(6, 1), 0.5)).square().mean()
    ),
    "mixed": mixed,
    "without_replacement": without_replacement,
    "policy": policy,
    "two_views": lambda m, x: (F.dropout(m.a(x), 0.5) - F.dropout(m.a(x), 0.5)).square().mean(),
    **{name: layered(name) for name in ("lstm", "gru", "rnn")},
}


def test_what_is_drawn_is_drawn_anew_and_as_in_pytorch() -> None:
    """Mean and deviation of each loss over 200 steps."""
    import onnxruntime

    module, given, loss = joint(DRAWS)
    capture = captured(memplan.TorchStep(module, loss, given))
    session = onnxruntime.InferenceSession(
        capture.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {"x": given["x"].numpy()}
    own = np.array([session.run([*DRAWS], feeds) for _ in range(200)])
    with torch.no_grad():
        drawn = [loss(module, **given)[1] for _ in range(200)]
    for name, found in zip(DRAWS, own.T, strict=True):
        wanted = np.array([float(each[name]) for each in drawn])
        assert 0.6 * wanted.std() < found.std() < 1.6 * wanted.std(), name
        assert abs(found.mean() - wanted.mean()) < wanted.std(), name


# --- The same without what makes them right -------------------------------------------------------


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Capture without what makes these steps right: functions written out, stops, what notes custom
    backwards, translations of our own, guards against fusions. What is left is the road as it would
    be with a defect that nobody knows."""
    from memplan.autodiff import finished_graph
    from memplan.pytorch import custom_backward, prepared_step, program, trace, translations

    for module, name in ((trace, "tracing"), (prepared_step, "traced_calls")):
        monkeypatch.setattr(module, name, nullcontext)
    monkeypatch.setattr(trace, "complete_stops", lambda given: None)
    monkeypatch.setattr(program, "RANDOM", ())
    monkeypatch.setattr(program, "aten_forms", dict)
    monkeypatch.setattr(custom_backward, "_watched", lambda recorder: [])
    kept = ("lstm", "gru", "rnn", "batch_norm")
    own = {op: f for op, f in translations.TRANSLATIONS.items() if any(k in str(op) for k in kept)}
    monkeypatch.setattr(translations, "TRANSLATIONS", own)
    monkeypatch.setattr(finished_graph, "without_known_faults", lambda model: None)
    program.registry.cache_clear()
    program._decompositions.cache_clear()
    yield
    monkeypatch.undo()
    program.registry.cache_clear()
    program._decompositions.cache_clear()


WRONG = (
    "detach",
    "teacher",
    "straight_through",
    "padding_index",
    "smoothed_mean",
    "large_logits",
    "custom_function",
    "tensor_hook",
    "divisor_of_an_average",
    "product_with_a_logarithm",
    "bernoulli_of_a_constant",
)


@pytest.mark.parametrize("name", WRONG)
def test_the_check_alone_finds_what_nothing_else_prevents(name: str, unmended: None) -> None:
    step = PIECES.get(name) or DRAWS[name]
    torch.manual_seed(0)
    given = {key: batch()[key] for key in inputs_of(step)}
    with pytest.raises(CaptureDiffersError) as caught:
        captured(memplan.TorchStep(Net(), step, given))
    assert caught.value.check.differences
