"""What the script of the HTML report does, in Chromium; skipped where there is none."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.chromium import PROGRAM, Chromium
from helpers.models import SAMPLES
from memplan.api.analysis import Analysis, analyze
from memplan.report.html.page import page
from memplan.report.tell.analysis import tell_analysis
from memplan.simulate.explain import TensorClass

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs Chromium")

Told = Callable[[str], Any]

# What tests say in the page: the rows of the table, words typed, a pointer at a part of the chart.
LANGUAGE = """
const section = document.getElementById("tensors");
const plot = document.querySelector(".plot");
const rows = () => [...section.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent);
const said = () => section.querySelector("small").textContent;
const tip = () => plot.querySelector(".tip p").textContent;
function type(words) {
  const input = section.querySelector("input");
  input.value = words;
  input.dispatchEvent(new Event("input"));
}
function pointer(kind, part) {
  const box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointer" + kind, {
    clientX: box.left + part * box.width, clientY: box.top + 9, pointerId: 1, bubbles: true,
  }));
}
plot.setPointerCapture = () => {};
"""


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(SAMPLES / "gpt_dropout.onnx")


@pytest.fixture(scope="module")
def told(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """What a script puts into ``found`` when the page has been read."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(tell_analysis(analysis)), encoding="utf-8")
    with Chromium() as browser:

        def run(script: str) -> Any:
            browser.open(path, 1300)
            return browser.run(f"(() => {{ {LANGUAGE} let found; {script}\nreturn found; }})()")

        yield run


def test_all_tensors_can_be_searched(analysis: Analysis, told: Told) -> None:
    """By name, by the name of a view in the same buffer, by module and class together."""
    view, root = next(
        (analysis.graph.tensors[t].name, analysis.graph.tensors[buffer.root].name)
        for buffer in analysis.timeline.allocation.buffers
        for t in buffer.members[1:]
    )
    first, by_name, by_view, both = told(
        f"""found = [said()];
        for (const words of ["masked_fill_3", {json.dumps(view)}, "BLOCKS.2.mlp stash"]) {{
          type(words); found.push(rows());
        }}""",
    )
    resident = [t for t in analysis.graph.tensors if t.producer < 0 and t.nbytes]
    count = len(analysis.timeline.allocation.buffers) + len(resident)
    assert first.startswith(f"{count} of {count}, ")
    assert "masked_fill_3" in by_name
    assert root in by_view
    stashed = {s.name for s in analysis.stashes if "blocks.2.mlp" in s.module}
    assert stashed <= set(both)
    assert len(both) < count / 10


def test_a_click_lists_what_is_alive_there(analysis: Analysis, told: Told) -> None:
    step, count, names, after = told(
        """pointer("down", 0.5); pointer("up", 0.5);
        found = [section.querySelector(".step").textContent, said()];
        type("stash"); found.push(rows()); type("");
        section.querySelector(".step").click(); found.push(said());""",
    )
    picked = int(re.fullmatch(r"alive at step (\d+) ×", step)[1])  # type: ignore[index]
    buffers = analysis.timeline.live_at(picked)
    resident = [t for t in analysis.graph.tensors if t.producer < 0 and t.nbytes]
    assert count.startswith(f"{len(buffers) + len(resident)} of ")
    explainer = analysis.explainer
    assert set(names) == {
        analysis.graph.tensors[buffer.root].name
        for buffer in buffers
        if explainer.buffer_class(buffer) is TensorClass.STASH
    }
    everything = len(analysis.timeline.allocation.buffers) + len(resident)
    assert after.startswith(f"{everything} of {everything}, ")


def test_after_zooming_the_tooltip_is_of_the_step_under_the_pointer(
    analysis: Analysis, told: Told
) -> None:
    before, after = told(
        """pointer("down", 0.25); pointer("move", 0.75); found = [tip()];
        pointer("up", 0.75); found.push(tip());""",
    )
    first, last = (int(re.search(r"step (\d+)", text)[1]) for text in (before, after))  # type: ignore[index]
    count = len(analysis.timeline.order)
    assert abs(first - 0.75 * count) <= 2
    # The picture now shows the middle half; the pointer still stands at 3/4 of it.
    assert abs(last - (0.25 + 0.5 * 0.75) * count) <= 2


def test_the_table_is_sorted_by_any_column(analysis: Analysis, told: Told) -> None:
    ascending, descending = told(
        """const head = section.querySelector("[data-column=birth] button");
        const births = () => [...section.querySelectorAll("tbody tr")].map(
          row => row.cells[5].textContent);
        head.click(); const down = births(); head.click(); found = [births(), down];""",
    )
    assert ascending[0] == "before"
    numbers = [int(text) for text in descending]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 0.9 * len(analysis.timeline.order)
