"""``memplan strategies``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.options import configuration_option, emit, output_options

if TYPE_CHECKING:
    from memplan.strategies.builtin import Listed
    from memplan.strategies.spec import Option

SCHEMA = "memplan.strategies/1"


@click.command("strategies")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file, or - for stdout.")
@output_options
@configuration_option
def command(
    form: str, output: Path | None, quiet: bool, verbose: int, color: str, force: bool
) -> int:
    """List the strategies of 'memplan rewrite --strategy', with their options.

    Those of installed packages are among them. -q: names only; broken ones are left out then.
    """
    from memplan.strategies.builtin import ALIAS, DEFAULT, list_strategies

    found = list_strategies()
    if form == "json":
        rows = [as_json(item) for item in found]
        text = (
            json.dumps({"schema": SCHEMA, "default": DEFAULT, "strategies": rows}, indent=2) + "\n"
        )
    elif quiet:
        text = "".join(f"{item.name}\n" for item in found if not item.broken)
    else:
        alias = {DEFAULT: f" (or {ALIAS}: what rewrite does unless told otherwise)"}
        text = "\n".join(as_text(item, alias.get(item.name, "")) for item in found)
    emit(text, output, force)
    return 0


def as_json(item: Listed) -> dict[str, object]:
    """A strategy as an object; ``broken`` is null where it works."""
    return {
        "name": item.name,
        "owner": item.owner,
        "summary": item.summary,
        "source": item.source,
        "options": [
            {
                "name": option.name,
                "kind": option.kind,
                "default": option.default,
                "allowed": list(option.allowed) or None,
            }
            for option in item.options
        ],
        "ignores_budget": item.ignores_budget,
        "broken": item.broken or None,
    }


def as_text(item: Listed, remark: str) -> str:
    """A strategy as a few lines."""
    if item.broken:
        return f"{item.name}: broken\n  {' '.join(item.broken.split())}\n"
    lines = [f"{item.name}{remark}", f"  {item.summary}", f"  source: {item.source}"]
    if item.owner != "memplan":
        lines.append(f"  package: {item.owner}")
    if item.ignores_budget:
        lines.append("  makes one plan, whatever the budget")
    lines += [f"  {option_line(option)}" for option in item.options]
    return "\n".join(lines) + "\n"


def option_line(option: Option) -> str:
    """``count=0: a whole number``, with the default behind the ``=``."""
    kinds = {"number": "a whole number", "text": "a text"}
    return f"{option.name}={option.default}: " + (
        " or ".join(option.allowed) if option.allowed else kinds[option.kind]
    )
