"""Memory inside the branches of an If: what is predicted is what ONNX Runtime's profiler saw.

``float[256]`` is 1 KiB. Every model has a node before the If, as nodes of bodies are listed before
those around them, and what is in use before the first is taken for what was there before the run.
"""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from helpers.graphs import PLAIN, open_text
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import Measurement, RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, later_runs, simulate

KINDS = pytest.mark.parametrize("kind", [session_kind("tuned"), PLAIN], ids=["tuned", "plain"])

# Peaks of the branches: before the output is made, and where it is made.
WIDE = "[a] a = Sin(x2) [b] b = Cos(x2) [m] m = Add(a, b) [r] r = ReduceSum<keepdims = 1>(m, zero)"
DEEP = "[d] d = Exp(x2) [e] e = Sqrt(d) [q] q = Neg(e)"
SHALLOW = "[q] q = Neg(x2)"
MADE = "[a] a = Sin(x2) [b] b = Cos(x2) [m] m = Add(a, b) [r] r = Neg(m)"
COPIED = "[r] r = Identity(x2)"


def conditional(
    then: str, otherwise: str, x: str = "256", r: str = "256", before: str = "[first] x2 = Neg(x)"
) -> str:
    """A model with one If on the graph input ``c``."""
    return f"""
    g (float[{x}] x, bool c) => (float y) <int64[1] zero = {{0}}>
    {{
        {before}
        [pick] u = If<
            then_branch = t () => (float[{r}] r) {{ {then} }},
            else_branch = e () => (float[{r}] q) {{ {otherwise} }}
        >(c)
        [y] y = ReduceSum<keepdims = 0>(u)
    }}"""


def options_of(kind: SessionKind) -> Any:
    """Session options; plain ones without the fusions that change the graph."""
    options = session_options(kind.name)
    if kind.reuse:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def measured(model: OpenModel, kind: SessionKind, taken: bool) -> Measurement:
    """Two profiled runs with the condition ``c``."""
    feeds = synthesize(model.graph) | {"c": np.array(taken)}
    content = model.prepared.proto.SerializeToString()
    return profiled_runs(content, RunRequest(threads=1), feeds, options_of(kind))


def steps(timeline: Timeline, found: Measurement) -> list[int]:
    """Measured bytes by step; those in bodies count at the node of the main graph."""
    names = {timeline.graph.nodes[n].name: step for step, n in enumerate(timeline.order)}
    result, inside = [0] * len(names), 0
    for row in found.nodes:
        nbytes = row.nbytes - found.base_bytes
        if row.name not in names:
            inside = max(inside, nbytes)
            continue
        bodies = timeline.graph.nodes[timeline.order[names[row.name]]].op in ("If", "Loop")
        result[names[row.name]] = max(nbytes, inside if bodies else 0)
    return result


def check(text: str, kind: SessionKind) -> Timeline:
    """Every step of the larger branch, and the peaks of the first and of later runs, agree."""
    model = open_text(text)
    timeline = simulate(model.graph, kind)
    runs = [measured(model, kind, taken) for taken in (True, False)]
    both = [max(pair) for pair in zip(*(steps(timeline, run) for run in runs), strict=True)]
    assert both == timeline.dynamic.tolist()
    assert max(run.dynamic_bytes for run in runs) == timeline.dynamic_peak_bytes
    later = later_runs(timeline).dynamic_peak_bytes if kind.reuse else timeline.dynamic_peak_bytes
    assert max(run.second_run_dynamic_bytes for run in runs) == later
    return timeline


@KINDS
@pytest.mark.parametrize("x", ["256", "64,16", "1024"])
@pytest.mark.parametrize("then", [MADE, COPIED])
@pytest.mark.parametrize("otherwise", [DEEP, SHALLOW])
def test_branches_write_into_the_outputs_of_the_node(
    kind: SessionKind, x: str, then: str, otherwise: str
) -> None:
    check(conditional(then, otherwise, x, x), kind)


@KINDS
def test_outputs_are_there_before_the_branch_runs(kind: SessionKind) -> None:
    """The branch is largest before it makes its output, which has a buffer already."""
    timeline = check(conditional(MADE, SHALLOW), kind)
    assert timeline.dynamic_peak_bytes == 5 * 1024  # x2, u, a, b and m


@KINDS
@pytest.mark.parametrize("r", ["N", "256", "M"])
def test_the_outputs_need_not_be_declared(kind: SessionKind, r: str) -> None:
    """The runtime infers their shapes from what the branches capture."""
    check(conditional(MADE, SHALLOW, r=r), kind)


@KINDS
def test_shapes_that_memplan_does_not_know_to_be_known(kind: SessionKind) -> None:
    """The runtime propagates more values than memplan can tell."""
    before = """
        [x3] x3 = Neg(x)
        [first] s = Shape(x)
        [n] n = Gather(s, zero)
        [both] shape = Concat<axis = 0>(n, n)
        [x2] x2 = Reshape(x3, shape)"""
    timeline = check(conditional(MADE, SHALLOW, "16,16", "N,N", before), kind)
    assert timeline.bounds


@KINDS
def test_a_constant_of_the_branch_is_copied(kind: SessionKind) -> None:
    constant = "r = Constant<value = float[64] {" + ", ".join(["1"] * 64) + "}>()"
    check(conditional(constant, "[q] q = Neg(x2)", "64", "64"), kind)


NESTED = """[a] a = Sin(x2) [inner] w = If<
    then_branch = tt () => (float[256] rr)
        { [aa] aa = Cos(a) [bb] bb = Exp(x2) [rr] rr = Add(aa, bb) },
    else_branch = ee () => (float[256] qq) { [qq] qq = Neg(a) }
>(c)"""


@KINDS
@pytest.mark.parametrize("last", ["[r] r = Neg(w)", "[r] r = Add(a, w)"])
def test_an_if_in_a_branch(kind: SessionKind, last: str) -> None:
    check(conditional(f"{NESTED} {last}", SHALLOW), kind)


@KINDS
def test_an_if_whose_output_is_that_of_a_branch(kind: SessionKind) -> None:
    check(conditional(NESTED.replace(" w =", " r ="), SHALLOW), kind)


@KINDS
def test_graph_outputs_and_outputs_that_nobody_reads(kind: SessionKind) -> None:
    check(
        """
        g (float[256] x, bool c) => (float[256] u, float[256] z)
        {
            [first] x2 = Neg(x)
            [pick] u, v = If<
                then_branch = t () => (float[256] r, float[256] a)
                    { [a] a = Sin(x2) [b] b = Exp(a) [m] m = Cos(a) [r] r = Add(b, m) },
                else_branch = e () => (float[256] q, float[256] d)
                    { [d] d = Exp(x2) [q] q = Sqrt(d) }
            >(c)
            [z] z = Neg(u)
        }""",
        kind,
    )


IN_BODY = """[pick] w = If<
    then_branch = t () => (float[256] r)
        { [aa] aa = Cos(s) [bb] bb = Exp(aa) [rr] r = Add(aa, bb) },
    else_branch = e () => (float[256] q) { [q] q = Neg(s) }
>(c) [s2] s2 = Neg(w)"""


@KINDS
@pytest.mark.parametrize("declared", ["256", "N"])
def test_an_if_in_a_loop(kind: SessionKind, declared: str) -> None:
    text = f"""
    g (float[256] x, bool c) => (float y) <int64 n = {{4}}>
    {{
        [first] x2 = Neg(x)
        [loop] u = Loop<body = b (int64 i, bool more, float[{declared}] s)
            => (bool more2, float[{declared}] s2)
            {{ [m2] more2 = Identity(more) {IN_BODY.replace("256", declared)} }}>(n, , x2)
        [y] y = ReduceSum<keepdims = 0>(u)
    }}"""
    check(text, kind)


@KINDS
@pytest.mark.parametrize("declared", ["256", "N"])
def test_an_if_in_a_scan(kind: SessionKind, declared: str) -> None:
    text = f"""
    g (float[3,256] x, bool c) => (float y)
    {{
        [first] x2 = Neg(x)
        [scan] u = Scan<num_scan_inputs = 1, body = b (float[{declared}] s)
            => (float[{declared}] s2) {{ {IN_BODY.replace("256", declared)} }}>(x2)
        [y] y = ReduceSum<keepdims = 0>(u)
    }}"""
    model = open_text(text)
    timeline = simulate(model.graph, kind)
    runs = [measured(model, kind, taken) for taken in (True, False)]
    assert max(r.dynamic_bytes for r in runs) == timeline.dynamic_peak_bytes
    later = later_runs(timeline) if kind.patterns else timeline
    assert max(r.second_run_dynamic_bytes for r in runs) == later.dynamic_peak_bytes
