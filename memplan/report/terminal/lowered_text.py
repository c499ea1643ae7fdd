"""``memplan lower`` as text: what was replaced, what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group

from memplan.ir.roles import Role
from memplan.report.terminal.tables import group, line, listed
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.lower.lowered import LoweredGraph


def render(result: LoweredGraph, *, details: bool = False) -> Group:
    """What was lowered; ``details`` lists every name."""
    counts = [(count, phase) for phase, count in result.nodes.items() if count]
    parts = ", ".join(f"{count:,} {phase}" for count, phase in counts) + " nodes"
    loss = f"loss '{result.loss}'" if result.loss is not None else "no loss"
    headline = line(f"{result.path}: {loss}, {parts}", "bold")
    return group([headline, *(line(text) for text in _lines(result, details))])


def _lines(result: LoweredGraph, details: bool) -> Iterator[str]:
    contract = result.contract
    replaced = tuple(f"{op} ({count})" for op, count in result.replaced.items())
    total = sum(result.replaced.values())
    if total:
        yield f"{counted(total, 'node')} of onnxruntime-training replaced: " + listed(
            replaced, details
        )
    yield from (
        f"{counted(len(names), what)}: {listed(names, details)}"
        for what, names in (
            ("trained parameter", result.trained),
            ("frozen parameter", _frozen(result)),
            ("running statistic", contract.named(Role.RUNNING_STATISTIC)),
        )
        if names
    )
    if result.optimizer != "none":
        yield f"optimizer: {result.optimizer}"
        controls = contract.named(Role.HYPERPARAMETER, Role.STEP_COUNTER)
        yield f"inputs with defaults: {listed(controls, details)}"
    batch = contract.named(Role.BATCH)
    yield "inputs: " + listed(batch, details)
    if contract.new_values:
        new, old = next(iter(contract.new_values.items()))
        yield (
            f"for the next step: feed {counted(len(contract.new_values), 'output')} back, "
            f"'{new}' as '{old}' and so on (memplan.new_values in the file's metadata has all)"
        )
    elif contract.gradients:
        gradient, name = next(iter(contract.gradients.items()))
        count = counted(len(contract.gradients), "output")
        yield f"gradients: {count}, '{gradient}' of '{name}' and so on"
    yield from result.notes
    if result.placement.note:
        yield result.placement.note
    if result.check is not None:
        yield from result.check.lines
    if result.output is not None:
        yield f"wrote {result.output}"


def _frozen(result: LoweredGraph) -> tuple[str, ...]:
    """Parameters that nothing changes."""
    trained = set(result.trained)
    return tuple(name for name in result.contract.named(Role.PARAMETER) if name not in trained)
