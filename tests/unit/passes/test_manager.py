"""All passes, one after the other: by name, undone, recorded."""

from helpers.graphs import REUSING, TUNED, open_text
from helpers.passes import STEP, TWO_WIDE
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Applied
from memplan.passes.manager import (
    NAMES,
    make_passes,
    passes_for,
    recorded,
    removed,
    run_passes,
    without_order,
)
from memplan.passes.masks import Masks
from memplan.passes.order import Order, in_order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import Timeline, simulate

PLAIN = session_kind("default")


def test_only_outputs_are_removed_where_the_runtime_orders_or_reuses() -> None:
    assert [type(p) for p in make_passes(NAMES, ("a",))] == [
        Elide,
        Prune,
        Release,
        Masks,
        Order,
    ]
    for session in (REUSING, PLAIN):
        assert [type(p) for p in passes_for(session, ())] == [Prune]


def test_a_pass_that_raises_the_peak_is_undone() -> None:
    class Worse:
        name = "worse"

        def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
            return Applied(in_order(model, [0, 2, 1, 3, 4]))

    text = TWO_WIDE.replace("[q] b", "[w] b").replace("[r] c", "[v] c")
    model = open_text(text)
    better = in_order(model, [0, 2, 1, 3, 4])
    steps = run_passes([Worse()], better, simulate(better.graph, TUNED))  # type: ignore[list-item]
    assert steps[0].model is better
    assert not steps[0].changed
    assert steps[0].note == "left out: it would raise the peak"


def test_steps_record_what_is_gone() -> None:
    model = open_text(STEP)
    passes = [Elide(), Prune(("enc*",)), Release(), Masks(), Order(rounds=2)]
    steps = run_passes(passes, model, simulate(model.graph, TUNED))
    assert removed(steps) == {
        "removed_outputs": ["dec_w_new", "dec_w_m_new"],
        "removed_inputs": ["dec_w_m"],
    }
    assert recorded(steps) == {"passes": list(NAMES), **removed(steps)}
    assert recorded(steps[:1]) == {"passes": ["elide"]}
    kept = without_order(steps)
    assert [step.name for step in kept][:2] == ["elide", "prune"]
    assert not any(step.changed and step.name == "order" for step in kept)
    assert without_order(steps[:2]) == steps[:2]
