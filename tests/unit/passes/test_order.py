"""Orders without recomputation."""

from __future__ import annotations

from helpers.graphs import TUNED, open_text
from helpers.passes import STEP, TWO_WIDE, applied, nodes
from memplan.passes.order import Order, early_order, in_order
from memplan.simulate.timeline import simulate


def test_an_order_without_recomputation() -> None:
    model = applied(TWO_WIDE, Order(rounds=3))
    assert nodes(model) == "p r q s t"
    assert simulate(model.graph, TUNED).dynamic_peak_bytes == 6 * 1024
    assert applied(TWO_WIDE, Order(rounds=3), Order(rounds=3)) is not model
    assert nodes(applied(TWO_WIDE, Order(rounds=3), Order(rounds=3))) == "p r q s t"


def test_the_given_order_is_the_model_itself() -> None:
    model = open_text(TWO_WIDE)
    assert in_order(model, range(5)) is model
    assert nodes(in_order(model, [1, 0, 2, 3, 4])) == "q p r s t"


def test_updates_run_as_soon_as_their_gradients_are_there() -> None:
    model = open_text(STEP)
    place = {node.name: node.id for node in model.graph.nodes}
    updates = {place[name] for name in ("tick", "me", "de", "ue", "md", "dd", "ud")}
    order = [model.graph.nodes[n].name for n in early_order(model.graph, updates)]
    assert " ".join(order) == ("enc act dec loss seed gd md tick dd ud gr sign gh ge me de ue")
