"""``memplan lower``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from memplan.options import LowerOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import (
    PATH,
    Report,
    check_option,
    emit_model,
    one_on_stdout,
    options,
    output_option,
    refuse_copy,
    report_options,
)
from memplan_cli.progress import waiting


@memplan_command(
    "lower",
    "memplan lower train.onnx -o step.onnx",
    "memplan lower train.onnx -o step.onnx --optimizer-model optimizer.onnx",
)
@click.argument("training_model", type=PATH)
@output_option("Write the converted graph to this file; - is stdout.", required=True)
@options(LowerOptions)
@check_option("Compare the gradients with central differences of the forward part.")
@report_options(output=None, format_help="Format of the report on stdout.")
def command(training_model: Path, output: Path, check: bool, report: Report, **asked: Any) -> int:
    """Convert a TRAINING_MODEL of onnxruntime-training to standard ONNX operators.

    TRAINING_MODEL is one of its artifacts ('training_model.onnx') or a graph saved by ORTModule.
    Gradients become outputs 'NAME_grad' or, with an optimizer model, new values 'NAME_new';
    accumulation buffers and flags are removed. The error names every operator that cannot be
    converted.
    """
    from memplan.api.lower import lower
    from memplan.report.tell.lower import tell_lowered

    to_stdout = one_on_stdout(output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, asked["weights"])
    with waiting(report, f"lowering {training_model.name}"):
        result = lower(
            training_model,
            None if to_stdout else output,
            LowerOptions(**asked),
            force=report.force,
            check=check,
        )
    if to_stdout:
        emit_model(result)
    else:
        report.tell(result, str(output), partial(tell_lowered, result))
    return 0
