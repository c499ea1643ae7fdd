"""``memplan capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.errors import UsageError
from memplan_cli.apart import users_streams
from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
from memplan_cli.shared_options import PATH, Report, dropout_option, report_options


@memplan_command(
    "capture",
    "memplan capture train.py:make_step -o step.onnx",
    "memplan capture train.py:make_step -o step.onnx --dynamic batch --via grad",
)
@click.argument("target", metavar="FILE.py:FUNCTION")
@click.option("-o", "--output", required=True, type=PATH, help="The training graph.")
@click.option(
    "--via",
    type=click.Choice(["auto", "grad", "joint"]),
    default="auto",
    show_default=True,
    help="PyTorch's forward graph and memplan's gradients, or autograd's own backward; auto takes "
    "the second where the first is closed or fails the check.",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME",
    help="A name for the first axis of all tensors of the batch, or INPUT:AXIS=NAME for one.",
)
@click.option(
    "--loss-scale",
    metavar="SCALE",
    help="Begin the gradients with this: dynamic (with options as in dynamic{init_scale=1024}), a "
    "number, or none.  [default: the step's scaler]",
)
@click.option(
    "--clip-norm",
    type=float,
    metavar="X",
    help="Bound the norm of all gradients together.  [default: the step's]",
)
@click.option(
    "--clip-value",
    type=float,
    metavar="X",
    help="Bound every element of every gradient.  [default: the step's]",
)
@click.option(
    "--weights",
    type=click.Choice(["auto", "embed", "copy", "none"]),
    default="auto",
    show_default=True,
    help="Put weights into the file, copy them beside it (OUTPUT.data), or leave them out; auto "
    "embeds up to 256 MiB.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Run the step in PyTorch and in ONNX Runtime on the example batch and compare loss, "
    "gradients, buffers and two updates; a difference is exit code 1, and nothing is written.",
)
@click.option(
    "--frozen",
    type=click.Choice(["constants", "inputs"]),
    help="What frozen parameters become: constants of the graph, or inputs that may "
    "change between steps.  [default: the step's, else constants]",
)
@click.option(
    "--ema",
    type=float,
    metavar="DECAY",
    help="Keep a moving average of every trained parameter.  [default: the step's]",
)
@dropout_option
@report_options(output=None, format_help="Form of the report on stdout.")
def command(
    target: str, output: Path, dynamic: tuple[str, ...], report: Report, **options: Any
) -> int:
    """Capture a training step of PyTorch as a training graph.

    FUNCTION in FILE.py takes nothing and returns the model, the loss function, a batch and, if
    there is one, the optimizer. Its code is run.
    """
    from memplan.api.capture.capturing import capture

    if str(output) == "-":
        raise UsageError("capture cannot write to stdout: weights may lie beside it", "name a file")
    # What the user's code prints is not our answer.
    with users_streams(), waiting(report, f"capturing {target}") as doing:
        result = capture(
            target,
            output,
            dynamic=_dynamic(dynamic),
            force=report.force,
            progress=doing,
            **options,
        )
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        click.echo(str(output))
    else:
        from memplan.report.terminal.capture_text import render

        report.emit_text(render(result, details=report.details))
    return 0


def _dynamic(given: tuple[str, ...]) -> str | dict[str, dict[int, str]] | None:
    """Names of dynamic axes as :class:`memplan.TorchStep` takes them.

    Raises:
        UsageError: a value has neither form.
    """
    if not given:
        return None
    if len(given) == 1 and given[0].isidentifier():
        return given[0]
    found: dict[str, dict[int, str]] = {}
    for text in given:
        place, equals, label = text.partition("=")
        name, colon, axis = place.rpartition(":")
        if not (equals and colon and name and label.isidentifier() and axis.isdecimal()):
            raise UsageError(
                f"--dynamic {text}: expected a name or INPUT:AXIS=NAME",
                "as in --dynamic batch, or --dynamic tokens:0=batch --dynamic tokens:1=length",
            )
        found.setdefault(name, {})[int(axis)] = label
    return found
