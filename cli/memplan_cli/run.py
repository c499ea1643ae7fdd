"""``memplan run``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan.options import TrainOptions
from memplan.units import format_bytes
from memplan_cli.command import memplan_command
from memplan_cli.options import PATH, Report, bound, dim_option, options, report_options
from memplan_cli.progress import waiting
from memplan_cli.signals import noted_signals

if TYPE_CHECKING:
    from memplan.training.telling import StepReport

_LARGE = 1 << 30


@memplan_command(
    "run",
    "memplan run step.onnx --data train.npz --steps 1000 --lr 1e-3 --log run.csv",
    "memplan run step.onnx --data train.npz --checkpoint run.npz --resume",
)
@click.argument("model", type=PATH)
@options(TrainOptions)
@dim_option()
@report_options()
def command(model: Path, dims: tuple[str, ...], report: Report, **given: Any) -> int:
    """Train with MODEL, a training step: batches in, losses out.

    Weights and moments stay in the session's memory and are updated in place where that is safe.
    Ctrl-C ends the run after the current step and writes the checkpoint. With --resume, a killed
    run continues bit for bit, except for dropout masks that the operator draws.
    """
    from memplan.report.tell.run import tell_run
    from memplan.training.train import run

    asked = TrainOptions(**given)
    report.guard(model, asked.data, asked.weights_file, asked.forward, others=asked.outputs)
    with noted_signals() as noted, waiting(report, "loading the step") as show:

        def stepped(step: StepReport, steps: int, peak: int | None) -> bool:
            memory = "" if peak is None else f", peak {format_bytes(peak)}"
            text = f"step {step.step} of {steps}: loss {step.loss:.6g}{memory}, "
            show(f"{text}{1000 * step.seconds:.1f} ms a step")
            return not noted

        result = run(
            model,
            asked,
            bound(dims),
            force=report.force,
            progress=stepped,
            begin=lambda nbytes: _say_size(nbytes, report),
        )
    if noted:
        raise noted.interrupt(_left_behind(result.steps, asked.checkpoint))
    report.tell(result, str(result.last_loss), partial(tell_run, result))
    return 0


def _say_size(nbytes: int, report: Report) -> None:
    """A word before what takes long: the state of a large step is filled."""
    if nbytes >= _LARGE and not report.quiet:
        click.echo(f"state: {format_bytes(nbytes)}, filled before the first step", err=True)


def _left_behind(steps: int, checkpoint: Path | None) -> str:
    if checkpoint is None:
        return f"{steps} steps were taken, and nothing was kept (--checkpoint)"
    return f"{checkpoint} holds the state after step {steps}; --resume goes on"
