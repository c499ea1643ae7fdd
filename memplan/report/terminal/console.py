"""From lines and tables to text: colours, width, and what a CI log may hold."""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console, RenderableType

PLAIN_WIDTH = 120
_TRAILING = re.compile(r"[ ]+$", re.MULTILINE)
# Names are escaped when they become lines and cells; but wrapping may begin a new line with '::',
# which GitHub takes for a command. Colours may stand before it.
_LINE_COMMAND = re.compile(r"^((?:[^\S\n]|\x1b\[[0-9;]*m)*):(?=:)", re.MULTILINE)


def show(content: RenderableType, *, color: str = "auto", stdout: bool = True) -> str:
    """The text of ``content``.

    Args:
        content: what a ``render`` function gave.
        color: ``auto`` (on a terminal; rich respects NO_COLOR), ``always`` or ``never``.
        stdout: the text is meant for stdout: as wide as the terminal, if it is one. Otherwise for
            a file: without colours, 120 columns wide.
    """
    if stdout:
        console = Console(
            file=sys.stdout,
            force_terminal={"always": True, "never": False}.get(color),
            no_color=True if color == "never" else None,
            highlight=False,
            width=None if sys.stdout.isatty() else PLAIN_WIDTH,
        )
    else:
        console = Console(file=io.StringIO(), width=PLAIN_WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(content)
    return _LINE_COMMAND.sub(r"\1\\x3a", _TRAILING.sub("", capture.get()))
