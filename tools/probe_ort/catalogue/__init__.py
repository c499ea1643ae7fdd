"""All cases of the probe, one module per family of operators."""

from __future__ import annotations

from cases import Case, Catalogue

from catalogue import blocked, control, elementwise, fused, neural, reduce, shape


def all_cases() -> list[Case]:
    """The catalogue in a fixed order."""
    book = Catalogue()
    for part in (elementwise, shape, reduce, neural, fused, blocked, control):
        part.fill(book)
    return book.cases
