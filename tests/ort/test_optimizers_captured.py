"""Captured updates against PyTorch's: two groups, an optimizer that has taken steps already, and
afterwards every parameter and every tensor of state; trained by ``Trainer``, in place."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.torch_steps import captured
from helpers.with_torch import torch
from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import UsageError

BEFORE, AFTER = 2, 5
Make = Callable[[list[dict[str, Any]]], Any]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "amsgrad": ("AdamW", {"amsgrad": True, "betas": (0.8, 0.5)}),
    "tensor rate": ("Adam", {"amsgrad": True, "lr": torch.tensor(0.01), "maximize": True}),
    "fused": ("AdamW", {"fused": True}),
    "NAdam": ("NAdam", {"decoupled_weight_decay": True}),
    "RAdam": ("RAdam", {"betas": (0.9, 0.75)}),
    "Adamax": ("Adamax", {"maximize": True}),
    "Adadelta": ("Adadelta", {}),
    "ASGD": ("ASGD", {"lambd": 0.1, "t0": 3}),
    "centered": ("RMSprop", {"centered": True, "momentum": 0.5, "lr": 1e-3}),
    "dampened": ("SGD", {"momentum": 0.9, "dampening": 0.5, "lr": 0.01}),
    "Rprop": ("Rprop", {}),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.5}),
}


def network() -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4), torch.nn.Linear(4, 3)
    )
    return module, [torch.randn(5, 6) for _ in range(BEFORE + AFTER)]


def loss(module: Any, x: Any) -> Any:
    return module(x).square().mean()


def eager(module: Any, optimizers: list[Any], batches: list[Any]) -> list[float]:
    losses = []
    for x in batches:
        for each in optimizers:
            each.zero_grad()
        value = loss(module, x)
        value.backward()
        for each in optimizers:
            each.step()
        losses.append(float(value.detach()))
    return losses


def groups_of(module: Any, decays: bool = True) -> list[dict[str, Any]]:
    weights = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() <= 1]
    rates: list[dict[str, Any]] = [{"params": weights, "lr": 0.02}, {"params": others, "lr": 0.005}]
    if decays:
        rates[0]["weight_decay"] = 0.125
    return rates


def resumed(
    module: Any, optimizers: list[Any], batches: list[Any], before: int = BEFORE
) -> tuple[list[float], list[float], Any]:
    """Losses by PyTorch and by Trainer behind a few steps of PyTorch's, and the trained state."""
    eager(module, optimizers, batches[:before])
    one = optimizers[0] if len(optimizers) == 1 else optimizers
    capture = captured(memplan.TorchStep(module, loss, (batches[0],), one))
    assert unsafe_pairs(capture.model, capture.contract.new_values) == {}
    trainer = memplan.Trainer(capture.model, threads=1)
    (name,) = capture.batch
    losses = [trainer.step({name: x.numpy()}) for x in batches[BEFORE:]]
    return eager(module, optimizers, batches[BEFORE:]), losses, trainer.state_dict()


def check(module: Any, optimizers: list[Any], state: Any, tolerance: float = 2e-6) -> None:
    """All parameters and all of torch's state, by torch's names; sizes relative to the largest."""
    own = {"momentum_buffer": "momentum"}
    seen = set()
    for name, parameter in module.named_parameters():
        wanted = {"": parameter.detach()}
        for each in optimizers:
            found = each.state.get(parameter, {})
            wanted |= {f".{own.get(k, k)}": v for k, v in found.items() if v is not None}
        for kind, tensor in wanted.items():
            if kind in (".step", ".mu"):  # one counter for all; mu follows from it
                continue
            assert state[name + kind].shape == tuple(tensor.shape), name + kind
            error = np.abs(state[name + kind] - tensor.numpy()).max()
            assert error <= tolerance * max(1.0, float(tensor.abs().max())), (name + kind, error)
            seen.add(name + kind)
    assert seen == {name for name in state if name != "step"}


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_as_pytorch_does(kind: str) -> None:
    name, options = KINDS[kind]
    module, batches = network()
    groups = groups_of(module, decays=name != "Rprop")
    if "lr" in options:
        groups = [{**group, "lr": options["lr"] * (k + 1)} for k, group in enumerate(groups)]
    optimizer = getattr(torch.optim, name)(groups, **options)
    wanted, losses, state = resumed(module, [optimizer], batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    check(module, [optimizer], state)
    if "step" in state:
        assert int(state["step"]) == BEFORE + AFTER + 1 or name == "SGD"


class Lion(torch.optim.Optimizer):  # type: ignore[name-defined,misc]
    """lion_pytorch 0.2.5, its update line by line."""

    def __init__(self, given: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99)) -> None:
        super().__init__(given, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1.0 - group["lr"] * group["weight_decay"])
                update = mean.clone().mul_(beta1).add(p.grad, alpha=1.0 - beta1).sgn_()
                p.add_(update, alpha=-group["lr"])
                mean.mul_(beta2).add_(p.grad, alpha=1.0 - beta2)


def test_a_lion_of_any_package() -> None:
    module, batches = network()
    optimizer = Lion(groups_of(module))
    wanted, losses, state = resumed(module, [optimizer], batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    check(module, [optimizer], state)


MUONS: list[dict[str, Any]] = [
    {},
    {"adjust_lr_fn": "match_rms_adamw", "nesterov": False, "momentum": 0.5},
    {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 3, "eps": 0.5},
]


@pytest.mark.parametrize("options", MUONS, ids=["usual", "as AdamW", "other polynomial"])
def test_muon_for_matrices_and_adamw_for_the_rest(options: dict[str, Any]) -> None:
    """PyTorch's products are of bfloat16. Ours are rounded as they are, but sums may be added up in
    another order, and where one then rounds to the other neighbour, entries of a step change by
    2⁻⁸ and what the iteration makes of that: parameters may differ by a 32nd of the way they went.
    """
    module, batches = network()
    matrices, others = groups_of(module)
    muon = torch.optim.Muon([matrices], **options)
    optimizers = [muon, torch.optim.AdamW([others])]
    eager(module, optimizers, batches[:BEFORE])
    begun = {name: p.detach().clone() for name, p in module.named_parameters()}
    wanted, losses, state = resumed(module, optimizers, batches, before=0)
    np.testing.assert_allclose(losses, wanted, rtol=2e-3)
    for name, parameter in module.named_parameters():
        way = (parameter.detach() - begun[name]).norm()
        assert np.linalg.norm(state[name] - parameter.detach().numpy()) <= way / 32, name


def test_muons_matrices_of_low_rank() -> None:
    """As gradients of large networks are: without the rounding, half of a step is another one."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 48))
    module = torch.nn.ParameterDict({"weight": weight})
    thin = torch.randn(64, 4) @ torch.randn(4, 48) + 1e-3 * torch.randn(64, 48)
    optimizer = torch.optim.Muon([weight], lr=1.0, weight_decay=0.0)

    def product(module: Any, x: Any) -> Any:
        return (module["weight"] * x).sum()

    capture = captured(memplan.TorchStep(module, product, (thin,), optimizer))
    trainer = memplan.Trainer(capture.model, threads=1)
    before = weight.detach().clone()
    trainer.step({capture.batch[0]: thin.numpy()})
    weight.grad = thin
    optimizer.step()
    way = (weight.detach() - before).norm()
    error = np.linalg.norm(trainer.state_dict()["weight"] - weight.detach().numpy())
    assert error <= 0.1 * way


def test_muon_and_others_with_a_scaler_and_a_norm() -> None:
    module, batches = network()
    matrices, others = groups_of(module)
    optimizers = [torch.optim.Muon([matrices]), torch.optim.NAdam([others])]
    settings: dict[str, Any] = {"scaler": "dynamic{init_scale=1e38}", "clip_norm": 1.0}

    def large(module: Any, x: Any) -> Any:
        return 1e4 * loss(module, x)

    capture = captured(memplan.TorchStep(module, large, (batches[0],), optimizers, **settings))
    assert unsafe_pairs(capture.model, capture.contract.new_values) == {}
    trainer = memplan.Trainer(capture.model, threads=1)
    before = trainer.state_dict()
    (name,) = capture.batch
    trainer.step({name: batches[0].numpy()})
    assert trainer.skipped
    after = trainer.state_dict()
    for key in before.keys() - {"loss_scale", "growth_tracker"}:
        np.testing.assert_array_equal(after[key], before[key], err_msg=key)
    while trainer.skipped:
        trainer.step({name: batches[0].numpy()})
    assert int(trainer.state_dict()["step.1"]) == 2  # of NAdam; Muon counts none
    assert all(np.isfinite(value).all() for value in trainer.state_dict().values())


def test_a_parameter_that_has_taken_no_step_is_refused_where_steps_count() -> None:
    module, batches = network()
    last = module[3]
    last.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters())
    eager(module, [optimizer], batches[:1])
    captured(memplan.TorchStep(module, loss, (batches[0],), optimizer))
    last.requires_grad_(True)
    with pytest.raises(UsageError, match=r"has taken steps, but none of '3\.bias' and 1 more"):
        captured(memplan.TorchStep(module, loss, (batches[0],), optimizer))
