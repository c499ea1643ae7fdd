"""``memplan lower``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
from memplan_cli.shared_options import (
    PATH,
    Report,
    emit,
    one_on_stdout,
    refuse_copy,
    report_options,
    weights_option,
)


# What the function does not name goes into LowerOptions: such an option is named for its field.
@memplan_command(
    "lower",
    "memplan lower train.onnx -o step.onnx",
    "memplan lower train.onnx -o step.onnx --optimizer-model optimizer.onnx",
)
@click.argument("training_model", type=PATH)
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="Write the converted graph to this file; - is stdout.",
)
@click.option(
    "--loss",
    metavar="NAME",
    help="The scalar output that is the loss.  [default: found by memplan; in a graph of "
    "ORTModule, the only output]",
)
@click.option(
    "--optimizer-model",
    type=PATH,
    metavar="FILE",
    help="Add the updates of this optimizer model (optimizer_model.onnx) to the step.",
)
@click.option(
    "--checkpoint",
    type=PATH,
    metavar="FILE",
    help="Read the parameters' values from this checkpoint of onnxruntime-training.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Compare the gradients with central differences of the forward part. If they differ, exit "
    "with code 1 and write nothing.",
)
@weights_option
@report_options(output=None, format_help="Format of the report on stdout.")
def command(training_model: Path, output: Path, check: bool, report: Report, **options: Any) -> int:
    """Convert a TRAINING_MODEL of onnxruntime-training to standard ONNX operators.

    TRAINING_MODEL is one of its artifacts ('training_model.onnx') or a graph saved by ORTModule.
    Gradients become outputs 'NAME_grad' or, with an optimizer model, new values 'NAME_new';
    accumulation buffers and flags are removed. The error names every operator that cannot be
    converted.
    """
    from memplan.api.lower.lowered import LowerOptions, lower

    to_stdout = one_on_stdout(output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, options["weights"])
    with waiting(report, f"lowering {training_model.name}"):
        result = lower(
            training_model,
            None if to_stdout else output,
            LowerOptions(**options),
            force=report.force,
            check=check,
        )
    if to_stdout:
        from memplan.proto.metadata import sealed_bytes

        emit(sealed_bytes(result.model))
    elif report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        click.echo(str(output))
    else:
        from memplan.report.tell.lower import tell_lowered

        report.emit_text(tell_lowered(result, report.in_full))
    return 0
