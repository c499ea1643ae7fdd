"""What ``grad`` says: what was differentiated by, and how many nodes that took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memplan.ir.contract import Contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.report.parts import Line, Report
from memplan.report.tell.names import feed_back, listed, named, nodes_by_phase
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.grad.training_graph import TrainingGraph, UpdateFile


def tell_grad(result: TrainingGraph, details: bool = False) -> Report:
    """What was built, by what, and what was left out; ``details`` lists every name."""
    headline = f"{result.path}: loss '{result.loss}', {nodes_by_phase(result.nodes)}"
    lines = [*_differentiated(result, details), *_interface(result, details)]
    if result.placement.note:
        lines.append(result.placement.note)
    if result.update is not None:
        lines += _update_lines(result.update, result.wrt, details)
    if result.check is not None:
        lines += result.check.lines
    if result.output is not None:
        lines.append(f"wrote {result.output}")
    if result.update is not None and result.update.output is not None:
        lines.append(f"wrote {result.update.output}")
    return Report([Line(headline), *lines])


def _differentiated(result: TrainingGraph, details: bool) -> Iterator[str]:
    """By what, what not, and what a user should know."""
    wrt, left = result.wrt, result.not_trained
    if result.nodes[Phase.BACKWARD]:
        yield f"gradients of {counted(len(wrt), 'tensor')}: {listed(wrt, details)}"
    if left:
        yield f"none of {counted(len(left), 'tensor')}: {listed(left, details)} (see --wrt)"
    if result.class_axis is not None:
        yield f"classes lie along axis {result.class_axis} (see --class-axis)"
    renewed = tuple(result.statistics.renewed.values())
    yield from named("{} renewed", "running statistic", renewed, details)
    yield from result.notes
    yield from named("no weight decay of {}", "tensor", result.not_decayed, details)


def _interface(result: TrainingGraph, details: bool) -> Iterator[str]:
    """What goes in, comes out and is fed back."""
    if result.options.loss_scale != "none":
        yield f"loss scale {result.options.loss_scale}: gradients begin at 'loss_scale'"
    yield from _controls(result.hyperparameters, result.contract)
    if result.new_inputs:
        yield f"new inputs: {_by_parameter(result.new_inputs, result.wrt, details)}"
    if result.new_outputs:
        yield f"new outputs: {_by_parameter(result.new_outputs, result.wrt, details)}"
    yield from feed_back(result.new_values)


def _controls(hyperparameters: Mapping[str, float], contract: Contract) -> Iterator[str]:
    """Inputs that may be fed, and the counter."""
    if hyperparameters:
        shown = ", ".join(f"'{name}' ({value:g})" for name, value in hyperparameters.items())
        yield f"optional inputs, float32 scalars (default): {shown}"
    for new, old in contract.new_values.items():
        if contract.roles.get(old) is Role.STEP_COUNTER:
            yield f"step counter: '{old}' starts at 1 and continues as '{new}'"


def _update_lines(update: UpdateFile, wrt: Sequence[str], details: bool) -> Iterator[str]:
    """What the graph of an optimizer takes and gives."""
    yield f"the optimizer's own graph: {counted(len(update.model.graph.node), 'node')}"
    yield from (f"  {text}" for text in _controls(update.hyperparameters, update.contract))
    inputs = [value.name for value in update.model.graph.input]
    outputs = [value.name for value in update.model.graph.output]
    yield f"  inputs: {_by_parameter(inputs, wrt, details)}"
    yield f"  outputs: {_by_parameter(outputs, wrt, details)}"


def _by_parameter(names: Sequence[str], wrt: Sequence[str], details: bool) -> str:
    """``lr, and for each NAME of the 60 tensors: NAME, NAME.exp_avg``: what every tensor has is
    said once."""
    known, endings = set(wrt), dict[str, list[str]]()
    for name in names:
        cut = next((k for k in range(len(name), 0, -1) if name[:k] in known), None)
        endings.setdefault("" if cut is None else f"NAME{name[cut:]}", []).append(name)
    every = [e for e, found in endings.items() if e and len(found) == len(wrt) > 1]
    others = [name for e, found in endings.items() if e not in every for name in found]
    if not every:
        return listed(names, details)
    each = f"for each NAME of the {counted(len(wrt), 'tensor')}: {', '.join(every)}"
    return f"{listed(others, details)}, and {each}" if others else each
