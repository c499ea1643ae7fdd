"""Tables of pages are found by their first line, and written anew."""

from __future__ import annotations

import pytest

from helpers.models import load_benchmark

tables = load_benchmark("tables")


def test_one_place_is_written_anew() -> None:
    assert tables.replaced("before\n| a |\nafter", r"^\| a \|$", "| b |") == "before\n| b |\nafter"


@pytest.mark.parametrize("page", ["nothing", "| a |\n\n| a |"])
def test_no_place_or_two_are_an_error(page: str) -> None:
    with pytest.raises(ValueError, match=r"places on the page for: \| b \|"):
        tables.replaced(page, r"^\| a \|$", "| b |")
