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
    emit_model,
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
    "-o", "--output", required=True, type=PATH, help="The lowered graph, or - for stdout."
)
@click.option(
    "--loss",
    metavar="NAME",
    help="The loss, a scalar output: its gradient is 1.  [default: found; of ORTModule, the only "
    "output if it is a scalar]",
)
@click.option(
    "--optimizer-model",
    type=PATH,
    metavar="FILE",
    help="An optimizer model, to be a part of the step.",
)
@click.option("--checkpoint", type=PATH, metavar="FILE", help="Values of the parameters.")
@click.option(
    "--accumulate", is_flag=True, help="Keep the buffers in which gradients are summed, as state."
)
@weights_option
@report_options(output=None, format_help="Form of the report on stdout.")
def command(training_model: Path, output: Path, report: Report, **options: Any) -> int:
    """Lower a TRAINING_MODEL of onnxruntime-training to standard operators.

    Artifacts ('training_model.onnx') and graphs that ORTModule saved. Gradients become outputs
    'NAME_grad' or, with an optimizer model, new values 'NAME_new'; buffers and flags go. What
    cannot be lowered is listed whole.
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
        )
    if to_stdout:
        emit_model(result.model, training_model, options["weights"])
    elif report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        click.echo(str(output))
    else:
        from memplan.report.terminal.lowered_text import render

        report.emit_text(render(result, details=report.details))
    return 0
