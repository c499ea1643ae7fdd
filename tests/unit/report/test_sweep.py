"""A sweep as text, CSV and HTML: complete, and narrow enough."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.reports import Page, text_of
from helpers.sweeps import NO_PLAN, a_sweep, footprint, planned, point, search
from memplan.api.sweep.point import Failure
from memplan.api.sweep.sweep_result import Sweep
from memplan.errors import EXIT_MODEL
from memplan.report.html.page import page as page_of
from memplan.report.sweep_csv import sweep_csv
from memplan.report.tell.sweep import headline, tell_sweep, varying

GIB = 2**30
EVIL = "<b>\x1b[31m\n::error::"


@pytest.fixture
def whole() -> Sweep:
    """Points of all kinds, with names that no terminal and no browser may see raw."""
    fit, _ = search(1000, lambda v: footprint(10 * v, 4 * v), lambda v: planned(1000))
    broken = Failure(f"bad {EVIL}", "mend it", EXIT_MODEL)
    return a_sweep(
        point(8, "8GiB", planned(8 * GIB, 0.0, 0)),
        point(16, "8GiB", planned(8 * GIB, 0.123, 1234)),
        point(32, "8GiB", NO_PLAN),
        point(64, "8GiB", NO_PLAN, budget_bytes=1),
        point(8, "8GiB", broken, model=f"{EVIL}.onnx", footprint=None),
        fits=(fit,),
    )


def text(found: Sweep, **options: bool) -> str:
    return text_of(tell_sweep(found, **options), width=120)


def html(found: Sweep) -> str:
    return page_of(tell_sweep(found))


class TestText:
    def test_every_point_is_a_row(self, whole: Sweep) -> None:
        rows = [line.split() for line in text(whole).splitlines()]
        assert any("12.30%" in row and "6.15%" in row and "1,234" in row for row in rows)
        assert sum("no" in row and "plan" in row for row in rows) == 2
        assert sum("below" in row and "floor" in row for row in rows) == 1

    def test_failures_are_told(self, whole: Sweep) -> None:
        shown = text(whole)
        assert "Without an answer" in shown
        assert "(mend it)" in shown
        assert "no plan found" not in shown.split("Without an answer")[1]
        assert "no plan found" in text(whole, details=True).split("Without an answer")[1]

    def test_a_table_of_plans_fits_80_columns(self) -> None:
        found = a_sweep(
            *(point(n, "23.5GiB", planned(8 * GIB, 12.3456, 12345)) for n in (1024, 2048))
        )
        assert max(len(line) for line in text(found).splitlines()) <= 80

    def test_what_is_the_same_everywhere_is_said_once(self) -> None:
        found = a_sweep(point(8), point(16))
        assert "budget" not in text(found)
        assert "model.onnx, tuned session, on cpu" in text(found)
        more = a_sweep(point(8), point(8, model="other.onnx", session="default"))
        assert varying(more).texts == ("model", "session")
        assert "N=8" in varying(more).fixed
        where = varying(more).named(Path("model.onnx"), {"N": 8}, "tuned", "cpu")
        assert where == "model.onnx, tuned, N=8: "

    def test_assumptions_say_how_many_points_rest_on_them(self) -> None:
        shape = replace(footprint(GIB), assumptions=("all", "one"))
        other = replace(footprint(GIB), assumptions=("all",))
        found = text(a_sweep(point(8, footprint=shape), point(16, footprint=other)))
        assert "- all\n" in found
        assert "- one (1 of 2 points)" in found

    def test_models_of_one_name_are_told_by_their_paths(self) -> None:
        found = a_sweep(point(8, model="a/m.onnx"), point(8, model="b/m.onnx"))
        assert set(varying(found).names.values()) == {"a/m.onnx", "b/m.onnx"}

    def test_the_answer_of_a_fit_comes_first(self, whole: Sweep) -> None:
        first = text(whole).splitlines()[0]
        assert "N up to" in first
        assert headline(whole).startswith("N up to")
        assert headline(a_sweep(point(8))) == "1 point: 1 analyzed"


class TestCsv:
    def test_every_point_is_a_line(self, whole: Sweep) -> None:
        rows = list(csv.DictReader(io.StringIO(sweep_csv(whole))))
        assert len(rows) == len(whole.points)
        assert [row["dim.N"] for row in rows] == ["8", "16", "32", "64", "8"]
        assert rows[1]["extra_cost_fraction"] == "0.123"
        assert rows[1]["predicted_peak_bytes"] == str(8 * GIB)
        assert rows[2]["status"] == "infeasible"
        assert rows[2]["predicted_peak_bytes"] == ""
        assert rows[2]["error"] == "no plan found"

    def test_names_stay_on_one_line_and_are_no_formulas(self, whole: Sweep) -> None:
        rows = sweep_csv(whole).splitlines()
        assert len(rows) == 1 + len(whole.points)
        evil = a_sweep(point(8, model="=cmd|x.onnx"))
        assert next(csv.DictReader(io.StringIO(sweep_csv(evil))))["model"] == "'=cmd|x.onnx"
        named = replace(point(8), dims={"=N": 8})
        assert "dim.=N" in sweep_csv(a_sweep(named))

    def test_nothing_is_a_head(self) -> None:
        assert sweep_csv(a_sweep()) == "model\n"


def test_a_page_has_every_point(whole: Sweep) -> None:
    page = Page(html(whole))
    assert page.tags["tr"] == 1 + len(whole.points)
    assert {"12.30%", "no plan found", "below floor"} <= {text.strip() for text in page.texts}
    assert not page.tags["svg"]
