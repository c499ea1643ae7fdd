"""``memplan strategies``."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from memplan.units import printable
from memplan_cli.command import memplan_command
from memplan_cli.shared_options import Report, report_options

if TYPE_CHECKING:
    from memplan.solver.strategies.builtin import Listed
    from memplan.solver.strategies.spec import Option

SCHEMA = "memplan.strategies/1"
_WIDTH = 80


@memplan_command("strategies", "memplan strategies", "memplan strategies -q")
@report_options()
def command(report: Report) -> int:
    """List the strategies of 'memplan rewrite --strategy', with their options.

    The list includes strategies from installed packages. -q prints only the names of those that
    load.
    """
    from memplan.solver.strategies.builtin import ALIAS, DEFAULT, list_strategies

    report.guard()
    found = list_strategies()
    if report.form == "json":
        rows = [as_json(item) for item in found]
        report.emit_json({"schema": SCHEMA, "default": DEFAULT, "strategies": rows})
    elif report.quiet:
        report.emit("".join(f"{item.name}\n" for item in found if not item.broken))
    else:
        alias = {DEFAULT: f" (or {ALIAS}: what rewrite does unless told otherwise)"}
        report.emit("\n".join(as_text(item, alias.get(item.name, "")) for item in found))
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
                "meaning": option.meaning or None,
            }
            for option in item.options
        ],
        "ignores_budget": item.ignores_budget,
        "broken": item.broken or None,
    }


def as_text(item: Listed, remark: str) -> str:
    """A strategy as a few lines."""
    if item.broken:
        return f"{item.name}: broken\n  {printable(' '.join(item.broken.split()))}\n"
    lines = [f"{item.name}{remark}", f"  {item.summary}", f"  source: {item.source}"]
    if item.owner != "memplan":
        lines.append(f"  package: {item.owner}")
    if item.ignores_budget:
        lines.append("  makes one plan, whatever the budget")
    lines += [f"  {option_line(option)}" for option in item.options]
    shown = [wrapped for line in lines for wrapped in _wrapped(printable(line))]
    return "\n".join(shown) + "\n"


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return wrap(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def option_line(option: Option) -> str:
    """``count=0: a whole number; what it is for``, with the default behind the ``=``."""
    kinds = {"number": "a whole number", "text": "a word"}
    values = " or ".join(option.allowed) if option.allowed else kinds[option.kind]
    meaning = f"; {option.meaning}" if option.meaning else ""
    return f"{option.name}={option.default}: {values}{meaning}"
