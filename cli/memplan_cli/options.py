"""Options that several commands share, and defaults from pyproject.toml."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from memplan.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

SESSIONS = ("tuned", "default")
# Up to 18 digits: what fits into the 64 bits of an ONNX dimension.
_SIZE = re.compile(r"[0-9]{1,18}")


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
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Colours (NO_COLOR is respected).",
    )(function)
    return click.option("--force", is_flag=True, help="Overwrite the output file.")(function)


def bound(dims: Sequence[str]) -> dict[str, int]:
    """The ``--dim NAME=SIZE`` options as a dictionary.

    Raises:
        UsageError: malformed, or a dimension is bound twice to different sizes.
    """
    result: dict[str, int] = {}
    for text in dims:
        name, _, size = text.rpartition("=")
        if not name or not _SIZE.fullmatch(size) or int(size) < 1:
            raise UsageError(
                f"--dim {text}: not NAME=SIZE with a size of at least 1", "for example --dim N=32"
            )
        if result.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim {name} is given twice: {result[name]} and {size}")
    return result


def keep_inputs(output: Path | None, *inputs: Path | None) -> None:
    """Refuse to write over a file that is read, ``--force`` or not.

    Raises:
        UsageError: ``output`` is one of ``inputs``.
    """
    if output is None or str(output) == "-" or not os.path.exists(output):
        return
    for path in inputs:
        if path is not None and os.path.exists(path) and output.samefile(path):
            raise UsageError(
                f"{output} is an input of this command, and inputs are never overwritten",
                "choose another output",
            )


def emit(text: str | bytes, output: Path | None, force: bool) -> None:
    """Write a result to a file, or to stdout when none is given or it is ``-``."""
    # File names may hold bytes that are no text; they are shown, not a reason to fail.
    data = text.encode(errors="backslashreplace") if isinstance(text, str) else text
    if output is None or str(output) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        from memplan.proto.write import write_atomically

        write_atomically(output, data, force=force)


def configured(ctx: click.Context, folder: Path | None = None) -> dict[str, Any]:
    """Defaults for a command's parameters from ``[tool.memplan]`` of the nearest pyproject.toml.

    Keys are option names (``session``, ``time-limit``, ...); a table ``[tool.memplan.COMMAND]``
    holds those of one command and wins.

    Raises:
        UsageError: no valid TOML, a key that is no option, or a value of the wrong type.
    """
    here = folder or Path.cwd()
    file = next((f for p in (here, *here.parents) if (f := p / "pyproject.toml").is_file()), None)
    if file is None:
        return {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError among them
        raise UsageError(f"{file} cannot be read: {error}", "it must be valid TOML") from None
    table = table.get("memplan", {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{file}: tool.memplan is no table", "write [tool.memplan]")
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = table.get(ctx.info_name or "", {})
    if not isinstance(own, dict):
        raise UsageError(f"{file}: tool.memplan.{ctx.info_name} is no table")
    for key in sorted(table.keys() - shared.keys() - set(_command_names(ctx))):
        raise UsageError(f"{file}: there is no command '{key}' for the table tool.memplan.{key}")
    result: dict[str, Any] = {}
    options = _options_of(ctx.command)
    for key, value in {**shared, **own}.items():
        option = options.get(key.replace("_", "-"))
        if option is not None:
            result[str(option.name)] = _typed(option, value, f"{file}: tool.memplan.{key}")
        elif key in own or key.replace("_", "-") not in _all_options(ctx):
            raise UsageError(
                f"{file}: tool.memplan.{key} is no option", "keys are long option names without --"
            )
    return result


def _options_of(command: click.Command) -> dict[str, click.Option]:
    """Options by long name without dashes."""
    return {
        name.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
        if name.startswith("--")
    }


def _command_names(ctx: click.Context) -> list[str]:
    """The commands beside which this one stands."""
    group = ctx.parent.command if ctx.parent is not None else None
    return group.list_commands(ctx) if isinstance(group, click.Group) else [str(ctx.info_name)]


def _all_options(ctx: click.Context) -> set[str]:
    """Names of the options of every command."""
    group = ctx.parent.command if ctx.parent is not None else None
    if not isinstance(group, click.Group):
        return set()
    commands = [group.get_command(ctx, name) for name in group.list_commands(ctx)]
    return {name for command in commands if command for name in _options_of(command)}


def _typed(option: click.Option, value: object, where: str) -> object:
    """The value as the option takes it; TOML knows the difference between 1, "1" and true."""
    if option.multiple:
        values = value if isinstance(value, list) else [value]
        return [_single(option, item, where) for item in values]
    return _single(option, value, where)


def _single(option: click.Option, value: object, where: str) -> object:
    wanted: tuple[type, ...]
    if option.is_flag:
        wanted, what = (bool,), "true or false"
    elif option.count or isinstance(option.type, click.types.IntParamType):
        wanted, what = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        wanted, what = (int, float), "a number"
    else:
        wanted, what = (str, int), "a text"
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UsageError(f"{where} = {value!r} is not {what}")
    return str(value) if str in wanted else value


def use_configuration(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Eager callback that fills click's default map from pyproject.toml."""
    ctx.default_map = configured(ctx)
    return value


def configuration_option(function: Function) -> Function:
    """Adds a hidden eager option whose only work is to read pyproject.toml."""
    option = click.option(
        "--_configuration",
        is_eager=True,
        hidden=True,
        expose_value=False,
        callback=use_configuration,
    )
    return option(function)
