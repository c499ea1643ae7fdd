"""``memplan run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.units import format_bytes
from memplan_cli.command import memplan_command
from memplan_cli.progress import training_progress
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    finite,
    provider_option,
    report_options,
)
from memplan_cli.signals import noted_signals

_LARGE = 1 << 30


# What the function does not name goes into TrainOptions: such an option is named for its field.
@memplan_command(
    "run",
    "memplan run step.onnx --data train.npz --steps 1000 --lr 1e-3 --log run.csv",
    "memplan run step.onnx --data train.npz --checkpoint run.npz --resume",
)
@click.argument("model", type=PATH)
@click.option("--data", type=PATH, help="Samples as .npz, one array per batch input.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop after step N, counting those before --resume.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="Samples per batch.  [default: as the step says]"
)
@click.option("--lr", type=float, callback=finite, help="Learning rate.  [default: the file's]")
@click.option(
    "--hyper", multiple=True, metavar="NAME=X", help="Another hyperparameter. Repeatable."
)
@click.option(
    "--weights-file",
    type=PATH,
    help="First values, .npz, .safetensors or .onnx.  [default: as in MODEL]",
)
@click.option(
    "--init",
    multiple=True,
    metavar="HOW",
    help="Parameters without a value: random; or GLOB=NUMBER for any state. Repeatable.",
)
@dim_option()
@provider_option("Where to run; auto: as recorded in the file, else the CPU.", auto=True)
@click.option(
    "--state",
    multiple=True,
    metavar="HOW",
    help="in-place wherever that is safe (the default), apart, or OUT=IN to name a "
    "pair. Repeatable.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of orders and random values."
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Threads within an operator; 0 leaves them to the runtime.",
)
@click.option(
    "--spin/--no-spin",
    default=True,
    show_default=True,
    help="Threads wait for work on the processor; --no-spin on a machine that is shared.",
)
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Samples, in every epoch."
)
@click.option(
    "--guard/--no-guard",
    default=True,
    show_default=True,
    help="Keep a loss that is NaN or infinite out of the state.",
)
@click.option("--log", type=PATH, help="Write a row per step: .csv or .jsonl.")
@click.option("--checkpoint", type=PATH, help="Save the state here, at the end and in between.")
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), metavar="N", help="Also after every N steps."
)
@click.option("--resume", is_flag=True, help="Continue from --checkpoint, if it exists.")
@click.option("--export-forward", type=PATH, help="The trained forward part, as .onnx.")
@click.option("--measure", is_flag=True, help="Measure the peak of every step (profiler).")
@report_options()
def command(model: Path, dims: tuple[str, ...], report: Report, **options: Any) -> int:
    """Train with MODEL, a training step: batches in, losses out.

    State stays in the session's memory, new values over old ones where that is right. Ctrl-C ends
    the run behind a whole step, and writes the checkpoint. A run that was killed goes on with
    --resume to the bit, but for dropout masks drawn by the operator.
    """
    from memplan.training.train import TrainOptions, run

    asked = TrainOptions(**options)
    report.guard(model, asked.data, asked.weights_file, others=asked.outputs)
    with noted_signals() as noted, training_progress(report) as show:
        result = run(
            model,
            asked,
            bound(dims),
            force=report.force,
            progress=lambda step, steps, peak: show(step, steps, peak) or not noted,
            begin=lambda nbytes: _say_size(nbytes, report),
        )
    if noted:
        raise noted.interrupt(_left_behind(result.steps, options["checkpoint"]))
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        report.emit(f"{result.last_loss}\n")
    else:
        from memplan.report.terminal.training import render

        report.emit_text(render(result, details=report.details))
    return 0


def _say_size(nbytes: int, report: Report) -> None:
    """A word before what takes long: the state of a large step is filled."""
    if nbytes >= _LARGE and not report.quiet:
        click.echo(f"state: {format_bytes(nbytes)}, filled before the first step", err=True)


def _left_behind(steps: int, checkpoint: Path | None) -> str:
    if checkpoint is None:
        return f"{steps} steps were taken, and nothing was kept (--checkpoint)"
    return f"{checkpoint} holds the state after step {steps}; --resume goes on"
