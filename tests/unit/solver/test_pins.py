"""Memory of plain sessions: the compiled search agrees with the simulator; few pins suffice."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.graphs import graph_of, open_text, parse
from helpers.random_graphs import models as random_models
from memplan.ir.graph import Graph
from memplan.planning.plain.fences import marked
from memplan.planning.plain.plain_problem import plain_session, seen_as
from memplan.simulate.pattern import later_runs
from memplan.simulate.run_order import execution_order
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.solver.pins import Peaks, Session, fewest_pins, free_pins, plain_peaks

DEFAULT = session_kind("default")
BY_FILE = replace(DEFAULT, priority_order=True)

# Two layers; both weight gradients are outputs, so the default order makes the first layer's last.
CHAIN = """g (float[256] x) => (float d3, float d2, float d1) {
  a = Exp(x)  b = Exp(a)  c = Exp(b)  d = Exp(c)
  gd = Sin(d)
  m3 = Mul(gd, c)  d3 = ReduceSum <keepdims = 0> (m3)
  gc = Mul(gd, d)
  m2 = Mul(gc, b)  d2 = ReduceSum <keepdims = 0> (m2)
  gb = Mul(gc, c)
  m1 = Mul(gb, a)  d1 = ReduceSum <keepdims = 0> (m1)
}"""


def with_pins(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Pins on tensors, in plan order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pins = [marked("pin", "Size", [name], f"pin_{name}") for name in names]
    copy.graph.node.extend(reversed(pins))
    return copy


def expected(model: onnx.ModelProto, by_file: bool) -> Peaks:
    """First and later runs by the simulator, without resident bytes."""
    timeline = simulate(open_text(model).graph, BY_FILE if by_file else DEFAULT)
    resident = timeline.resident_bytes
    return Peaks(
        timeline.peak_with_workspace_bytes - resident,
        later_runs(timeline).peak_with_workspace_bytes - resident,
    )


def pin_names(graph: Graph, session: Session, pinned: np.ndarray) -> list[str]:
    return [graph.tensors[session.pin_of[i]].name for i in np.flatnonzero(pinned)]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_models(), st.integers(0, 1 << 30))
def test_peaks_equal_the_simulators(model: onnx.ModelProto, seed: int) -> None:
    opened = open_text(model)
    session = plain_session(opened.graph, DEFAULT)
    draw = Random(seed)
    pinned = np.array([t >= 0 and draw.random() < 0.4 for t in session.pin_of], dtype=np.bool_)
    pinned_model = with_pins(opened.prepared.proto, pin_names(opened.graph, session, pinned))
    assert plain_peaks(session, pinned, False) == expected(pinned_model, False)
    if execution_order(opened.graph, BY_FILE) == list(range(len(opened.graph.nodes))):
        assert plain_peaks(session, pinned, True) == expected(pinned_model, True)


def test_a_pin_waits_for_the_sizes_of_the_file() -> None:
    """In a priority-based session both are eager, and the file's stands first."""
    model = parse(
        """g (float[4,2,6] x) => (float[4,2,12] y) {
          [a] a = Concat <axis: int = -1> (x, x)
          [b] b = Concat <axis: int = -1> (x, x)
          [size] n = Size (b)
          [cast] f = Cast <to: int = 1> (n)
          [mul] c = Mul (b, f)
          [again] d = Concat <axis: int = -1> (x, x)
          [y] y = Add (c, d)
        }"""
    )
    opened = open_text(model)
    session = plain_session(opened.graph, DEFAULT)
    for bits in range(1 << len(session.pin_of)):
        pinned = np.array([t >= 0 and bool(bits >> i & 1) for i, t in enumerate(session.pin_of)])
        pinned_model = with_pins(opened.prepared.proto, pin_names(opened.graph, session, pinned))
        assert plain_peaks(session, pinned, True) == expected(pinned_model, True)


def test_all_pins_give_the_files_order() -> None:
    opened = open_text(CHAIN)
    session = plain_session(opened.graph, DEFAULT)
    every = session.pin_of >= 0
    free = free_pins(session)
    assert plain_peaks(free, every, False) == plain_peaks(free, every, True)
    pinned_model = with_pins(opened.prepared.proto, pin_names(opened.graph, session, every))
    graph = open_text(pinned_model).graph
    order = [graph.nodes[i].name for i in simulate(graph, DEFAULT).order]
    kept = [name for name in order if not name.startswith("pin_")]
    assert kept == [node.name for node in opened.graph.nodes]


def test_a_budget_that_holds_needs_no_pins() -> None:
    session = plain_session(graph_of(CHAIN), DEFAULT)
    bare = np.zeros(len(session.pin_of), np.bool_)
    whole = plain_peaks(session, bare, False)
    by_file = plain_peaks(session, bare, True)
    budget = Peaks(max(whole.first, by_file.first), max(whole.later, by_file.later))
    pinned, peaks = fewest_pins(session, budget, 10.0)
    assert not pinned.any()
    assert peaks == whole


def test_no_pin_can_be_spared() -> None:
    session = plain_session(graph_of(CHAIN), DEFAULT)
    tight = plain_peaks(session, session.pin_of >= 0, False)
    pinned, peaks = fewest_pins(session, tight, 10.0)
    assert 0 < pinned.sum() < len(pinned)
    assert peaks.first <= tight.first
    assert peaks.later <= tight.later
    for index in np.flatnonzero(pinned):
        fewer = pinned.copy()
        fewer[index] = False
        one = plain_peaks(free_pins(session), fewer, False)
        other = plain_peaks(free_pins(session), fewer, True)
        assert (
            max(one.first, other.first) > tight.first or max(one.later, other.later) > tight.later
        )


def test_pins_that_are_needed_stay() -> None:
    session = plain_session(graph_of(CHAIN), DEFAULT)
    needed = np.zeros(len(session.pin_of), np.bool_)
    needed[1] = True
    pinned, _ = fewest_pins(session, Peaks(1 << 40, 1 << 40), 10.0, needed)
    assert pinned.tolist() == needed.tolist()


def test_hidden_shapes_stop_reuse() -> None:
    graph = graph_of(
        """g (float[256] x) => (float y) {
          a = Exp(x)  p = ReduceSum <keepdims = 0> (a)
          big = Concat <axis = 0> (x, x, x, x)  big2 = Mul(big, p)
          r = ReduceSum <keepdims = 0> (big2)
          q = Mul(x, r)  y = ReduceSum <keepdims = 0> (q)
        }"""
    )
    session = plain_session(graph, DEFAULT)
    bare = np.zeros(len(session.pin_of), np.bool_)
    seen = plain_peaks(session, bare, False)
    hidden = plain_peaks(seen_as(session, graph, frozenset()), bare, False)
    # q takes a's buffer, which is kept while the large ones are there.
    assert seen.first > hidden.first
