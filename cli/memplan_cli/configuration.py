"""Defaults of options from ``[tool.memplan]`` of the nearest pyproject.toml.

The file may be somebody else's: whoever looks at a model in a checkout has not read what lies
there. So it chooses how to look at a model, and nothing more: no file is named, written,
overwritten or run because of it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memplan.api.check.toml import parse_toml
from memplan.errors import UsageError
from memplan.proto.paths import MOST_TEXT, read_bytes

_LOG = logging.getLogger("memplan.configuration")
_KEY = "memplan_cli.configuration"
ALLOWED = frozenset(
    {"dim", "loss", "session", "provider", "state", "runs", "draws", "seed", "threads", "plain"}
    | {"top", "frontier", "format", "quiet", "verbose", "color", "max-peak", "strict", "new-dim"}
    | {"budget", "reserve", "strategy", "optimize", "passes", "wrt", "keep", "recompute"}
    | {"scan-recompute", "time-limit", "dry-run", "weights", "device"}
    | {"fit", "fit-dim", "fit-step", "effort", "gap", "jobs"}
    | {"logits", "class-axis", "optimizer", "checkpoints", "forward-only", "loss-scale"}
    | {"clip-norm", "clip-value"}
    | {"via", "dynamic", "frozen", "ema", "dropout"}
    | {"accumulate", "chunk", "offload", "host-link"}
    | {"steps", "batch", "lr", "hyper", "init", "shuffle", "guard", "measure", "spin"}
)
"""The options that a configuration file may set."""
REFUSED = frozenset(
    {"output", "update-output", "force", "update", "lock", "inputs", "costs", "profile", "resume"}
    | {"backend", "address", "optimizer-model", "checkpoint", "checkpoint-every"}
    | {"data", "weights-file", "log", "export-forward"}
    | {"check", "base", "report", "plan", "plan-out"}
)
"""Those that it may not: they name files or other machines, make a command write or run something,
or leave out a check."""


def configured(ctx: click.Context, folder: Path | None = None) -> dict[str, Any]:
    """Defaults for a command's parameters from ``[tool.memplan]`` of the nearest pyproject.toml.

    Keys are option names (``session``, ``time-limit``, ...); a table ``[tool.memplan.COMMAND]``
    holds those of one command and wins.

    Raises:
        UsageError: not valid TOML, a key that is not an option or not one of :data:`ALLOWED`, or
            a value of the wrong type.
    """
    file = _nearest(folder)
    if file is None:
        return {}
    try:
        table = parse_toml(read_bytes(file, MOST_TEXT).decode()).get("tool", {})
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
        raise UsageError(f"{file}: unknown command '{key}' in the table tool.memplan.{key}")
    for key in sorted({k for t in (shared, own, *_tables(table)) for k in t}):
        if key.replace("_", "-") in REFUSED:
            raise UsageError(
                f"{file}: tool.memplan.{key} is not for a configuration file, which cannot name "
                "files, make a command write or run anything, or leave out a check",
                f"delete it there, and pass --{key.replace('_', '-')} where you mean it",
            )
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
    ctx.meta[_KEY] = file
    return result


def _nearest(folder: Path | None) -> Path | None:
    """The pyproject.toml in ``folder`` or above it; by default in the current one."""
    try:
        here = folder or Path.cwd()
        return next(
            (f for p in (here, *here.parents) if (f := p / "pyproject.toml").is_file()), None
        )
    except OSError:  # the current folder was deleted, or may not be searched
        return None


def _tables(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in table.values() if isinstance(value, dict)]


def source_of_defaults(ctx: click.Context) -> str:
    """``KEY, KEY in FILE``: what the command took from a configuration file; empty for nothing."""
    file = ctx.meta.get(_KEY)
    names = (p.name for p in ctx.command.params if p.name)
    taken = [n for n in names if ctx.get_parameter_source(n) is ParameterSource.DEFAULT_MAP]
    options = {option.name: name for name, option in _options_of(ctx.command).items()}
    keys = ", ".join(sorted(options.get(name, name) for name in taken))
    return f"{keys} in [tool.memplan] of {file}" if keys and file is not None else ""


def log_defaults(ctx: click.Context) -> None:
    """Log what came from where: ``-v`` shows it."""
    source = source_of_defaults(ctx)
    if source:
        _LOG.info("defaults: %s", source)


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
