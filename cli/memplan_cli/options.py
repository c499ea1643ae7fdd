"""Click's options made of those of :mod:`memplan.options`, those that only commands have, and where
results go."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from memplan.errors import UsageError
from memplan.option_fields import Declared, declared

if TYPE_CHECKING:
    from memplan.report.parts import Part
    from memplan.report.parts import Report as Told

Function = TypeVar("Function", bound=Callable[..., Any])

# Up to 18 digits: what fits into the 64 bits of an ONNX dimension.
_SIZE = re.compile(r"[0-9]{1,18}")
PATH = click.Path(path_type=Path)
OPTIONS, SHARED, RARELY = "Options", "In all commands", "Rarely"
"""Headings of the help: the first, and the last two."""


class Headed(click.Option):
    """An option that stands under a heading of the help."""

    def __init__(self, *args: Any, heading: str = OPTIONS, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> Any:
        """What follows the help in brackets: not the range, which a message says if need be."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def options(kind: type, *names: str, **settings: Any) -> Callable[[Function], Function]:
    """The options that the fields of a dataclass declare, those of ``names`` or all, in order.

    ``settings`` are click's, and ``heading`` that of the help; what is declared is for the rest.
    """
    found = declared(kind)

    def decorate(function: Function) -> Function:
        for name in reversed(names or tuple(found)):
            made = {**_settings(found[name]), **settings}
            function = click.option(_flags(found[name]), cls=Headed, **made)(function)
        return function

    return decorate


def _flags(found: Declared) -> str:
    name = found.name.replace("_", "-")
    return f"--{name}/--no-{name}" if found.default is True else f"--{name}"


def _settings(found: Declared) -> dict[str, Any]:
    said, many = found.option, tuple[str, ...] in found.kinds
    whole, number = int in found.kinds, float in found.kinds
    text = str in found.kinds and not said.choices
    default = found.default
    if not isinstance(default, str | int | float | tuple):
        default = None  # of a size: left out
    settings: dict[str, Any] = {
        # To click 8.3 and newer None is a value, with which nothing is missing.
        **({} if found.default is MISSING else {"default": default}),
        "show_default": bool(default or whole) and not said.unset,
        "required": found.default is MISSING,
        "multiple": many,
        "metavar": said.metavar or ("N" if whole else "X" if number else "NAME" if text else None),
        "help": said.help
        + (" Repeatable." if many else "")
        + (f"  [default: {said.unset}]" if said.unset else ""),
        "heading": RARELY if said.rarely else OPTIONS,
        "shell_complete": _COMPLETED.get(found.name),
    }
    if said.choices:
        settings["type"] = click.Choice(said.choices)
    elif whole:
        settings["type"] = click.IntRange(min=said.least)
    elif number:
        settings["type"] = click.FloatRange(min=said.above, min_open=said.above is not None)
        settings["callback"] = finite
    elif Path in found.kinds:
        settings["type"] = PATH
    elif bool in found.kinds:
        settings["is_flag"] = True
    return settings


def dim_option(
    help: str = "Set the size of a symbolic dimension. Repeatable.", heading: str = OPTIONS
) -> Callable[[Function], Function]:
    """``--dim NAME=SIZE``, as ``dims``."""
    return click.option(
        "--dim",
        "dims",
        cls=Headed,
        heading=heading,
        multiple=True,
        metavar="NAME=SIZE",
        help=help,
    )


def output_option(help: str, **settings: Any) -> Callable[[Function], Function]:
    """``-o``, of commands that write a file beside their report."""
    return click.option("-o", "--output", type=PATH, help=help, **settings)


def check_option(help: str) -> Callable[[Function], Function]:
    """``--check``, of commands that make a training step."""
    help += " If they differ, exit with code 1 and write nothing."
    return click.option("--check/--no-check", default=True, show_default=True, help=help)


def strategy_names(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell may complete ``--strategy`` to."""
    from memplan.solver.strategies.builtin import ALIAS, BUILT_IN

    names = sorted((ALIAS, *BUILT_IN))
    return [name for name in names if name.startswith(typed)]


def optimizer_names(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell may complete ``--optimizer`` to."""
    from memplan.autodiff.optimizers.formulas import KINDS

    return [name for name in ("none", *KINDS) if name.startswith(typed)]


_COMPLETED = {"strategy": strategy_names, "optimizer": optimizer_names}


def finite(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """The callback of an option whose number, if it is given, has an end.

    Raises:
        click.BadParameter: it is infinite, or not a number.
    """
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", ctx, parameter)
    return value


def refuse_copy(to_stdout: bool, weights: str) -> None:
    """There is no place beside stdout.

    Raises:
        UsageError: a copy of the weights is asked for there.
    """
    if to_stdout and weights == "copy":
        raise UsageError("--weights copy: nothing lies beside stdout", "name a file with -o")


class Answer(Protocol):
    """What a command tells."""

    def as_json(self) -> dict[str, object]:
        """As JSON has it."""


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

    def tell(self, answer: Answer, quiet: str | Part, told: Callable[[bool], Told]) -> None:
        """Write an answer in the format that was asked for.

        Args:
            answer: it.
            quiet: all of it that is told with ``-q``.
            told: makes the report of it; True: with nothing left out.
        """
        if self.form == "json":
            self.emit_json(answer.as_json())
        elif self.form == "html":
            from memplan.report.html.page import page

            self.emit(page(told(True)))
        elif self.quiet:
            self.emit(f"{quiet}\n" if isinstance(quiet, str) else self.text_of(quiet))
        else:
            self.emit(self.text_of(*told(self.in_full).parts))


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
    every = [
        _shared(
            "--format",
            "form",
            type=click.Choice(choices),
            default=choices[0],
            show_default=True,
            help=format_help,
        ),
        *([_shared("-o", "--output", type=PATH, help=output)] if output else []),
        _shared("-q", "--quiet", is_flag=True, help="Print only errors and the result."),
        _shared(
            "-v",
            "--verbose",
            count=True,
            help="Print full lists, log to stderr; -vv: log more, show tracebacks.",
        ),
        _shared(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            show_default=True,
            help="When to use colours; auto also respects NO_COLOR.",
        ),
        _shared("--force", is_flag=True, help="Overwrite existing output files."),
    ]
    names = [field.name for field in fields(Report)][: None if output else -1]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **params: Any) -> Any:
            report = Report(**{name: params.pop(name) for name in names})
            return function(*args, report=report, **params)

        decorated: Any = call
        for option in reversed(every):
            decorated = option(decorated)
        result: Function = decorated
        return result

    return decorate


def _shared(*flags: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*flags, cls=Headed, heading=SHARED, **settings)


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


def emit_model(result: Any) -> None:
    """Write the model of an answer to stdout, for memplan to know again."""
    from memplan.proto.metadata import sealed_bytes

    emit(sealed_bytes(result.model))


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
