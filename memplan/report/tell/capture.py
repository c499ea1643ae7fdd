"""What ``capture`` says: what was captured, and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ir.roles import Role
from memplan.ops.float_types import NO_SESSION
from memplan.report.parts import Line, Report
from memplan.report.tell.names import listed, named
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.capture.capture_result import Capture


def tell_capture(result: Capture, details: bool = False) -> Report:
    """The graph, inputs and notes; ``details`` lists every name. That no
    session on the CPU opens it, and that nothing was compared with PyTorch, stand in front."""
    lines = named("trains {}", "parameter", result.trained, details)
    what = "inputs that no step changes" if result.frozen_inputs else "constants of the graph"
    lines += named(f"{{}}, {what}", "frozen parameter", result.frozen, details)
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
    decay = f"{{}}, decay {result.ema_decay or 0:g} unless 'ema_decay' is fed"
    lines += named(decay, "moving average", averages, details)
    statistics = result.contract.named(Role.RUNNING_STATISTIC)
    lines += named("{} renewed", "buffer", statistics, details)
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
    return Report([*map(Line, first), *lines])


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
