"""What ``analyze`` tells, as text and as a page: one quantity in all of it."""

import re

import memplan
from helpers.graphs import TUNED, open_text, parse
from helpers.reports import text_of
from memplan.api.analysis import Analysis, analyze_open
from memplan.report.html.page import page as page_of
from memplan.report.parts import Table
from memplan.report.tell.analysis import headline, tell_analysis

KIB = 1024


def test_stash_is_told_in_all_and_at_the_peak(mlp: Analysis) -> None:
    titles = [part.title for part in tell_analysis(mlp).parts if isinstance(part, Table)]
    stash = r"Stash: \S+ \S+ in all, \S+ \S+ of it at the peak; \d+ tensors? made .*"
    assert any(re.fullmatch(stash, title) for title in titles)


SCRATCH = """g (float[64,64] x) => (float y) { [a] a = Neg(x) [s] s = Softmax<axis = 0>(a)
  [b] b = Exp(s) [y] y = ReduceSum<keepdims = 0>(b) }"""


def test_headline_budget_and_floor_are_one_quantity() -> None:
    """With workspace, which a budget of 100% is made of; its part is named."""
    analysis = analyze_open(open_text(SCRATCH), TUNED)
    timeline, found = analysis.timeline, headline(analysis)
    whole = timeline.peak_with_workspace_bytes
    assert whole == timeline.peak_bytes + 16 * KIB == analysis.floor.nbytes
    assert found == (
        "peak 64.0 KiB at step 1/4 (loss: s), 32.0 KiB of it workspace of that kernel, "
        "predicted only"
    )
    told = tell_analysis(analysis)
    text, page = text_of(told), page_of(told)
    assert (
        f"resident 16.0 KiB + dynamic 16.0 KiB + workspace of the kernel 32.0 KiB, predicted only "
        f"= {whole:,} B; tensors alone, which runs show: 48.0 KiB at step 2"
    ) in text
    assert "At the peak of tensors alone, by class" in text
    assert "<h1>peak 64.0 KiB" in page
    assert "peak 48.0 KiB" not in page
    json = analysis.as_json()
    assert (json["peak_bytes"], json["peak_with_workspace_bytes"]) == (timeline.peak_bytes, whole)
    budget = memplan.rewrite(parse(SCRATCH), "100%").budget_bytes
    assert budget == whole


def test_without_workspace_nothing_else_is_said() -> None:
    analysis = analyze_open(open_text("g (float[64] x) => (float[64] y) { [y] y = Neg(x) }"), TUNED)
    assert "workspace" not in headline(analysis)
    told = tell_analysis(analysis)
    assert "tensors alone" not in text_of(told) + page_of(told)


GUESSED = """g (float[4,3] x, float[3,2] w, float lr) => (float loss, float[3,2] o)
  { y = MatMul(x, w) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) d = Add(y, y)
    t = Transpose<perm = [1, 0]>(x) k = MatMul(t, d) u = Mul(k, lr) o = Sub(w, u) }"""


def test_a_guess_that_no_figure_rests_on_is_not_told() -> None:
    """Which output renews a weight counts where state is bound."""
    analysis = analyze_open(open_text(GUESSED), TUNED)
    (note,) = analysis.contract.notes
    assert note.startswith("'o' is taken for the next value of 'w'")
    assert "taken for" not in text_of(tell_analysis(analysis), width=200)
