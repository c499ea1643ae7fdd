"""``memplan grad``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from memplan.options import GradOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import (
    PATH,
    Report,
    bound,
    check_option,
    dim_option,
    emit_model,
    one_on_stdout,
    options,
    output_option,
    refuse_copy,
    report_options,
)
from memplan_cli.progress import waiting


@memplan_command(
    "grad",
    "memplan grad forward.onnx -o step.onnx --loss loss",
    "memplan grad net.onnx -o step.onnx --loss cross-entropy --logits y",
)
@click.argument("forward", type=PATH)
@output_option("Write the training graph to this file; - is stdout.", required=True)
@options(GradOptions)
@click.option(
    "--update-output",
    type=PATH,
    metavar="FILE",
    help="Write the optimizer to a separate graph, so that you can sum gradients over several "
    "batches.",
)
@dim_option("Set the size of a symbolic dimension, for the check. Repeatable.")
@check_option("Compare the gradients with central differences of the forward graph.")
@report_options(output=None, format_help="Format of the report on stdout.")
def command(
    forward: Path,
    output: Path,
    update_output: Path | None,
    dims: tuple[str, ...],
    check: bool,
    report: Report,
    **asked: Any,
) -> int:
    """Turn a FORWARD graph into a training graph of standard ONNX operators.

    It has the outputs of FORWARD, the loss and, for each parameter, the gradient 'NAME_grad' or,
    with an optimizer, the new value 'NAME_new'. The step keeps nothing for the
    backward part that no gradient needs.
    """
    from memplan.api.grad.differentiate import grad
    from memplan.report.tell.grad import tell_grad

    to_stdout = one_on_stdout(output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, asked["weights"])
    with waiting(report, f"differentiating {forward.name}"):
        result = grad(
            forward,
            GradOptions(**asked),
            None if to_stdout else output,
            update_output=update_output,
            dims=bound(dims),
            force=report.force,
            check=check,
        )
    if to_stdout:
        emit_model(result)
    else:
        report.tell(result, str(output), partial(tell_grad, result))
    return 0
