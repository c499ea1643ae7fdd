"""``memplan run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan.units import format_bytes
from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
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

if TYPE_CHECKING:
    from memplan.training.telling import StepReport

_LARGE = 1 << 30


# What the function does not name goes into TrainOptions: such an option is named for its field.
@memplan_command(
    "run",
    "memplan run step.onnx --data train.npz --steps 1000 --lr 1e-3 --log run.csv",
    "memplan run step.onnx --data train.npz --checkpoint run.npz --resume",
)
@click.argument("model", type=PATH)
@click.option(
    "--data",
    type=PATH,
    help="Read samples from this .npz file, one array per batch input.  [default: random numbers]",
)
@click.option(
    "--ready-batches",
    is_flag=True,
    help="The first axis of the arrays in --data is that of whole batches, not of samples.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="Stop after step N; steps before --resume count.",
)
@click.option(
    "--lr", type=float, metavar="X", callback=finite, help="Learning rate.  [default: as in MODEL]"
)
@click.option(
    "--hyper", multiple=True, metavar="NAME=X", help="Set another hyperparameter. Repeatable."
)
@click.option(
    "--weights-file",
    type=PATH,
    help="Read initial weights from this .npz, .safetensors or .onnx file.  [default: as in MODEL]",
)
@click.option(
    "--init",
    metavar="HOW",
    help="random: fill parameters that have no value with random numbers.",
)
@dim_option()
@provider_option("Where to run; auto is as recorded in MODEL, else the CPU.", auto=True)
@click.option(
    "--state",
    multiple=True,
    metavar="HOW",
    help="Where to write new weights and moments: in-place (over the old ones wherever that is "
    "safe), apart, or OUT=IN to pair an output with an input. Repeatable.  [default: "
    "in-place]",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Seed for shuffling and random initial values.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Threads per operator; 0 lets the runtime choose.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Shuffle the samples anew in every epoch.",
)
@click.option("--log", type=PATH, help="Write one row per step to this .csv or .jsonl file.")
@click.option("--checkpoint", type=PATH, help="Save the state to this file at the end.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also save the state after every N steps.",
)
@click.option("--resume", is_flag=True, help="Continue from the --checkpoint file, if it exists.")
@click.option(
    "--export-forward",
    type=PATH,
    help="Write --forward with the trained values to this .onnx file.",
)
@click.option(
    "--forward",
    type=PATH,
    help="The model to export: what grad was given, or the network in evaluation, with parameters "
    "of the same names.",
)
@report_options()
def command(model: Path, dims: tuple[str, ...], report: Report, **options: Any) -> int:
    """Train with MODEL, a training step: batches in, losses out.

    Weights and moments stay in the session's memory and are updated in place where that is safe.
    Ctrl-C ends the run after the current step and writes the checkpoint. With --resume, a killed
    run continues bit for bit, except for dropout masks that the operator draws.
    """
    from memplan.training.train import TrainOptions, run

    asked = TrainOptions(**options)
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
        raise noted.interrupt(_left_behind(result.steps, options["checkpoint"]))
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        report.emit(f"{result.last_loss}\n")
    else:
        from memplan.report.tell.run import tell_run

        report.emit_text(tell_run(result, report.in_full))
    return 0


def _say_size(nbytes: int, report: Report) -> None:
    """A word before what takes long: the state of a large step is filled."""
    if nbytes >= _LARGE and not report.quiet:
        click.echo(f"state: {format_bytes(nbytes)}, filled before the first step", err=True)


def _left_behind(steps: int, checkpoint: Path | None) -> str:
    if checkpoint is None:
        return f"{steps} steps were taken, and nothing was kept (--checkpoint)"
    return f"{checkpoint} holds the state after step {steps}; --resume goes on"
