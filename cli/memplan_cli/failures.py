"""A failure as two lines on stderr: what is wrong, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import click

from memplan.units import printable


def tell(message: str, hint: str = "") -> None:
    """Write ``error: ...`` and, if there is one, ``hint: ...``."""
    click.echo(f"error: {_on_one_line(message)}", err=True)
    if hint:
        click.echo(f"hint: {_on_one_line(hint)}", err=True)


def _on_one_line(text: str) -> str:
    """Libraries explain in several lines; names in a model may hold anything."""
    return printable(" ".join(part.strip() for part in text.splitlines() if part.strip()))


def show_traceback(arguments: Sequence[str]) -> None:
    """With ``-vv`` among ``arguments``: where the failure that is being handled comes from."""
    if "-vv" in arguments or arguments.count("-v") > 1:
        for line in traceback.format_exc().splitlines():
            click.echo(printable(line), err=True)
