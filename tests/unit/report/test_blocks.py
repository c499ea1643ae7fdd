"""The timeline in blocks: on one scale, within the terminal, and only on one that can show it."""

import io

import numpy as np
import pytest
from rich.console import Console

from helpers.models import SAMPLES
from memplan.api.analysis import analyze
from memplan.report.parts import Curve
from memplan.report.tell.analysis import tell_analysis
from memplan.report.terminal.blocks import Blocks, drawn
from memplan.report.terminal.render import render
from memplan.report.terminal.tables import Table

RISING = Curve("old", np.arange(1, 801, dtype=np.int64) << 20, 400)
HALF = Curve("new", np.arange(1, 801, dtype=np.int64) << 19, None)


def text_of(content: object, width: int = 100, terminal: bool = True, legacy: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if legacy else "utf-8")
    console = Console(file=file, width=width, force_terminal=terminal, no_color=True)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def test_a_curve_ends_at_its_peak_and_has_its_divider_where_backward_begins() -> None:
    *rows, below = drawn(RISING, 800 << 20, 8, 90)
    assert rows[0].startswith(" 800 MiB ┤")
    assert rows[0].endswith("█")
    assert rows[-1][11] == "▁"
    assert below.index("│") == 10 + 40
    assert "forward" in below[:50]
    assert max(map(len, (*rows, below))) <= 90


def test_two_curves_have_one_scale() -> None:
    rows = [row for row in text_of(Blocks(RISING, HALF)).splitlines() if "┤" in row]
    assert len(rows) == 6
    assert rows[3].split("┤")[1] == ""
    assert rows[4].split("┤")[1].endswith("▄")


def test_the_peak_of_a_column_is_never_lost() -> None:
    spike = np.ones(10_000, dtype=np.int64)
    spike[7_777] = 1 << 30
    (top, *_) = drawn(Curve("", spike, None), 1 << 30, 8, 80)
    assert top.count("█") == 1


@pytest.mark.parametrize("given", [{"terminal": False}, {"width": 50}, {"legacy": True}])
def test_nothing_where_it_cannot_be_shown(given: dict[str, object]) -> None:
    assert "┤" not in text_of(Blocks(RISING), **given)  # type: ignore[arg-type]


def test_a_phrase_is_left_out_where_no_column_could_be_read() -> None:
    table = Table("t", ("tensor", "name"), ("size", "number"), ("held by", "phrase"))
    table.row("blocks.0.attn", "8.00 MiB", "MatMul node")
    assert "MatMul node" in text_of(table, 40)
    assert text_of(table, 25).splitlines()[-1].split() == ["blocks.0.attn", "8.00", "MiB"]


def test_an_analysis_shows_it() -> None:
    content = render(tell_analysis(analyze(SAMPLES / "mlp_adamw.onnx")).parts)
    assert text_of(content).count("┤") == 3
    assert "┤" not in text_of(content, terminal=False)
