"""``memplan grad``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    dropout_option,
    emit,
    one_on_stdout,
    optimizer_names,
    portable_option,
    refuse_copy,
    report_options,
    weights_option,
)


# What the function does not name goes into GradOptions: such an option is named for its field.
@memplan_command(
    "grad",
    "memplan grad forward.onnx -o step.onnx --loss loss",
    "memplan grad net.onnx -o step.onnx --loss cross-entropy --logits y",
)
@click.argument("forward", type=PATH)
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="Write the training graph to this file; - is stdout.",
)
@click.option(
    "--loss",
    required=True,
    metavar="NAME",
    help="The loss: a scalar tensor of the graph, or cross-entropy or mse to add one on --logits.",
)
@click.option("--logits", metavar="NAME", help="The tensor that an added loss reads.")
@click.option(
    "--class-axis",
    type=int,
    metavar="N",
    help="The axis of the classes, for cross-entropy.  [default: 1; 2 for three dimensions]",
)
@click.option(
    "--wrt",
    multiple=True,
    metavar="GLOB",
    help="Compute gradients for tensors with these names. Repeatable.  [default: initializers "
    "that look trainable]",
)
@click.option(
    "--optimizer",
    default="none",
    show_default=True,
    metavar="NAME{opt=..}",
    shell_complete=optimizer_names,
    help="Add an optimizer: sgd, momentum, adam, adamw, lion, adafactor, rmsprop or adagrad; with "
    "none, gradients are outputs. Options: lr, weight_decay, no_decay='*bias+*norm*', "
    "clip_norm, clip_value.",
)
@click.option(
    "--loss-scale",
    default="none",
    show_default=True,
    metavar="SCALE",
    help="Multiply the loss by this, so that small float16 gradients survive; the update "
    "divides by it again: dynamic (options as in dynamic{init_scale=1024}), or a number. Requires "
    "--optimizer.",
)
@click.option(
    "--update-output",
    type=PATH,
    metavar="FILE",
    help="Write the optimizer to a separate graph, so that you can sum gradients over several "
    "batches.",
)
@dropout_option
@portable_option
@dim_option("Set the size of a symbolic dimension, for the check. Repeatable.")
@weights_option
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Compare the gradients with central differences of the forward graph. If they differ, "
    "exit with code 1 and write nothing.",
)
@click.option("--forward-only", is_flag=True, help="Write the forward part only, with the loss.")
@report_options(output=None, format_help="Format of the report on stdout.")
def command(
    forward: Path,
    output: Path,
    update_output: Path | None,
    dims: tuple[str, ...],
    check: bool,
    report: Report,
    **options: Any,
) -> int:
    """Turn a FORWARD graph into a training graph of standard ONNX operators.

    It has the outputs of FORWARD, the loss and, for each parameter, the gradient 'NAME_grad' or,
    with an optimizer, the new value 'NAME_new'. The step keeps nothing for the
    backward part that no gradient needs.
    """
    from memplan.api.grad.differentiate import grad
    from memplan.api.grad.training_graph import GradOptions

    to_stdout = one_on_stdout(output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, options["weights"])
    with waiting(report, f"differentiating {forward.name}"):
        result = grad(
            forward,
            GradOptions(**options),
            None if to_stdout else output,
            update_output=update_output,
            dims=bound(dims),
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
        from memplan.report.tell.grad import tell_grad

        report.emit_text(tell_grad(result, report.in_full))
    return 0
