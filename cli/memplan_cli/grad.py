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
    emit_model,
    one_on_stdout,
    optimizer_names,
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
    "-o", "--output", required=True, type=PATH, help="The training graph, or - for stdout."
)
@click.option(
    "--loss",
    required=True,
    metavar="NAME",
    help="A scalar tensor of the graph; or cross-entropy or mse, to be built on --logits.",
)
@click.option("--logits", metavar="NAME", help="The tensor that a built loss reads.")
@click.option(
    "--class-axis",
    type=int,
    metavar="N",
    help="Axis of the classes for cross-entropy.  [default: 1; 2 if there are three dimensions]",
)
@click.option(
    "--wrt",
    multiple=True,
    metavar="GLOB",
    help="Differentiate by these tensors.  [default: initializers that look trained]",
)
@click.option(
    "--optimizer",
    default="none",
    show_default=True,
    metavar="NAME{opt=..}",
    shell_complete=optimizer_names,
    help="none (gradients are outputs), sgd, momentum, adam, adamw, lion, adafactor, rmsprop or "
    "adagrad. Options of all: lr, weight_decay, no_decay='*bias+*norm*', clip_norm, clip_value.",
)
@click.option(
    "--loss-scale",
    default="none",
    show_default=True,
    metavar="SCALE",
    help="Begin the gradients with this, for float16: dynamic (with options as in "
    "dynamic{init_scale=1024}), or a number. Needs --optimizer.",
)
@click.option(
    "--update-output",
    type=PATH,
    metavar="FILE",
    help="Write the optimizer as a graph of its own; the training graph gives gradients, which may "
    "be summed over several batches.",
)
@click.option(
    "--checkpoints",
    default="none",
    show_default=True,
    metavar="NAMES",
    help="Recompute all but these: memory, speed, collection, or names as in 'a+b*'.",
)
@click.option(
    "--scan-recompute",
    default="none",
    show_default=True,
    metavar="NAMES",
    help="Cell tensors of recurrent layers to recompute at every step instead of storing them: "
    "all, auto, or names as in 'a+b*'.",
)
@dropout_option
@dim_option("Give a symbolic dimension its size, for --checkpoints.")
@weights_option
@click.option("--forward-only", is_flag=True, help="Write no backward part.")
@report_options(output=None, format_help="Form of the report on stdout.")
def command(
    forward: Path,
    output: Path,
    update_output: Path | None,
    dims: tuple[str, ...],
    report: Report,
    **options: Any,
) -> int:
    """Turn a FORWARD graph into a training graph in standard operators.

    Its outputs are those of FORWARD, the loss, and for each parameter a gradient 'NAME_grad' or,
    with an optimizer, the new value 'NAME_new'. Nothing is kept for the backward part that no
    gradient needs.
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
        )
    if to_stdout:
        emit_model(result.model, forward, options["weights"])
    elif report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        click.echo(str(output))
    else:
        from memplan.report.terminal.grad_text import render

        report.emit_text(render(result, details=report.details))
    return 0
