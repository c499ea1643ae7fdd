"""``analyze`` takes linear time: counted in calls of Python functions, which no load disturbs."""

import sys
from types import FrameType
from typing import Any

import pytest

from helpers.graphs import REUSING, TUNED, open_text
from helpers.models import SAMPLES, load_benchmark
from memplan.api.analysis import analyze_open
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import open_model
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import simulate

chain = load_benchmark("plans.scale").chain


def calls(nodes: int, session: SessionKind) -> tuple[int, int]:
    """Nodes, and calls (resumed generators among them) that an analysis of such a chain makes."""
    model = open_text(chain(nodes))
    count = 0

    def tell(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tell)
    try:
        again = open_text(model.prepared.proto)
        analyze_open(again, session).as_json()
    finally:
        sys.setprofile(before)
    return len(model.graph.nodes), count


@pytest.mark.parametrize("session", [TUNED, REUSING], ids=lambda kind: kind.name)
def test_four_times_the_nodes_are_four_times_the_calls(session: SessionKind) -> None:
    calls(100, session)  # what is imported and cached on first use is not counted
    few, once = calls(250, session)
    many, more = calls(1000, session)
    assert more / once < 1.1 * many / few


def test_the_floor_counts_every_output_once() -> None:
    """Against sets of ancestors, node by node."""
    names = ("mlp_adamw", "cnn_bn", "gpt_dropout")
    models = [open_text(chain(150)), *(open_model(SAMPLES / f"{name}.onnx") for name in names)]
    for model in models:
        graph, timeline = model.graph, simulate(model.graph, TUNED)
        floor = structural_floor(graph, timeline)
        outputs = set(graph.outputs)
        behind: dict[int, frozenset[int]] = {}
        for node in graph.nodes:
            before = frozenset[int]().union(
                *(behind.get(t, frozenset()) | (outputs & {t}) for t in node.reads)
            )
            behind.update(dict.fromkeys(node.writes, before))
            if node.id == floor.loaded.node:
                held = {t for t in before if graph.tensors[t].producer >= 0}
                assert held <= set(floor.loaded.tensors)
                assert floor.with_workspace == sum(
                    graph.tensors[t].nbytes for t in floor.loaded.tensors
                ) + int(timeline.workspace[timeline.allocation.step_of[node.id]])
