"""``memplan run`` as text: the loss as it falls, the memory, and where the state lies."""

from __future__ import annotations

from rich.console import Group, RenderableType

from memplan.report.terminal.tables import Table, group, line, listed, section
from memplan.training.telling import Binding
from memplan.training.train import TrainingRun
from memplan.units import counted, format_bytes

_ROWS = 8
_METRICS = 3


def render(result: TrainingRun, *, details: bool = False) -> Group:
    """Headline, data, memory, and a table of losses; ``details`` shows every step."""
    parts: list[RenderableType] = [line(_headline(result), "bold")]
    parts += [line(f"- {note}") for note in result.doubts]
    parts.append(line(f"data: {result.data}"))
    if result.loss_scale is not None:
        parts.append(line(_scale(result, details)))
    parts += [line(text) for text in _memory(result)]
    parts += [line(text) for text in _state(result.bindings, details)]
    parts += section(_table(result, details))
    if result.checkpoint is not None:
        parts.append(line(f"{result.checkpoint} holds the state after step {result.steps}"))
    others = [note for note in result.notes if note not in result.doubts]
    return group([*parts, *(line(f"- {note}") for note in others)])


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


def _table(result: TrainingRun, details: bool) -> Table | None:
    reports = result.reports
    if not reports or not result.loss:
        return None
    last = len(reports) - 1
    rows = range(len(reports))
    if not details and len(reports) > _ROWS:
        rows = sorted({round(k * last / (_ROWS - 1)) for k in range(_ROWS)})  # type: ignore[assignment]
    names = list(reports[-1].metrics)[:_METRICS]
    columns = ("step", "loss", *names, "lr", "ms")
    table = Table("Loss", *((column, "number") for column in columns))
    for k in rows:
        each = reports[k]
        rate = "-" if each.lr is None else f"{each.lr:.3g}"
        told = [f"{each.metrics[name]:.4g}" for name in names]
        table.row(f"{each.step:,}", f"{each.loss:.6g}", *told, rate, f"{1000 * each.seconds:.1f}")
    return table
