"""``analyze`` takes linear time: counted in calls of Python functions, which no load disturbs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from helpers.graphs import REUSING, TUNED, open_text
from helpers.models import SAMPLES, load_benchmark
from memplan.api.analysis import analyze_open
from memplan.ir.phases import Phases
from memplan.ir.reach import trained_outputs
from memplan.ops.book import operator
from memplan.simulate.allocation import Buffer
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.narrowing import narrowings
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import Timeline, simulate

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


class _Reference:
    """What :mod:`memplan.simulate.narrowing` says, worked out group by group with sets."""

    def __init__(self, timeline: Timeline, phases: Phases, groups: list[set[int]]) -> None:
        self.timeline, self.graph, self.groups = timeline, timeline.graph, groups
        owners = trained_outputs(self.graph, phases)
        self.wanted: dict[int, set[int]] = {
            t: {g for g, members in enumerate(groups) if members & owners[t]}
            if t in owners
            else {-1}
            for t in self.graph.outputs
        }
        self.serves: list[set[int]] = [set() for _ in self.graph.nodes]
        for node in reversed(self.graph.nodes):
            for t in node.writes:
                self.serves[node.id] |= self.wanted.get(t, set())
                for reader in self.graph.tensors[t].readers:
                    self.serves[node.id] |= self.serves[reader]

    def gone(self, frozen: set[int]) -> list[Buffer]:
        return [
            b for b in self.timeline.live_at(self.timeline.peak_step) if not self._stays(b, frozen)
        ]

    def _stays(self, buffer: Buffer, frozen: set[int]) -> bool:
        tensors = [self.graph.tensors[t] for t in buffer.members]
        if not self.serves[tensors[0].producer] - frozen:
            return False
        if any(self.wanted.get(t.id, set()) - frozen for t in tensors):
            return True
        readers = [r for t in tensors for r in t.readers if self.serves[r] - frozen]
        if not readers:
            node = self.graph.nodes[tensors[0].producer]
            return node.outputs.index(buffer.root) not in operator(node.key).optional_outputs
        step_of = self.timeline.allocation.step_of
        return any(step_of[r] >= self.timeline.peak_step for r in readers)

    def state(self, frozen: set[int]) -> int:
        return sum(
            t.nbytes
            for t in self.graph.tensors
            if t.kind == "input"
            and any(self.serves[r] for r in t.readers)
            and not any(self.serves[r] - frozen for r in t.readers)
        )


def _models() -> list[OpenModel]:
    from memplan.simulate.opened import open_model

    names = ("mlp_adamw", "cnn_bn", "gpt_dropout")
    return [open_text(chain(150)), *(open_model(SAMPLES / f"{name}.onnx") for name in names)]


@pytest.mark.parametrize("session", [TUNED, REUSING], ids=lambda kind: kind.name)
def test_narrowing_is_what_it_is_group_by_group(session: SessionKind) -> None:
    for model in _models():
        timeline = simulate(model.graph, session)
        found = narrowings(timeline, model.phases)
        ids = {tensor.name: tensor.id for tensor in model.graph.tensors}
        groups = [{ids[name] for name in item.parameters} for item in found]
        reference = _Reference(timeline, model.phases, groups)
        explainer = Explainer(timeline, model.phases, model.modules)
        assert len(found) > 2
        earlier: list[Buffer] = []
        before = 0
        for index, item in enumerate(found):
            first = set(range(index + 1))
            gone = reference.gone(first)
            nbytes = sum(b.nbytes for b in gone) + reference.state(first)
            assert item.freed_with_earlier_bytes == nbytes
            assert item.freed_bytes == nbytes - before
            assert item.stashes == tuple(
                (model.graph.tensors[b.root].name, b.nbytes)
                for b in gone
                if b not in earlier and explainer.buffer_class(b) is TensorClass.STASH
            )
            earlier, before = gone, nbytes


def test_the_floor_counts_every_output_once() -> None:
    """Against sets of ancestors, node by node."""
    from memplan.simulate.floor import structural_floor

    for model in _models():
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
