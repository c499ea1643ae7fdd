"""The frame of every HTML report: one offline file, whose policy forbids anything from outside.

Scripts run only if they are the one that stands here, by its hash; nothing is loaded from anywhere.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from importlib.resources import files

from memplan.report.html.short_names import escape

NO_DATA = '{"charts":[]}'
"""For a page without a timeline."""


def document(title: str, body: Iterable[str], data: str = NO_DATA) -> str:
    """A whole page.

    Args:
        title: as text; it is escaped here.
        body: sections, whose texts are escaped already.
        data: JSON for the script, which cannot end the element that it stands in.
    """
    script = _asset("report.js")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · memplan</title>"
        f"<style>{_asset('report.css')}</style></head><body><main>\n"
        + "\n".join(body)
        + f'\n</main><script type="application/json" id="data">{data}'
        f"</script><script>{script}</script></body></html>\n"
    )


def scroll(label: str) -> str:
    """The start of what is around a table that may be wider than the page; the keyboard scrolls it,
    too, and knows it by its label."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'


def sortable_heads(columns: Iterable[tuple[str, str]]) -> str:
    """The heads of a table that the script sorts: names, and ``text`` or ``number``."""
    return "".join(
        f'<th class="{kind}" data-kind="{kind}"><button type="button">{escape(name)}</button></th>'
        for name, kind in columns
    )


def figure_list(figures: Iterable[tuple[str, str, str]], main: str) -> str:
    """The large figures of a page: name, value and note of each; ``main`` is the chief one."""
    cells = "".join(
        f"<div{' class=main' if name == main else ''}><dt>{name}</dt>"
        f'<dd>{value}</dd><dd class="note">{note}</dd></div>'
        for name, value, note in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _asset(name: str) -> str:
    """A file of ``assets/``."""
    return (files("memplan.report.html") / "assets" / name).read_text(encoding="utf-8")
