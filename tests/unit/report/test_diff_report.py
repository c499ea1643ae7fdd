"""A diff as text and as a page: named at once, and whole."""

import re
from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.renaming import renamed
from helpers.reports import data_of
from helpers.running import Memplan
from helpers.training_steps import symbolic_batch
from memplan.api.diff.diffing import diff
from memplan.report.html.page import page as page_of
from memplan.report.parts import Table
from memplan.report.tell.diff import reason, tell_diff

FORWARD = "g (float[4, 8] x, float[8, 3] w) => (float[4, 3] y) { [n] h = MatMul(x, w) y = Relu(h) }"


def test_the_page_has_both_timelines() -> None:
    found = diff(symbolic_batch(), symbolic_batch(), {"N": 64}, new_dims={"N": 128})
    page = page_of(tell_diff(found))
    charts = data_of(page)["charts"]
    assert len(charts) == page.count('class="chart"') == 2
    assert page.count('class="before"') == 1
    assert "N 64 -&gt; 128" in page


def test_a_graph_without_nodes_has_a_page() -> None:
    empty = parse("g (float[4] x) => (float[4] x) { }")
    assert "The graph has no nodes" in page_of(tell_diff(diff(empty, parse(FORWARD))))
    assert "The graph has no nodes" in page_of(tell_diff(diff(parse(FORWARD), empty)))


@pytest.fixture
def two(tmp_path: Path) -> None:
    onnx.save(symbolic_batch(), tmp_path / "old.onnx")
    onnx.save(renamed(symbolic_batch()), tmp_path / "new.onnx")


@pytest.mark.usefixtures("two")
class TestCommand:
    def test_another_exporter(self, inside: Memplan) -> None:
        done = inside("diff", "old.onnx", "new.onnx", "--dim", "N=64")
        assert done.returncode == 0
        first, *rest = done.stdout.splitlines()
        assert re.fullmatch(r"peak .* in both", first)
        assert any(re.match("graph: the same but for the names of", text) for text in rest)

    def test_the_cause_is_named_at_once(self, inside: Memplan) -> None:
        sizes = ("--dim", "N=64", "--new-dim", "N=128")
        done = inside("diff", "old.onnx", "new.onnx", *sizes)
        head = "\n".join(done.stdout.splitlines()[:12])
        assert "why: " in head
        assert "tensors larger" in head
        assert "dims: N 64 -> 128" in head
        assert inside("diff", "-q", "old.onnx", "new.onnx", *sizes).stdout.count("\n") == 1

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (("old.onnx", "none.onnx", "--dim", "N=4"), 3, "none.onnx"),
            (("old.onnx", "new.onnx"), 3, "'N'"),
            (("old.onnx", "new.onnx", "--dim", "N=4", "--dim", "M=1"), 2, "--dim M"),
            (("old.onnx", "new.onnx", "--dim", "N=4", "-o", "old.onnx", "--force"), 2, "old.onnx"),
        ],
    )
    def test_bad_input(
        self, inside: Memplan, words: tuple[str, ...], code: int, message: str
    ) -> None:
        done = inside("diff", *words)
        assert done.returncode == code, done.stderr
        assert message in done.stderr
        assert done.stderr.count("\n") == 2
        assert done.stdout == ""


def test_the_reason_names_what_goes_against_it() -> None:
    """Net and gross: a weight that grew, and an input that shrank."""
    step = "g (float[{0}, 8] x, float[8, {1}] {2}) => (float y)"
    step += " {{ h = MatMul(x, {2}) y = ReduceSum<keepdims = 0>(h) }}"
    old, new = parse(step.format(64, 3, "w")), parse(step.format(4, 300, "v"))
    assert re.fullmatch(r".* larger \(\+.*; against that .* \(-.*\)", reason(diff(old, new)))


def test_a_weight_is_no_module() -> None:
    """Two weights without a dot in their names: nothing tells of modules."""
    step = "g (float[16, 8] x, float[8, {0}] w, float[{0}, {0}] w2) => (float y)"
    step += " {{ h = MatMul(x, w) e = Exp(h) k = MatMul(e, w2) y = ReduceSum<keepdims = 0>(k) }}"
    found = diff(parse(step.format(3)), parse(step.format(300)))
    assert not {"w", "w2"} & found.modules.keys()
    (modules,) = (
        part
        for part in tell_diff(found).parts
        if isinstance(part, Table) and part.title == "By module"
    )
    assert not modules.rows
