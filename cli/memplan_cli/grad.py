"""``memplan grad``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from memplan.errors import UsageError
from memplan_cli.options import bound, configuration_option, emit, keep_inputs, output_options


@click.command("grad")
@click.argument("forward", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The training graph, or - for stdout.",
)
@click.option(
    "--loss",
    required=True,
    metavar="NAME",
    help="A scalar tensor of the graph; or cross-entropy or mse, built behind --logits.",
)
@click.option("--logits", metavar="NAME", help="The tensor that a built loss reads.")
@click.option(
    "--class-axis",
    type=int,
    metavar="N",
    help="Axis of classes for cross-entropy; default: 1, but 2 of three dimensions.",
)
@click.option(
    "--wrt",
    multiple=True,
    metavar="GLOB",
    help="Differentiate by these; default: initializers that look trained.",
)
@click.option(
    "--optimizer",
    default="none",
    show_default=True,
    metavar="NAME{opt=..}",
    help="none (gradients are outputs), sgd, momentum, adam or adamw.",
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
    help="Cell tensors of recurrent layers to make again at every step instead of storing them: "
    "all, auto, or names as in 'a+b*'.",
)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Bind a symbolic dimension, for --checkpoints and byte counts.",
)
@click.option("--forward-only", is_flag=True, help="Write no backward part.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of the report on stdout.",
)
@output_options
@configuration_option
def command(
    forward: Path,
    output: Path,
    loss: str,
    logits: str | None,
    class_axis: int | None,
    wrt: tuple[str, ...],
    optimizer: str,
    checkpoints: str,
    scan_recompute: str,
    dims: tuple[str, ...],
    forward_only: bool,
    form: str,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Turn a FORWARD graph into a training graph in standard operators.

    Its outputs are those of FORWARD, the loss, and for each parameter a gradient 'NAME_grad' or,
    with an optimizer, the new value 'NAME_new'. Nothing is saved for the backward part that no
    gradient needs.
    """
    from memplan.api.grad.run import GradOptions, grad

    to_stdout = str(output) == "-"
    if to_stdout and form == "json":
        raise UsageError(
            "the model and the JSON cannot both go to stdout", "give a file name to -o"
        )
    keep_inputs(output, forward)
    options = GradOptions(
        loss=loss,
        logits=logits,
        class_axis=class_axis,
        wrt=wrt,
        optimizer=optimizer,
        checkpoints=checkpoints,
        scan_recompute=scan_recompute,
        forward_only=forward_only,
    )
    result = grad(forward, options, None if to_stdout else output, dims=bound(dims), force=force)
    if to_stdout:
        emit(result.model.SerializeToString(), None, force)
    elif form == "json":
        emit(json.dumps(result.as_json(), indent=2) + "\n", None, force)
    elif quiet:
        click.echo(str(output))
    else:
        from memplan.report.terminal.grad import print_training_graph

        print_training_graph(result, color=color, details=verbose > 0)
    return 0
