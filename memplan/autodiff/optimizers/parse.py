"""``adamw{weight_decay=0.1}`` → an optimizer."""

from __future__ import annotations

from memplan.autodiff.optimizers.formulas import KINDS
from memplan.autodiff.optimizers.optimizer import Optimizer
from memplan.errors import UsageError
from memplan.solver.strategies.spec import build, split_spec
from memplan.units import did_you_mean

__all__ = ["KINDS", "parse_optimizer"]


def parse_optimizer(text: str) -> Optimizer | None:
    """The optimizer that ``adamw{weight_decay=0.1}`` names; None for ``none``.

    Raises:
        UsageError: there is no such optimizer or option, or a value is not a number.
    """
    spec = split_spec(text)
    if spec is not None and spec.name == "none" and not spec.options:
        return None
    if spec is None or spec.name not in KINDS:
        near = did_you_mean(spec.name, KINDS) if spec is not None else ""
        raise UsageError(
            f"unknown --optimizer {text}",
            f"{near}optimizers: none, {', '.join(KINDS)}; options as in adamw{{weight_decay=0.1}}",
        )
    kind: type[Optimizer] = KINDS[spec.name]
    return build(kind, spec, "optimizer", "--optimizer: ")
