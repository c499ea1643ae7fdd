"""The settings of a ``torch.optim`` instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from memplan.errors import UsageError

_REFUSED = {"amsgrad": False, "maximize": False, "centered": False}
"""Options that have no form here, and the value at which they do nothing."""
_STATE = {
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "momentum_buffer": "momentum",
    "square_avg": "square_avg",
    "sum": "sum",
    "row_var": "row_var",
    "col_var": "col_var",
    "variance": "variance",
}
"""Torch's names of state tensors, and ours."""
_KINDS = (
    torch.optim.AdamW,  # before Adam, which it is a kind of
    torch.optim.Adam,
    torch.optim.SGD,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adafactor,
)


@dataclass(frozen=True, slots=True)
class Group:
    """How a parameter is updated.

    ``kind`` and ``options`` are those of :mod:`memplan.autodiff.optimizers`. ``factor`` is its
    learning rate over that of the graph.
    """

    kind: str
    options: tuple[tuple[str, float], ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """What the update of a captured step is built from.

    ``lr`` is the learning rate of the graph, that of the first group. ``groups`` has one entry per
    parameter. ``state`` holds tensors of an optimizer that has taken steps already, by their names
    in the graph, ``step`` is the number of the next one.
    """

    name: str
    lr: float
    groups: Mapping[str, Group]
    state: Mapping[str, Any] = field(default_factory=dict)
    step: int = 1


def read_optimizer(optimizer: object, names: Mapping[int, str]) -> OptimizerSettings:
    """Read an optimizer's kind, options and state.

    Args:
        optimizer: a ``torch.optim`` instance.
        names: the name of each of the model's parameters, by ``id``.

    Raises:
        UsageError: it is of another kind, has an option that has no form here, or updates tensors
            that are not the model's.
    """
    kind = type(optimizer).__name__
    if type(optimizer) not in _KINDS or not isinstance(optimizer, torch.optim.Optimizer):
        what = "optimizer" if isinstance(optimizer, torch.optim.Optimizer) else "object"
        raise UsageError(
            f"the {what} {kind} cannot be captured",
            f"{', '.join(each.__name__ for each in _KINDS)} can; with optimizer None the "
            "gradients are outputs, and the update is yours",
        )
    rates = [_number(group["lr"], "lr", kind) for group in optimizer.param_groups]
    base = next((rate for rate in rates if rate), 0.0)
    groups: dict[str, Group] = {}
    for rate, given in zip(rates, optimizer.param_groups, strict=True):
        group = _group(optimizer, given, rate / base if base else 1.0)
        for parameter in given["params"]:
            if id(parameter) not in names:
                raise UsageError(
                    f"the optimizer {kind} updates a tensor of shape {list(parameter.shape)} that "
                    "is not a parameter of the model",
                    "build it from model.parameters() of the same model",
                )
            groups[names[id(parameter)]] = group
    state, step = _state(optimizer, names)
    return OptimizerSettings(kind, base, groups, state, step)


def _group(optimizer: Any, given: Mapping[str, Any], factor: float) -> Group:
    kind = type(optimizer).__name__
    for option, neutral in _REFUSED.items():
        if given.get(option, neutral) != neutral:
            raise UsageError(
                f"{kind} with {option}={given[option]} cannot be captured",
                f"set {option} to {neutral}, or leave the optimizer out and update by yourself",
            )
    numbers = {"weight_decay": _number(given["weight_decay"], "weight_decay", kind)}

    def take(*names: str, **renamed: str) -> None:
        for name, option in {**dict(zip(names, names, strict=True)), **renamed}.items():
            numbers[name] = _number(given[option], option, kind)

    if isinstance(optimizer, torch.optim.SGD):
        name = "momentum" if given["momentum"] else "sgd"
        if given["momentum"]:
            take("momentum", "dampening")
            numbers["nesterov"] = int(given["nesterov"])
    elif isinstance(optimizer, torch.optim.Adam):
        decoupled = isinstance(optimizer, torch.optim.AdamW) or given.get("decoupled_weight_decay")
        name = "adamw" if decoupled else "adam"
        numbers["beta1"], numbers["beta2"] = (_number(b, "betas", kind) for b in given["betas"])
        take("eps")
    elif isinstance(optimizer, torch.optim.RMSprop):
        name = "rmsprop"
        take("alpha", "eps", "momentum")
    elif isinstance(optimizer, torch.optim.Adagrad):
        name = "adagrad"
        take("lr_decay", "eps")
    else:
        name = "adafactor"
        numbers["decay_rate"] = -_number(given["beta2_decay"], "beta2_decay", kind)
        first, second = given["eps"]
        numbers["eps1"], numbers["eps2"] = float(first or 0.0), float(second)
        take("d")
    return Group(name, tuple(numbers.items()), factor)


def _number(value: Any, option: str, kind: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{option} of {kind} is {type(value).__name__}, not a number") from None


def _state(optimizer: Any, names: Mapping[int, str]) -> tuple[dict[str, Any], int]:
    """State tensors under the names of the graph, and the number of the next step.

    Raises:
        UsageError: parameters have taken different numbers of steps.
    """
    found: dict[str, Any] = {}
    steps = set()
    for parameter, entries in optimizer.state.items():
        for key, own in _STATE.items():
            if entries.get(key) is not None:
                found[f"{names[id(parameter)]}.{own}"] = entries[key]
        if "step" in entries:
            steps.add(int(entries["step"]))
    if len(steps) > 1:
        raise UsageError(
            f"parameters have taken different numbers of steps ({min(steps)} to {max(steps)})",
            "a captured step counts one for all; begin with a fresh optimizer",
        )
    return found, max(steps, default=0) + 1
