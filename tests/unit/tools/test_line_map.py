"""The map at the head of the architecture: every file in a row, every row about as it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "line_map", Path(__file__).parents[3] / "tools/line_map.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
line_map = importlib.util.module_from_spec(_SPEC)
sys.modules["line_map"] = line_map
_SPEC.loader.exec_module(line_map)

_DRIFT = 0.1
_ROUNDING = 100


def test_the_document_states_the_lines_as_they_are() -> None:
    now = line_map.counts()
    stated = line_map.stated(line_map.PAGE.read_text(encoding="utf-8"))
    assert stated.pop("all") > 0
    assert stated.keys() == now.keys()
    for feature, lines in now.items():
        assert abs(stated[feature] - lines) <= _ROUNDING + _DRIFT * lines, (
            f"{feature}: python tools/line_map.py --write"
        )


def test_the_table_is_read_as_it_is_written() -> None:
    made = line_map.table({row.feature: 1234 for row in line_map.ROWS})
    found = line_map.stated(f"{line_map.BEGIN}\n{made}\n{line_map.END}")
    assert {found.pop("all")} == {round(1234 * len(line_map.ROWS), -2)}
    assert set(found.values()) == {1200}
