"""All cases of the probe."""

from __future__ import annotations

import cat_control
import cat_elementwise
import cat_fused
import cat_neural
import cat_reduce
import cat_shape
from cases import Case, Catalogue


def all_cases() -> list[Case]:
    """The catalogue in a fixed order."""
    book = Catalogue()
    for part in (cat_elementwise, cat_shape, cat_reduce, cat_neural, cat_fused, cat_control):
        part.fill(book)
    return book.cases
