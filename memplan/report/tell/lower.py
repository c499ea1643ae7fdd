"""What ``lower`` says: what was replaced, what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.ir.roles import Role
from memplan.report.parts import Line, Report
from memplan.report.tell.names import feed_back, listed, named, nodes_by_phase
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.lower import LoweredGraph


def tell_lowered(result: LoweredGraph, details: bool = False) -> Report:
    """What was lowered; ``details`` lists every name."""
    loss = f"loss '{result.loss}'" if result.loss is not None else "no loss"
    return Report(
        [Line(f"{result.path}: {loss}, {nodes_by_phase(result.nodes)}"), *_lines(result, details)]
    )


def _lines(result: LoweredGraph, details: bool) -> Iterator[str]:
    contract = result.contract
    replaced = tuple(f"{op} ({count})" for op, count in result.replaced.items())
    total = sum(result.replaced.values())
    if total:
        what = f"{counted(total, 'node')} of onnxruntime-training replaced"
        yield f"{what}: {listed(replaced, details)}"
    yield from named("{}", "trained parameter", result.trained, details)
    trained = set(result.trained)
    frozen = [name for name in contract.named(Role.PARAMETER) if name not in trained]
    yield from named("{}", "frozen parameter", frozen, details)
    yield from named("{}", "running statistic", contract.named(Role.RUNNING_STATISTIC), details)
    if result.optimizer != "none":
        yield f"optimizer: {result.optimizer}"
        controls = contract.named(Role.HYPERPARAMETER, Role.STEP_COUNTER)
        yield f"inputs with defaults: {listed(controls, details)}"
    yield f"inputs: {listed(contract.named(Role.BATCH), details)}"
    yield from feed_back(contract.new_values)
    if contract.gradients and not contract.new_values:
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
