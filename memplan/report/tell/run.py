"""What ``run`` says: the loss as it falls, the memory, and where the state lies."""

from __future__ import annotations

from memplan.report.parts import Column, Line, Part, Report, Table
from memplan.report.tell.names import listed
from memplan.training.telling import Binding
from memplan.training.train import TrainingRun
from memplan.units import counted, format_bytes

_ROWS = 8
_METRICS = 3


def tell_run(result: TrainingRun, details: bool = False) -> Report:
    """Headline, data, memory, and a table of losses; ``details`` shows every step."""
    parts: list[Part] = [Line(_headline(result)), *(f"- {note}" for note in result.doubts)]
    parts.append(f"data: {result.data}")
    if result.loss_scale is not None:
        parts.append(_scale(result, details))
    parts += [*_memory(result), *_state(result.bindings, details), _losses(result, details)]
    if result.checkpoint is not None:
        parts.append(f"{result.checkpoint} holds the state after step {result.steps}")
    parts += [f"- {note}" for note in result.notes if note not in result.doubts]
    return Report(parts)


def _headline(result: TrainingRun) -> str:
    text = f"{result.path}: {counted(len(result.reports), 'step')} on {result.provider}"
    if result.resumed:
        text += f" after the {result.resumed:,} of the checkpoint"
    if result.loss and result.reports:
        text += f", loss {result.reports[0].loss:.6g} → {result.reports[-1].loss:.6g}"
    return text


def _scale(result: TrainingRun, details: bool) -> str:
    text = f"loss scale {result.loss_scale:,g} in the last step"
    if not result.skipped:
        return f"{text}; no step skipped"
    numbers = listed([f"{step:,}" for step in result.skipped], details)
    what = f"{counted(len(result.skipped), 'step')} skipped, as a gradient was not finite"
    return f"{text}; {what}: {numbers}"


def _memory(result: TrainingRun) -> list[str]:
    seconds = result.step_seconds
    lines = (
        []
        if seconds is None
        else [f"{1000 * seconds:.1f} ms a step (median; other work on the machine counts)"]
    )
    if (predicted := result.predicted) is not None:
        lines.append(
            f"peak {format_bytes(predicted.peak_bytes)} predicted for every step: "
            f"{predicted.resident_bytes:,} B resident, {predicted.dynamic_bytes:,} B in the run"
        )
    if result.process is not None:
        grown = result.process
        lines.append(
            f"process: {format_bytes(grown.load_bytes)} to load, in {grown.load_seconds:.1f} s, "
            f"and {format_bytes(grown.step_bytes)} more in the steps (resident set)"
        )
    return lines


def _state(bindings: tuple[Binding, ...], details: bool) -> list[str]:
    own = [each for each in bindings if each.in_place]
    other = [each for each in bindings if not each.in_place]
    lines = []
    if own:
        total = sum(each.nbytes for each in own)
        lines.append(
            f"state in place: {counted(len(own), 'output')}, {format_bytes(total)} of new values "
            "over the old ones"
        )
    reasons: dict[str, list[Binding]] = {}
    for each in other:
        reasons.setdefault(each.reason, []).append(each)
    for reason, found in reasons.items():
        total = sum(each.nbytes for each in found)
        names = listed([each.output for each in found], details, 2)
        lines.append(f"two buffers: {names}, {format_bytes(total)}: {reason}")
    return lines


def _losses(result: TrainingRun, details: bool) -> Table:
    """The loss of steps at even distances."""
    reports = list(result.reports) if result.loss else []
    names = list(reports[-1].metrics)[:_METRICS] if reports else []
    if not details and len(reports) > _ROWS:
        last = len(reports) - 1
        places = {round(k * last / (_ROWS - 1)) for k in range(_ROWS)}
        reports = [reports[k] for k in sorted(places)]
    rows = [
        [
            f"{each.step:,}",
            f"{each.loss:.6g}",
            *(f"{each.metrics[name]:.4g}" for name in names),
            "-" if each.lr is None else f"{each.lr:.3g}",
            f"{1000 * each.seconds:.1f}",
        ]
        for each in reports
    ]
    columns = [Column(name, "number") for name in ("step", "loss", *names, "lr", "ms")]
    return Table("Loss", columns, rows)
