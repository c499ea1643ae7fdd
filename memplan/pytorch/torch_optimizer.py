"""The settings of a ``torch.optim`` instance, or of several that update parameters of one model.

``_ROWS`` lists the classes that can be read: what each is here, and where its options are. What
decides on how PyTorch computes an update, and not on its numbers, is left alone: ``foreach``,
``fused``, ``capturable``, ``differentiable``. An unknown option is refused where it is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from memplan.errors import UsageError


@dataclass(frozen=True, slots=True)
class OptionSource:
    """Where an option comes from: an entry of a group, or one of several numbers in it."""

    entry: str
    index: int | None = None
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """How a class is read.

    ``kind`` is that of :mod:`memplan.autodiff.optimizers`, ``options`` are its fields, beside
    ``weight_decay`` and ``maximize``. ``instead`` has the row to take where an entry is on.
    ``neutral`` are entries, or attributes of the optimizer, that have no form here, and the value
    at which they do nothing.
    """

    kind: str
    options: Mapping[str, OptionSource] = field(default_factory=dict)
    instead: Mapping[str, Row] = field(default_factory=dict)
    neutral: Mapping[str, object] = field(default_factory=dict)

    @property
    def entries(self) -> set[str]:
        """All entries of a group that are read."""
        found = {*self.instead, *(source.entry for source in self.options.values())}
        return found.union(*(row.entries for row in self.instead.values()))


def _same(*names: str) -> dict[str, OptionSource]:
    return {name: OptionSource(name) for name in names}


_BETAS = {"beta1": OptionSource("betas", 0), "beta2": OptionSource("betas", 1)}
_ADAM = {**_BETAS, **_same("eps", "amsgrad")}
_DECOUPLED = {**_BETAS, **_same("eps", "decoupled_weight_decay")}
_ADAFACTOR = {
    **_same("d"),
    "decay_rate": OptionSource("beta2_decay", sign=-1),
    "eps1": OptionSource("eps", 0),
    "eps2": OptionSource("eps", 1),
}
_MUON = {
    **_same("momentum", "nesterov", "eps", "ns_steps", "adjust_lr_fn"),
    "ns_a": OptionSource("ns_coefficients", 0),
    "ns_b": OptionSource("ns_coefficients", 1, sign=-1),
    "ns_c": OptionSource("ns_coefficients", 2),
}
_RPROP = {
    "etaminus": OptionSource("etas", 0),
    "etaplus": OptionSource("etas", 1),
    "step_min": OptionSource("step_sizes", 0),
    "step_max": OptionSource("step_sizes", 1),
}
_MOMENTUM = Row("momentum", _same("momentum", "dampening", "nesterov"))
_ROWS: Mapping[str, Row] = {
    "SGD": Row("sgd", instead={"momentum": _MOMENTUM}),
    "Adam": Row("adam", _ADAM, instead={"decoupled_weight_decay": Row("adamw", _ADAM)}),
    "AdamW": Row("adamw", _ADAM, neutral={"decoupled_weight_decay": True}),
    "NAdam": Row("nadam", {**_DECOUPLED, **_same("momentum_decay")}),
    "RAdam": Row("radam", _DECOUPLED),
    "Adamax": Row("adamax", {**_BETAS, **_same("eps")}),
    "Adadelta": Row("adadelta", _same("rho", "eps")),
    "Adagrad": Row("adagrad", _same("lr_decay", "eps")),
    "RMSprop": Row("rmsprop", _same("alpha", "eps", "momentum", "centered")),
    "Adafactor": Row("adafactor", _ADAFACTOR),
    "ASGD": Row("asgd", _same("lambd", "alpha", "t0")),
    "Rprop": Row("rprop", _RPROP),
    "Muon": Row("muon", _MUON),
    # Of lion_pytorch and others: the formula of the paper, unless a variant is on.
    "Lion": Row("lion", _BETAS, neutral={"decoupled_wd": False, "cautious_factor": 1.0}),
}
_FOREIGN = frozenset({"Lion"})
"""Classes that torch does not have, taken from any package."""
_NUMBERLESS = frozenset(
    {"lr", "weight_decay", "maximize", "foreach", "fused", "capturable", "differentiable"}
    | {"initial_accumulator_value", "use_triton"}
)
"""Entries that every row reads, that change no numbers, or whose numbers are in the state."""
_WHY = {
    "LBFGS": "it evaluates the loss several times in one step",
    "SparseAdam": "it updates the rows that a sparse gradient names, and gradients here are dense",
}
_STATE = {"momentum_buffer": "momentum"}
"""Names of state tensors that are not torch's."""
_SCALARS = frozenset({"mu_product", "eta"})
"""State that is float32 here; in PyTorch it is of the default type."""
_UNCOUNTED = frozenset({"sgd", "lion", "muon", "rmsprop", "adadelta"})
"""Kinds of which every step is like the first."""


@dataclass(frozen=True, slots=True)
class Group:
    """How a parameter is updated.

    ``kind`` and ``options`` are those of :mod:`memplan.autodiff.optimizers`. ``factor`` is its
    learning rate over that of the graph. ``owner`` is the number of its optimizer.
    """

    kind: str
    options: tuple[tuple[str, float | str], ...]
    factor: float = 1.0
    owner: int = 0

    @property
    def counts(self) -> bool:
        """Whether the number of the step changes what it does."""
        undamped = self.kind == "momentum" and not dict(self.options).get("dampening")
        return self.kind not in _UNCOUNTED and not undamped


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """What the update of a captured step is built from.

    ``lr`` is the learning rate of the graph, that of the first group. ``groups`` has one entry per
    parameter. ``state`` holds tensors of an optimizer that has taken steps already, by their names
    in the graph, ``step`` is the number of the next one; ``fresh`` are parameters that have taken
    none, although their update counts them.
    """

    name: str
    lr: float
    groups: Mapping[str, Group]
    state: Mapping[str, Any] = field(default_factory=dict)
    step: int = 1
    fresh: frozenset[str] = frozenset()


def read_optimizer(optimizer: object, names: Mapping[int, str]) -> OptimizerSettings:
    """Read an optimizer's kind, options and state.

    Args:
        optimizer: a ``torch.optim`` instance; or a list or tuple of them, of which each updates
            parameters of its own.
        names: the name of each of the model's parameters, by ``id``.

    Raises:
        UsageError: it is of another kind, has an option that has no form here, or updates tensors
            that are not the model's; or two update one parameter.
    """
    several: list[Any] = [optimizer]
    if isinstance(optimizer, list | tuple):
        several = list(optimizer)
    if not several:
        raise UsageError("the list of optimizers is empty", "give None: gradients are outputs then")
    rows = [_row_of(each) for each in several]
    kind = " + ".join(type(each).__name__ for each in several)
    given = [
        (owner, each, row, group, _rate(each, group))
        for owner, (each, row) in enumerate(zip(several, rows, strict=True))
        for group in each.param_groups
    ]
    base = next((rate for *_, rate in given if rate), 0.0)
    groups: dict[str, Group] = {}
    for owner, each, row, entries, rate in given:
        group = replace(_group(each, row, entries, rate / base if base else 1.0), owner=owner)
        for parameter in entries["params"]:
            name = _name_of(each, parameter, names)
            if name in groups:
                raise UsageError(
                    f"'{name}' is updated by two of the optimizers {kind}",
                    "give every parameter to one of them",
                )
            groups[name] = group
    state, step, begun = _state(several, groups, names)
    fresh = frozenset(n for n, group in groups.items() if group.counts and n not in begun)
    return OptimizerSettings(kind, base, groups, state, step, fresh)


def _row_of(optimizer: Any) -> Row:
    kind = type(optimizer).__name__
    known = isinstance(optimizer, torch.optim.Optimizer)
    own = getattr(torch.optim, kind, None) is type(optimizer)
    if known and kind in _ROWS and (own or kind in _FOREIGN):
        return _ROWS[kind]
    why = f": {_WHY[kind]}" if kind in _WHY else ""
    raise UsageError(
        f"the {'optimizer' if known else 'object'} {kind} cannot be captured{why}",
        f"{', '.join(_ROWS)} can; with optimizer None the gradients are outputs, and the update is "
        "yours",
    )


def _rate(optimizer: object, given: Mapping[str, Any]) -> float:
    return float(_value(optimizer, given, OptionSource("lr")) or 0.0)


def _name_of(optimizer: object, parameter: Any, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        raise UsageError(
            f"the optimizer {type(optimizer).__name__} updates a tensor of shape "
            f"{list(parameter.shape)} that is not a parameter of the model",
            "build it from model.parameters() of the same model",
        )
    return names[id(parameter)]


def _group(optimizer: Any, row: Row, given: Mapping[str, Any], factor: float) -> Group:
    _refuse_others(optimizer, row, given)
    row = next((other for entry, other in row.instead.items() if given.get(entry)), row)
    sources = {**_same("weight_decay", "maximize"), **row.options}
    found = {name: _value(optimizer, given, source) for name, source in sources.items()}
    # What a class does not have, or leaves to itself, is at the default of the kind.
    options = tuple((name, value) for name, value in found.items() if value is not None)
    return Group(row.kind, options, factor)


def _refuse_others(optimizer: Any, row: Row, given: Mapping[str, Any]) -> None:
    """Refuse what has no form here.

    Raises:
        UsageError: such an option is on.
    """
    kind = type(optimizer).__name__
    others = set(optimizer.defaults) - row.entries - _NUMBERLESS
    for name in sorted({*others, *row.neutral}):
        still = row.neutral.get(name, False)
        value = given.get(name, getattr(optimizer, name, still))
        if value is not None and value is not still and value != still:
            raise UsageError(
                f"{kind} with {name}={value} cannot be captured",
                f"set {name} to {still}, or leave the optimizer out and update by yourself",
            )


def _value(optimizer: object, given: Mapping[str, Any], source: OptionSource) -> float | str | None:
    """An option as a number or a word; None if it is not there.

    Raises:
        UsageError: it is something else.
    """
    value = given.get(source.entry)
    try:
        if value is not None and source.index is not None:
            value = value[source.index]
        if value is None or isinstance(value, str):
            return value
        return source.sign * (int(value) if isinstance(value, int) else float(value))
    except (TypeError, ValueError, LookupError):
        kind, what = type(optimizer).__name__, type(value).__name__
        raise UsageError(f"{source.entry} of {kind} is {what}, not a number") from None


def _state(
    optimizers: Sequence[Any], groups: Mapping[str, Group], names: Mapping[int, str]
) -> tuple[dict[str, Any], int, set[str]]:
    """State tensors under the names of the graph, the number of the next step, and the parameters
    that have taken one.

    Raises:
        UsageError: parameters have taken different numbers of steps.
    """
    found: dict[str, Any] = {}
    steps, begun = set(), set()
    for parameter, entries in (item for each in optimizers for item in each.state.items()):
        name = names[id(parameter)]
        tensors = {
            key: value
            for key, value in entries.items()
            if key != "step" and isinstance(value, torch.Tensor)
        }
        for key, value in tensors.items():
            own = value.float() if key in _SCALARS else value
            found[f"{name}.{_STATE.get(key, key)}"] = own
        if "step" in entries:
            steps.add(int(entries["step"]))
        elif tensors and groups[name].counts:
            steps.add(1)  # it does not say how many: what counts is that it was not the first
        if tensors:
            begun.add(name)
    if len(steps) > 1:
        raise UsageError(
            f"parameters have taken different numbers of steps ({min(steps)} to {max(steps)})",
            "a captured step counts one for all; begin with a fresh optimizer",
        )
    return found, max(steps, default=0) + 1, begun
