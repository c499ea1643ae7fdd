"""``memplan strategies``."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from memplan.units import printable
from memplan_cli.command import memplan_command
from memplan_cli.options import Report, report_options

if TYPE_CHECKING:
    from memplan.solver.strategies.spec import Option
    from memplan.solver.strategy import Strategy

SCHEMA = "memplan.strategies/1"
_WIDTH = 80


@memplan_command("strategies", "memplan strategies", "memplan strategies -q")
@report_options()
def command(report: Report) -> int:
    """List the strategies of 'memplan rewrite --strategy', with their options.

    -q prints only their names.
    """
    from memplan.solver.strategies.builtin import ALIAS, BUILT_IN, DEFAULT

    report.guard()
    found = [BUILT_IN[name] for name in sorted(BUILT_IN)]
    if report.form == "json":
        rows = [as_json(item) for item in found]
        report.emit_json({"schema": SCHEMA, "default": DEFAULT, "strategies": rows})
    elif report.quiet:
        report.emit("".join(f"{item.name}\n" for item in found))
    else:
        alias = {DEFAULT: f" (or {ALIAS}: what rewrite does unless told otherwise)"}
        report.emit("\n".join(as_text(item, alias.get(item.name, "")) for item in found))
    return 0


def as_json(item: type[Strategy]) -> dict[str, object]:
    """A strategy as an object; ``owner`` and ``broken`` are the same for all."""
    from memplan.solver.strategies.spec import options_of

    return {
        "name": item.name,
        "owner": "memplan",
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
            for option in options_of(item)
        ],
        "ignores_budget": item.ignores_budget,
        "broken": None,
    }


def as_text(item: type[Strategy], remark: str) -> str:
    """A strategy as a few lines."""
    from memplan.solver.strategies.spec import options_of

    lines = [f"{item.name}{remark}", f"  {item.summary}", f"  source: {item.source}"]
    if item.ignores_budget:
        lines.append("  makes one plan, whatever the budget")
    lines += [f"  {option_line(option)}" for option in options_of(item)]
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
