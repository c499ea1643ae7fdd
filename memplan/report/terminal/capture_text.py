"""``memplan capture`` as text: what was captured, by which road, and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from memplan.ir.roles import Role
from memplan.ops.float_types import NO_SESSION
from memplan.report.terminal.tables import group, line, listed
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.capture.capture_result import Capture


def render(result: Capture, *, details: bool = False) -> Group:
    """The graph, the road, inputs and notes; ``details`` lists every name. That no
    session on the CPU opens it, and that nothing was compared with PyTorch, stand in front."""
    trained = counted(len(result.trained), "parameter")
    lines = [f"trains {trained}: {listed(result.trained, details)}"]
    if result.frozen:
        frozen = counted(len(result.frozen), "frozen parameter")
        what = "inputs that no step changes" if result.frozen_inputs else "constants of the graph"
        lines.append(f"{frozen}, {what}: {listed(result.frozen, details)}")
    feeds = [f"'{name}' [{', '.join(result.sizes[name])}]" for name in result.batch]
    lines.append("inputs: " + ", ".join(feeds))
    if result.optimizer is None:
        lines.append("no optimizer: the gradients are outputs")
    else:
        lines.append(
            f"optimizer {result.optimizer}, learning rate {result.lr:g} unless 'lr' is fed"
        )
    lines += _treatment(result)
    if result.metrics:
        lines.append(f"metrics: {listed(result.metrics, details)}")
    averages = result.contract.named(Role.AVERAGE)
    if averages:
        what = counted(len(averages), "moving average")
        lines.append(
            f"{what}, decay {result.ema_decay:g} unless 'ema_decay' is fed: "
            f"{listed(averages, details)}"
        )
    statistics = result.contract.named(Role.RUNNING_STATISTIC)
    if statistics:
        what = counted(len(statistics), "buffer")
        lines.append(f"{what} renewed: {listed(statistics, details)}")
    if result.contract.new_values:
        what = counted(len(result.contract.new_values), "output")
        lines.append(
            f"for the next step: feed {what} back (memplan.new_values in the file's metadata)"
        )
    unopened = [note for note in result.notes if NO_SESSION in note]
    lines += [note for note in result.notes if note not in unopened]
    checked = () if result.check is None else result.check.lines
    nothing = result.check is not None and result.check.verdict == "skipped"
    lines += () if nothing else checked
    lines.append(_weights(result))
    if result.output is not None:
        lines.append(f"wrote {result.output}")
    nodes = counted(len(result.model.graph.node), "node")
    first = [*unopened, f"{result.source}: loss '{result.contract.loss}', {nodes}"]
    first += checked if nothing else ()
    return group([*(line(text, "bold") for text in first), *map(line, lines)])


def _treatment(result: Capture) -> list[str]:
    """What is done to gradients before the optimizer sees them."""
    lines = []
    if result.loss_scale != "none":
        lines.append(f"loss scale {result.loss_scale}: gradients begin at 'loss_scale'")
    bounds = {"their norm": result.clip_norm, "every element": result.clip_value}
    lines += [f"gradients clipped: {what} at most {v:g}" for what, v in bounds.items() if v]
    return lines


def _weights(result: Capture) -> str:
    size = format_bytes(result.weight_bytes)
    if result.weights == "none":
        return f"weights: {size}, not in the file: inputs without a default"
    where = f"in {result.data}" if result.data is not None else "in the file"
    return f"weights: {size}, {where}"
