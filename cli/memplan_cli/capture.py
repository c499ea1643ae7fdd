"""``memplan capture``."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click

from memplan.errors import UsageError
from memplan.options import GradOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import Report, check_option, options, output_option, report_options
from memplan_cli.progress import waiting
from memplan_cli.standard_files import STDERR, STDOUT


@memplan_command(
    "capture",
    "memplan capture train.py:make_step -o step.onnx",
    "memplan capture train.py:make_step -o step.onnx --dynamic batch",
)
@click.argument("target", metavar="FILE.py:FUNCTION")
@output_option("Write the training graph to this file.", required=True)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME",
    help="Leave the first axis of every batch tensor open, under this name; INPUT:AXIS=NAME opens "
    "one axis. Repeatable.",
)
@click.option(
    "--weights",
    type=click.Choice(["auto", "embed", "copy", "none"]),
    default="auto",
    show_default=True,
    help="Where the weights go: embed (into the file), copy (into OUTPUT.data beside it), or "
    "none; auto embeds up to 256 MiB and copies more.",
)
@check_option(
    "Run the step in PyTorch and in ONNX Runtime on the example batch, and compare loss, "
    "gradients, buffers and two updates."
)
@click.option(
    "--frozen",
    type=click.Choice(["constants", "inputs"]),
    help="What frozen parameters become: constants, or inputs that you may change between steps.  "
    "[default: as in the step, else constants]",
)
@options(GradOptions, "dropout", "portable")
@report_options(output=None, format_help="Format of the report on stdout.")
def command(
    target: str, output: Path, dynamic: tuple[str, ...], report: Report, **asked: Any
) -> int:
    """Capture a PyTorch training step as an ONNX training graph.

    FUNCTION in FILE.py takes no arguments and returns the model, the loss function, a batch and,
    optionally, the optimizer. memplan runs this code.
    """
    from memplan.api.capture.capturing import capture
    from memplan.report.tell.capture import tell_capture

    if str(output) == "-":
        raise UsageError("capture cannot write to stdout: weights may lie beside it", "name a file")
    with _prints_to_stderr(), waiting(report, f"capturing {target}") as show:
        result = capture(
            target,
            output,
            dynamic=_dynamic(dynamic),
            force=report.force,
            progress=lambda what: show(f"capturing {target}: {what}"),
            **asked,
        )
    report.tell(result, str(output), partial(tell_capture, result))
    return 0


@contextmanager
def _prints_to_stderr() -> Iterator[None]:
    """Inside, and when the program ends, what the user's code prints goes to stderr, below Python
    as well: stdout has the report alone."""
    ours = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, STDOUT)
        os.close(ours)
        atexit.register(os.dup2, STDERR, STDOUT)  # is called before the handlers of that code


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
