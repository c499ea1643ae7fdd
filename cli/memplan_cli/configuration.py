"""Defaults of options from ``[tool.memplan]`` of the nearest pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.check.toml import parse_toml
from memplan.errors import UsageError


def configured(ctx: click.Context, folder: Path | None = None) -> dict[str, Any]:
    """Defaults for a command's parameters from ``[tool.memplan]`` of the nearest pyproject.toml.

    Keys are option names (``session``, ``time-limit``, ...); a table ``[tool.memplan.COMMAND]``
    holds those of one command and wins.

    Raises:
        UsageError: not valid TOML, a key that is not an option, or a value of the wrong type.
    """
    here = folder or Path.cwd()
    file = next((f for p in (here, *here.parents) if (f := p / "pyproject.toml").is_file()), None)
    if file is None:
        return {}
    try:
        table = parse_toml(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError among them
        raise UsageError(f"{file} cannot be read: {error}", "it must be valid TOML") from None
    table = table.get("memplan", {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{file}: tool.memplan is not a table", "write [tool.memplan]")
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = table.get(ctx.info_name or "", {})
    if not isinstance(own, dict):
        raise UsageError(f"{file}: tool.memplan.{ctx.info_name} is not a table")
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
                f"{file}: tool.memplan.{key} is not an option",
                "keys are long option names without --",
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
        wanted, what = (str, int), "a string"
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UsageError(f"{where} = {value!r} is not {what}")
    return str(value) if str in wanted else value
