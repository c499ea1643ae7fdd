"""Options that several commands share, and defaults from pyproject.toml."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from memplan.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

SESSIONS = ("tuned", "default")


def model_options(function: Function) -> Function:
    """``--dim``, ``--loss``."""
    function = click.option(
        "--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Bind a symbolic dimension."
    )(function)
    return click.option("--loss", metavar="NAME", help="The loss output, if the search errs.")(
        function
    )


def output_options(function: Function) -> Function:
    """``-q``, ``-v``, ``--color``, ``--force``."""
    function = click.option("-q", "--quiet", is_flag=True, help="Only errors and results.")(
        function
    )
    function = click.option("-v", "--verbose", count=True, help="Say more; -vv: tracebacks.")(
        function
    )
    function = click.option(
        "--color", type=click.Choice(["auto", "always", "never"]), default="auto",
        help="Colours (NO_COLOR is respected).",
    )(function)  # fmt: skip
    return click.option("--force", is_flag=True, help="Overwrite the output file.")(function)


def bound(dims: Sequence[str]) -> dict[str, int]:
    """The ``--dim NAME=SIZE`` options as a dictionary.

    Raises:
        UsageError: malformed, or a dimension is bound twice to different sizes.
    """
    result: dict[str, int] = {}
    for text in dims:
        name, _, size = text.rpartition("=")
        if not name or not (size.isascii() and size.isdigit()) or int(size) < 1:
            raise UsageError(f"--dim {text}: not NAME=SIZE with a size of at least 1")
        if result.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim {name} is given twice: {result[name]} and {size}")
    return result


def emit(text: str | bytes, output: Path | None, force: bool) -> None:
    """Write a result to a file, or to stdout when none is given or it is ``-``."""
    from memplan.model.write import write_atomically

    data = text.encode() if isinstance(text, str) else text
    if output is None or str(output) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        write_atomically(output, data, force=force)


def configured(command: str, folder: Path | None = None) -> dict[str, Any]:
    """Defaults for ``command`` from ``[tool.memplan]`` of the nearest pyproject.toml.

    Keys are option names (``session``, ``provider``, ...); a table ``[tool.memplan.COMMAND]``
    holds those of one command and wins.

    Raises:
        UsageError: the file is no valid TOML.
    """
    for parent in [(folder or Path.cwd()), *(folder or Path.cwd()).parents]:
        file = parent / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            table = tomllib.loads(file.read_text()).get("tool", {}).get("memplan", {})
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{file} is not valid TOML: {error}") from None
        shared = {k: v for k, v in table.items() if not isinstance(v, dict)}
        return {k.replace("-", "_"): v for k, v in {**shared, **table.get(command, {})}.items()}
    return {}


def use_configuration(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Eager callback that fills click's default map from pyproject.toml."""
    settings = configured(ctx.info_name or "")
    known = {parameter.name for parameter in ctx.command.params}
    ctx.default_map = {k: v for k, v in settings.items() if k in known}
    return value


def configuration_option(function: Function) -> Function:
    """Adds a hidden eager option whose only work is to read pyproject.toml."""
    return click.option(
        "--_configuration", is_eager=True, hidden=True, expose_value=False,
        callback=use_configuration,
    )(function)  # fmt: skip
