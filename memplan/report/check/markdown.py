"""A comment for a pull request: the verdict first, then what changed, then why.

GitHub cuts comments at 65,536 characters, so this stays below 60,000 and says how many it left
out. Names stand in code spans, where neither a mention nor a link nor HTML is anything but text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from textwrap import wrap
from urllib.parse import quote

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind, worst_first
from memplan.api.check.peak import Peak
from memplan.api.check.text import finding_lines, notes, reasons
from memplan.api.check.verdict import COUNTED, growth, headline, verdict
from memplan.report.check.services import COMMANDS, Level, in_repository, level
from memplan.units import counted, format_bytes, printable

MOST_CHARACTERS = 60_000
MARKER = "<!-- memplan check lock="
"""How the hidden line begins by which a later run finds its comment."""
_MOST_TABLE = 20_000
_MOST_PATH, _MOST_CAUSE, _MOST_NAME = 60, 110, 28
_MOST_BLOCK = 6_000
_WIDTH = 110
"""Characters in a line of a block of code that GitHub shows without a bar to scroll by."""
_MOST_NOTES = 3
_PLAIN = re.compile(r"(?!www\.)[A-Za-z0-9]+(?:[ ._-][A-Za-z0-9]+)*")
# A word in which something could be markup, without what ends a phrase behind it.
_MARKUP = re.compile(r"(?:(?=\S*?(?:[\\`*_{}\[\]<>#!|~@&$]|:\S))|(?=www\.))\S+?(?=[,;.:]*(?:\s|$))")
_REMARKS = {Kind.MISSING: ": only the lock lists it", Kind.ACCOUNTING: ": record it again"}


def markdown(result: CheckResult) -> str:
    """The text of the comment."""
    found = worst_first(result.findings)
    changed = [each for each in found if each.kind is not Kind.OK or each.change_bytes]
    unchanged = len(found) - len(changed)
    tail = [] if not unchanged or not changed else [f"{unchanged:,} unchanged"]
    told = [_plain(note, _MOST_CAUSE * 3) for note in notes(result)]
    tail += [f"note: {note}" for note in told[:_MOST_NOTES]]
    end = "\n\n".join([*tail, _marker(result)]) + "\n"
    parts = [_first_line(result)]
    parts += _table(changed, result) if changed else []
    room = MOST_CHARACTERS - sum(len(part) + 2 for part in parts) - len(end)
    parts += _details([f for f in changed if level(f) is not Level.NONE], room)
    return "\n\n".join([*parts, end])


def _first_line(result: CheckResult) -> str:
    worst = headline(result)
    line = f"**memplan: {verdict(result)}**"
    if worst is None:
        return line
    name, change = worst
    shown = name if _PLAIN.fullmatch(name) and len(name) <= _MOST_NAME else _code(name, _MOST_NAME)
    return f"{line} · {shown} {change}"


def _table(changed: list[Finding], result: CheckResult) -> list[str]:
    """Changed models, as many as there is room for."""
    locked, based = result.has_lock, result.base is not None
    names = ["model", *(["locked"] if locked else []), *(["base"] if based else []), "now"]
    names += ["change", "why"]
    sides = "|".join(":-" if name in _LEFT else "-:" for name in names)
    head = [f"| {' | '.join(names)} |", f"|{sides}|"]
    rows: list[str] = []
    room = _MOST_TABLE
    for finding in changed:
        row = f"| {' | '.join(_cells(finding, locked, based))} |"
        room -= len(row)
        if room < 0:
            break
        rows.append(row)
    more = len(changed) - len(rows)
    table = "\n".join([*head, *rows])
    parts = [table, f"{counted(more, 'model')} more"] if more else [table]
    if result.base is not None:
        ref = _code(result.base.ref, _MOST_NAME)
        parts.append(f"base: the merge-base with {ref}, {result.base.short}")
    return parts


_LEFT = frozenset({"model", "change", "why"})


def _cells(finding: Finding, locked: bool, based: bool) -> list[str]:
    why = reasons(finding)
    return [
        _code(finding.name, _MOST_PATH),
        *([_size(finding.locked)] if locked else []),
        *([_size(finding.base)] if based else []),
        _size(finding.now),
        f"**{_change(finding)}**" if level(finding) is Level.ERROR else _change(finding),
        _plain(why[0], _MOST_CAUSE) if why else "",
    ]


def _size(peak: Peak | None) -> str:
    return "" if peak is None else format_bytes(peak.peak_bytes)


def _change(finding: Finding) -> str:
    kind, against, now = finding.kind, finding.against, finding.now
    if kind is Kind.OVER_CAP:
        return f"{format_bytes(finding.over_cap_bytes)} above --max-peak"
    if kind is Kind.TOO_LOOSE:
        return f"{growth(finding)}: the lock is too loose"
    if kind in (Kind.REGRESSED, Kind.IMPROVED):
        return growth(finding)
    if kind is not Kind.OK or against is None or now is None:
        return COUNTED[kind] + _REMARKS.get(kind, "")
    tolerated = against.peak_bytes != now.peak_bytes
    return (
        f"{growth(finding)} {'within the tolerance' if tolerated else 'since the base, as locked'}"
    )


def _details(told: Iterable[Finding], room: int) -> list[str]:
    """The text report of each finding, folded, while there is room."""
    parts: list[str] = []
    left = 0
    for finding in told:
        part = _folded(finding)
        if left or len(part) + 40 > room:
            left += 1
            continue
        room -= len(part) + 2
        parts.append(part)
    return [*parts, f"details of {left:,} more: see the log"] if left else parts


def _folded(finding: Finding) -> str:
    text = "\n".join(wrapped for line in finding_lines(finding) for wrapped in _wrapped(line))
    if len(text) > _MOST_BLOCK:
        text = f"{text[:_MOST_BLOCK]}…"
    # Longer than any run of backticks in the text, so that nothing in it ends the block.
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    name = html.escape(_shortened(finding.name, _MOST_PATH))
    summary = f"<summary><code>{name}</code>: {html.escape(finding.kind)}</summary>"
    return f"<details>{summary}\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def _wrapped(line: str) -> list[str]:
    """A line of the text report as it fits GitHub's page; commands go on as a shell reads them."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    command = line.lstrip().startswith(COMMANDS)
    width = _WIDTH - 2 if command else _WIDTH
    lines = wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [f"{each} \\" for each in lines[:-1]] + lines[-1:] if command else lines


def _plain(text: str, most: int) -> str:
    """Words of memplan's with names in them: what could be markup stands in code spans."""
    short = _shortened(text, most).replace("->", "→")
    return _MARKUP.sub(lambda match: _code(match[0], most), short)


def _code(text: str, most: int) -> str:
    """A name in a code span, which nothing in it ends."""
    return f"`{_shortened(text, most).replace('`', chr(39)).replace('|', '¦')}`"


def _shortened(text: str, most: int) -> str:
    """The beginning and the end of a long text, on one line."""
    line = printable(text)
    if len(line) <= most:
        return line
    half = (most - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def _marker(result: CheckResult) -> str:
    path = quote(in_repository(result.lock), safe="/._").replace("--", "-%2D")
    return f"{MARKER}{path} -->"
