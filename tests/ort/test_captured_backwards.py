"""Backwards of the user's own: custom functions and hooks, against PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from memplan.errors import ModelError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from helpers.torch_steps import Reversed, captured, outputs_of  # noqa: E402

pytestmark = pytest.mark.ort


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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.fixed = torch.randn(4)
        self.register_buffer("seen", torch.zeros(4))
        self.last: Any = None


def seeded() -> Net:
    """The same whatever was made before."""
    torch.manual_seed(0)
    return Net()


def in_place_threefold(grad: Any) -> None:
    grad.mul_(3)


def tenfold(grad: Any) -> Any:
    return grad * 10


def reversal(net: Any, x: Any) -> Any:
    return net.second(Reversed.apply(net.first(x), 0.5)).square().mean()


def binary(net: Any, x: Any) -> Any:
    return net.second(Binary.apply(net.first(x))).square().mean()


def two_results(net: Any, x: Any) -> Any:
    h = net.first(x)
    product, total = Pair.apply(h, net.second(h))
    return (product + total.tanh()).mean()


def tensor_hook(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(tenfold)
    return net.second(h).square().mean()


def twice_from_one_tensor(net: Any, x: Any) -> Any:
    """Two calls that read the same, of a backward that is not linear."""
    h = net.first(x)
    return net.second(Clipped.apply(h) + 2 * Clipped.apply(h)).square().mean()


def several_kinds_of_outputs(net: Any, x: Any) -> Any:
    order, values, size = Ranked.apply(net.first(x), 2)
    return (net.second(values) * size).square().mean() + 0 * order.sum()


def broadcast(net: Any, x: Any) -> Any:
    return net.second(Scaled.apply(net.first(x), net.first.bias, slope=0.5)).square().mean()


def not_all_outputs_are_read(net: Any, x: Any) -> Any:
    product, _ = Pair.apply(net.first(x), net.second(net.first(x)))
    return product.mean()


def hook_in_place(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(in_place_threefold)
    return net.second(h).square().mean()


def hook_that_only_looks(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(lambda grad: None)
    return net.second(h).square().mean()


def hook_of_the_loss(net: Any, x: Any) -> Any:
    loss = net.second(net.first(x)).square().mean()
    loss.register_hook(lambda grad: 5 * grad)
    return loss


def hook_behind_a_function(net: Any, x: Any) -> Any:
    h = Reversed.apply(net.first(x), 0.5)
    h.register_hook(lambda grad: grad.sign())
    with torch.no_grad():
        target = net.second(h)
    return (net.second(h) - 2 * target).square().mean()


def clipped_by_hook(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    return net.second(h).square().mean()


def constants_and_statistics(net: Any, x: Any) -> Any:
    h = net.norm(net.first(x)) * net.fixed + torch.tensor([1.0, 2.0, 3.0, 4.0])
    net.last = h
    net.seen = 0.9 * net.seen + h.detach().mean(0)
    return net.second(Binary.apply(h)).square().mean()


def parameter_hook_in_forward(net: Any, x: Any) -> Any:
    if not net.first.weight._backward_hooks:  # or each step would add one
        net.first.weight.register_hook(tenfold)
    return net.second(net.first(x) + net.first(x.flip(0))).square().mean()


def detached_beside(net: Any, x: Any) -> Any:
    h = net.first(x)
    with torch.no_grad():
        target = net.second(h)
    return (Reversed.apply(net.second(h.detach()), 1.0) - target).square().mean() + h.mean()


def under_autocast(net: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        h = net.first(x)
    return net.second(Reversed.apply(h.float(), 0.5)).square().mean()


def function_under_autocast(net: Any, x: Any) -> Any:
    """Whose backward PyTorch runs outside of the block, in float32."""
    h = net.first(x)
    with torch.autocast("cpu", torch.bfloat16):
        h = Turned.apply(h)
    return net.second(h).square().mean()


def in_a_checkpoint(net: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    h = checkpoint(lambda x: Reversed.apply(net.first(x), 2.0), x, use_reentrant=False)
    return net.second(h).square().mean()


STEPS = [
    reversal,
    binary,
    two_results,
    tensor_hook,
    clipped_by_hook,
    twice_from_one_tensor,
    several_kinds_of_outputs,
    broadcast,
    not_all_outputs_are_read,
    hook_in_place,
    hook_that_only_looks,
    hook_of_the_loss,
    hook_behind_a_function,
    constants_and_statistics,
    parameter_hook_in_forward,
    detached_beside,
    under_autocast,
    function_under_autocast,
    in_a_checkpoint,
]
JOINT = 7
"""So many make one step, each with a network of its own."""


def compare(make: Callable[[], Any], step: Any, **settings: Any) -> memplan.Capture:
    """Hold loss, gradients and new statistics against PyTorch's; the capture."""
    torch.manual_seed(0)
    net = make()
    x = torch.randn(5, 8)
    capture = captured(memplan.TorchStep(net, step, {"x": x}), **settings)
    found = outputs_of(capture.model, {"x": x.numpy()})
    before = {name: value.clone() for name, value in net.named_buffers()}
    returned = step(net, x)
    loss, metrics = returned if isinstance(returned, tuple) else (returned, {"loss": returned})
    loss.backward()
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    assert set(capture.trained) == set(grads)
    for name, value in metrics.items():
        rough = 100.0 if name == "under_autocast" else 1.0
        np.testing.assert_allclose(found[name], value.detach(), rtol=1e-5 * rough, err_msg=name)
        own = [grad for key, grad in grads.items() if key.startswith(f"{name}.") or name == "loss"]
        assert any(grad.abs().max() > 0 for grad in own)
    for name, grad in grads.items():
        rough = 100.0 if name.startswith("under_autocast.") else 1.0
        bound = rough * (1e-5 + 1e-4 * float(grad.abs().max()))
        np.testing.assert_allclose(found[f"{name}_grad"], grad, atol=bound, err_msg=name)
    for name, value in net.named_buffers():
        if not torch.equal(value, before[name]):
            np.testing.assert_allclose(found[f"{name}_new"], value, rtol=1e-4, atol=1e-5)
    return capture


@pytest.mark.parametrize("first", range(0, len(STEPS), JOINT))
def test_the_gradients_are_those_of_autograd(first: int) -> None:
    steps = {step.__name__: step for step in STEPS[first : first + JOINT]}

    def joint(nets: Any, x: Any) -> Any:
        losses = {name: step(nets[name], x) for name, step in steps.items()}
        return torch.stack([*losses.values()]).sum(), losses

    capture = compare(lambda: nn.ModuleDict({name: seeded() for name in steps}), joint)
    assert all(node.domain == "" for node in capture.model.graph.node)


def plain(net: Any, x: Any) -> Any:
    return net.second(net.first(x).tanh() + net.first(-x)).square().mean()


def with_parameter_hook() -> Any:
    net = Net()
    net.first.weight.register_hook(tenfold)
    net.second.weight.requires_grad_(False)
    return net


def with_tied_hook() -> Any:
    net = Net()
    net.second = nn.Sequential(nn.Linear(4, 8, bias=False))
    net.second[0].weight = nn.Parameter(torch.randn(8, 4))
    net.first = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4))
    net.first[1].weight.register_hook(tenfold)
    net.second = nn.Linear(4, 4)
    net.third = net.first[1]
    return net


def with_full_backward_hook() -> Any:
    net = Net()
    net.second.register_full_backward_hook(lambda _m, given, _o: tuple(-3 * g for g in given))
    return net


def with_full_backward_pre_hook() -> Any:
    net = Net()
    net.second.register_full_backward_pre_hook(lambda _m, grads: tuple(-3 * g for g in grads))
    return net


def with_two_hooks() -> Any:
    """The second is given what the first gives."""
    net = with_parameter_hook()
    net.first.weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
    return net


@pytest.mark.parametrize("make", [with_parameter_hook, with_tied_hook, with_two_hooks])
def test_hooks_that_the_model_brings(make: Any) -> None:
    compare(make, plain)


def with_late_hook() -> Any:
    net = Net()
    net.first.weight.register_post_accumulate_grad_hook(lambda p: None)
    return net


def node_hook(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.grad_fn.register_hook(lambda given, _: tuple(g if g is None else 3 * g for g in given))
    return net.second(h).square().mean()


def saved_tensors(net: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, tenfold):
        return net.second(net.first(x)).square().mean()


def read_before(net: Any, x: Any) -> Any:
    h = net.first(x)
    early = net.second(h)
    h.register_hook(tenfold)
    return (early * h).square().mean()


def hooked_twice(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(tenfold)
    h.register_hook(lambda grad: grad.sign())
    return net.second(h).square().mean()


def written_behind(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(tenfold)
    h.mul_(2)
    return net.second(h).square().mean()


def removed(net: Any, x: Any) -> Any:
    h = net.first(x)
    h.register_hook(tenfold).remove()
    return net.second(h).square().mean()


def from_outside_of_a_block(net: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        net.first.weight.register_hook(tenfold)
        h = net.first(x)
    return net.second(h.float()).square().mean() + net.first.weight.sum()


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


def in_place(net: Any, x: Any) -> Any:
    return net.second(Written.apply(net.first(x) + 1)).square().mean()


class Missing(Pair):
    """A pair that asks which gradient there is."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        Pair.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)


def missing(net: Any, x: Any) -> Any:
    h = net.first(x)
    return Missing.apply(h, net.second(h))[0].mean()


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


def noted(net: Any, x: Any) -> Any:
    return net.second(Noted.apply(net.first(x), net.seen)).square().mean()


def in_a_branch(net: Any, x: Any) -> Any:
    h = net.first(x)
    branches = (lambda h: Reversed.apply(h, 1.0).sum(), lambda h: h.sum())
    return torch.cond(x.abs().sum() > 0, *branches, (h,))


@pytest.mark.parametrize(
    ("make", "step", "kind"),
    [
        (with_full_backward_hook, plain, "module hook '<lambda> on second'"),
        (with_full_backward_pre_hook, plain, "module hook '<lambda> on second'"),
        (with_late_hook, plain, "post-accumulate-grad hook '<lambda> on first.weight'"),
        (Net, node_hook, "autograd node 'AddmmBackward0'"),
        (Net, saved_tensors, "saved-tensor hook 'tenfold'"),
        (Net, read_before, "tensor hook 'tenfold'"),
        (Net, hooked_twice, "tensor hook '<lambda>'"),
        (Net, written_behind, "tensor hook 'tenfold'"),
        (Net, removed, "tensor hook 'tenfold'"),
        (Net, from_outside_of_a_block, "tensor hook 'tenfold'"),
        (Net, in_place, "autograd.Function 'Written'"),
        (Net, missing, "autograd.Function 'Missing'"),
        (Net, noted, "autograd.Function 'Noted'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_recorded_is_refused_by_name_and_line(
    make: Any, step: Any, kind: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        captured(memplan.TorchStep(make(), step, {"x": torch.randn(5, 8)}))
    assert kind in refusal.value.message
    assert re.search(r"test_captured_backwards\.py:\d+\)", refusal.value.message)
    assert refusal.value.exit_code == ModelError.exit_code


def test_a_function_in_a_branch_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Function in a branch.*test_captured_backwards\.py:\d+"):
        captured(memplan.TorchStep(Net(), in_a_branch, {"x": torch.randn(5, 8)}))


def test_a_function_without_a_gradient_changes_nothing() -> None:
    """Under ``no_grad``, or of the batch alone, its backward is never called."""

    def step(net: Any, x: Any) -> Any:
        with torch.no_grad():
            target = Reversed.apply(net.first(x), 1.0)
        return F.mse_loss(net.second(target) + Reversed.apply(x, 1.0)[:, :4], target)

    assert captured(memplan.TorchStep(Net(), step, {"x": torch.randn(5, 8)})).trained


def test_sizes_stay_dynamic_and_nodes_tell_their_modules() -> None:
    capture = compare(Net, constants_and_statistics, dynamic="batch")
    sizes = {v.name: v.type.tensor_type.shape for v in capture.model.graph.input}
    assert sizes["x"].dim[0].dim_param == "batch"
    told = [
        (node.op_type, p.value)
        for node in capture.model.graph.node
        for p in node.metadata_props
        if p.key == "memplan.module"
    ]
    assert {"first", "norm", "second"} <= {module for _, module in told}
    x = torch.randn(7, 8)
    torch.manual_seed(0)
    net = Net()
    torch.randn(5, 8)
    found = outputs_of(capture.model, {"x": x.numpy()})
    np.testing.assert_allclose(found["loss"], constants_and_statistics(net, x).detach(), rtol=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    net = Net()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    captured(memplan.TorchStep(net, constants_and_statistics, {"x": torch.randn(5, 8)}))
    assert net.last is None
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_a_scaled_loss_and_an_optimizer() -> None:
    torch.manual_seed(0)
    net = Net()
    x = torch.randn(5, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = memplan.TorchStep(net, binary, {"x": x}, optimizer, scaler=1024.0)
    capture = captured(step)
    found = outputs_of(capture.model, {"x": x.numpy()})
    binary(net, x).backward()
    wanted = net.first.weight - 0.1 * net.first.weight.grad
    new = next(n for n, old in capture.contract.new_values.items() if old == "first.weight")
    np.testing.assert_allclose(found[new], wanted.detach(), atol=1e-6)


def test_a_backward_that_cannot_be_traced_is_refused_with_its_line() -> None:
    class Peeking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad / float(grad.abs().max())

    def step(net: Any, x: Any) -> Any:
        return net.second(Peeking.apply(net.first(x))).square().mean()

    with pytest.raises(ModelError, match=r"'Peeking'.*test_captured_backwards\.py:\d+"):
        captured(memplan.TorchStep(Net(), step, {"x": torch.randn(5, 8)}))


def test_gradients_are_told_in_the_file() -> None:
    capture = compare(Net, reversal)
    told = {p.key: p.value for p in capture.model.metadata_props}
    assert set(json.loads(told["memplan.gradients"]).values()) == set(capture.trained)
    onnx.checker.check_model(capture.model)
