"""Options that several commands share, each declared once, and where results go."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memplan.errors import UsageError
from memplan.providers import PROVIDERS

if TYPE_CHECKING:
    from memplan.report.parts import Part
    from memplan.report.parts import Report as Told

Function = TypeVar("Function", bound=Callable[..., Any])

# Up to 18 digits: what fits into the 64 bits of an ONNX dimension.
_SIZE = re.compile(r"[0-9]{1,18}")
PATH = click.Path(path_type=Path)


def dim_option(
    help: str = "Set the size of a symbolic dimension. Repeatable.",
) -> Callable[[Function], Function]:
    """``--dim NAME=SIZE``, as ``dims``."""
    return click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help=help)


def loss_option(function: Function) -> Function:
    """``--loss`` of a graph that has one."""
    help = "The output that is the loss, if memplan picks the wrong one."
    return click.option("--loss", metavar="NAME", help=help)(function)


def state_option(function: Function) -> Function:
    """``--state``, as ``state``."""
    return click.option(
        "--state",
        multiple=True,
        metavar="HOW",
        help="Where the step writes new weights and moments: in-place (over the old ones, as "
        "memplan.Trainer does), apart (in memory of their own), or OUT=IN to pair an output with "
        "an input. Repeatable.  [default: in-place for steps with an optimizer by capture or grad; "
        "others as the file says, else apart]",
    )(function)


def dropout_option(function: Function) -> Function:
    """``--dropout``, of commands that make a training step."""
    return click.option(
        "--dropout",
        default="operator",
        show_default=True,
        metavar="SOURCE",
        help="How dropout masks are made: operator (the runtime draws them) or counter (computed "
        "from the step number, so that they can be recomputed; a seed as in counter{seed=7}).",
    )(function)


def portable_option(function: Function) -> Function:
    """``--portable``, of commands that make a training step."""
    return click.option(
        "--portable",
        is_flag=True,
        help="Write max pools and LogSoftmax by operators that WebGPU runs (docs/any-gpu.md).",
    )(function)


def session_option(help: str) -> Callable[[Function], Function]:
    """``--session``."""
    kinds = click.Choice(["tuned", "default"])
    return click.option("--session", type=kinds, default="tuned", show_default=True, help=help)


def provider_option(help: str, auto: bool = False) -> Callable[[Function], Function]:
    """``--provider``; with ``auto`` it may be left to the machine."""
    providers = [*(["auto"] if auto else []), *PROVIDERS]
    return click.option(
        "--provider",
        type=click.Choice(providers),
        default=providers[0],
        show_default=True,
        help=help,
    )


def time_limit_option(help: str, default: float | None = None) -> Callable[[Function], Function]:
    """``--time-limit`` in seconds, as ``time_limit``."""
    return click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        callback=finite,
        default=default,
        show_default=True,
        metavar="S",
        help=help,
    )


def strategy_names(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell may complete ``--strategy`` to."""
    from memplan.solver.strategies.builtin import ALIAS, BUILT_IN

    names = sorted((ALIAS, *BUILT_IN))
    return [name for name in names if name.startswith(typed)]


def optimizer_names(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell may complete ``--optimizer`` to."""
    from memplan.autodiff.optimizers.parse import KINDS

    return [name for name in ("none", *KINDS) if name.startswith(typed)]


def finite(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """The callback of an option whose number, if it is given, has an end.

    Raises:
        click.BadParameter: it is infinite, or not a number.
    """
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", ctx, parameter)
    return value


def weights_option(function: Function) -> Function:
    """``--weights``."""
    return click.option(
        "--weights",
        type=click.Choice(["auto", "reference", "copy"]),
        default="auto",
        show_default=True,
        help="What to do with weights in other files: reference them, or copy them beside the "
        "output; auto references them where ONNX allows it.",
    )(function)


def refuse_copy(to_stdout: bool, weights: str) -> None:
    """There is no place beside stdout.

    Raises:
        UsageError: a copy of the weights is asked for there.
    """
    if to_stdout and weights == "copy":
        raise UsageError("--weights copy: nothing lies beside stdout", "name a file with -o")


def measuring_options(runs_help: str) -> Callable[[Function], Function]:
    """``--runs``, ``--inputs``, ``--seed``, ``--threads``: how a model is run to measure it."""

    def decorate(function: Function) -> Function:
        for option in reversed(
            (
                click.option(
                    "--runs",
                    type=click.IntRange(min=1),
                    metavar="N",
                    default=5,
                    show_default=True,
                    help=runs_help,
                ),
                click.option(
                    "--inputs",
                    type=PATH,
                    help="Read the inputs from this .npz file.  [default: generated inputs]",
                ),
                click.option(
                    "--seed",
                    type=int,
                    metavar="N",
                    default=0,
                    show_default=True,
                    help="Seed for generated inputs.",
                ),
                click.option(
                    "--threads",
                    type=click.IntRange(min=0),
                    metavar="N",
                    default=0,
                    show_default=True,
                    help="Threads per operator; 0 lets the runtime choose.",
                ),
            )
        ):
            function = option(function)
        return function

    return decorate


@dataclass(frozen=True, slots=True)
class Report:
    """How a command tells its result: what all commands have in common.

    ``output`` is None for stdout, as it is for commands whose ``-o`` names another file.
    """

    form: str
    quiet: bool
    verbose: int
    color: str
    force: bool
    output: Path | None = None

    @property
    def details(self) -> bool:
        """Whether nothing is to be left out."""
        return self.verbose > 0

    @property
    def in_full(self) -> bool:
        """Whether a report leaves nothing out: it is to, or goes to a file."""
        return self.details or self.output is not None

    @property
    def to_stdout(self) -> bool:
        """Whether the result goes to stdout."""
        return is_stdout(self.output)

    def guard(self, *inputs: Path | None, others: Sequence[Path | None] = ()) -> None:
        """Refuse an output that cannot be written, before any work: see :func:`guard_output`."""
        guard_output(self.output, self.force, *inputs, others=others)

    def emit(self, result: str | bytes) -> None:
        """Write ``result`` to where it belongs."""
        emit(result, self.output, self.force)

    def emit_json(self, value: object) -> None:
        """Write a JSON object."""
        self.emit(json.dumps(value, indent=2) + "\n")

    def text_of(self, *parts: Part) -> str:
        """A report as text, as it goes to where it belongs."""
        from memplan.report.terminal.console import show
        from memplan.report.terminal.render import render

        content = render(parts, details=self.in_full)
        return show(content, color=self.color, stdout=self.to_stdout)

    def emit_text(self, told: Told) -> None:
        """Write a report as text."""
        self.emit(self.text_of(*told.parts))


def report_options(
    *forms: str,
    output: str | None = "Write the result to this file; - is stdout.  [default: stdout]",
    format_help: str = "Format of the result.",
) -> Callable[[Function], Function]:
    """``--format``, ``-o``, ``-q``, ``-v``, ``--color`` and ``--force``, as one :class:`Report`.

    Args:
        forms: the formats, the default first; none: ``text`` and ``json``.
        output: the help of ``-o``; None where the command has none, or one of its own.
        format_help: the help of ``--format``.
    """
    choices = forms or ("text", "json")
    options = [
        click.option(
            "--format",
            "form",
            type=click.Choice(choices),
            default=choices[0],
            show_default=True,
            help=format_help,
        ),
        *([click.option("-o", "--output", type=PATH, help=output)] if output else []),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors and the result."),
        click.option(
            "-v",
            "--verbose",
            count=True,
            help="Print full lists and log to stderr; -vv logs more and shows tracebacks.",
        ),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            show_default=True,
            help="When to use colours; auto also respects NO_COLOR.",
        ),
        click.option("--force", is_flag=True, help="Overwrite existing output files."),
    ]
    names = ["form", "quiet", "verbose", "color", "force", *(["output"] if output else [])]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **params: Any) -> Any:
            report = Report(**{name: params.pop(name) for name in names})
            return function(*args, report=report, **params)

        decorated: Any = call
        for option in reversed(options):
            decorated = option(decorated)
        result: Function = decorated
        return result

    return decorate


def bound(dims: Sequence[str]) -> dict[str, int]:
    """The ``--dim NAME=SIZE`` options as a dictionary.

    Raises:
        UsageError: malformed, or a dimension is given two different sizes.
    """
    result: dict[str, int] = {}
    for text in dims:
        name, _, size = text.rpartition("=")
        number = size_of_dim(size)
        if not name or number is None:
            raise UsageError(
                f"--dim {text}: expected NAME=SIZE with a size of at least 1",
                "as in --dim N=32",
            )
        if result.setdefault(name, number) != number:
            raise UsageError(f"--dim {name} is given twice: {result[name]} and {size}")
    return result


def size_of_dim(text: str) -> int | None:
    """A size of a dimension; None if the text is not one."""
    return int(text) if _SIZE.fullmatch(text) and int(text) >= 1 else None


def is_stdout(output: Path | None) -> bool:
    """Whether an ``-o`` means stdout."""
    return output is None or str(output) == "-"


def guard_output(
    output: Path | None, force: bool, *inputs: Path | None, others: Sequence[Path | None] = ()
) -> None:
    """Refuse outputs before any work is done for them; ``others`` are checked by those who write
    them, but for what they overwrite.

    Raises:
        UsageError: one is among ``inputs``, or is another; ``output`` exists without ``force``, or
            its folder cannot be written to.
    """
    written = output if output is not None and not is_stdout(output) else None
    if not any((written, *others)):
        return
    from memplan.proto.write import check_output, keep_apart

    keep_apart((written, *others), *inputs)
    if written is not None:
        check_output(written, force)


def one_on_stdout(output: Path | None, form: str, product: str) -> bool:
    """Whether the product of a command goes to stdout, where its report then cannot go.

    Raises:
        UsageError: both were asked for.
    """
    to_stdout = output is not None and is_stdout(output)
    if to_stdout and form == "json":
        raise UsageError(f"{product} cannot both go to stdout", "name a file with -o")
    return to_stdout


def emit(result: str | bytes, output: Path | None = None, force: bool = False) -> None:
    """Write a result to a file, or to stdout when none is given or it is ``-``."""
    # File names may hold bytes that are not text; they are shown, not a reason to fail.
    data = result.encode(errors="backslashreplace") if isinstance(result, str) else result
    if output is None or is_stdout(output):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        from memplan.proto.write import write_atomically

        write_atomically(output, data, force=force)
