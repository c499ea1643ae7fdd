"""What is kept in a narrower type, and what is left as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from helpers.graphs import TUNED, open_text, parse, tensor
from helpers.passes import applied
from memplan.passes.change import facts_of
from memplan.passes.manager import PassManager
from memplan.passes.narrow import Narrow, Ranges, window_of
from memplan.passes.release import Release
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

POOL = """g (float[2, 4, 600, 600] x) => (float[2, 4, 600, 600] y, int64[2, 4, 300, 300] z)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3}, int64 one = {1}>
{ [pool] v, i = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(x)
  [origin] same, own = MaxPool <kernel_shape: ints = [1, 1]>(x)
  [cut] planes = Slice(own, first, second, axes)
  [within] t = Sub(i, planes) [a] a = MatMul(x, x) [b] b = MatMul(a, x) [c] c = MatMul(b, x)
  [e] e = Add(b, c) [f] f = Mul(e, b) [g] y = Mul(f, a) [use] z = Add(t, one) }"""


def casts(text: str | onnx.ModelProto, *passes: object) -> list[int]:
    """The types that the pass casts to, in order."""
    graph = applied(text, *passes).graph
    made = [node for node in graph.nodes if node.op == "Cast"]
    return [graph.tensors[node.outputs[0]].dtype for node in made]


UINT8, INT16, INT32, INT64 = 2, 5, 6, 7


@pytest.mark.parametrize("passes", [(Narrow(),), (Release(), Narrow())])
def test_an_index_within_its_window_takes_less(passes: tuple[object, ...]) -> None:
    assert casts(POOL, *passes) == [INT16, INT64]
    model = open_text(POOL)
    before = simulate(model.graph, TUNED)
    step = PassManager([Narrow()]).run(model, before)[0]
    assert step.timeline.peak_with_workspace_bytes < before.peak_with_workspace_bytes
    assert step.note == "1 tensor of integers"
    assert PassManager([Narrow()]).run(step.model, step.timeline)[0].model is step.model


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("600, 600", "600, 600", [INT16, INT64]),
        ("Sub(i, planes)", "Abs(i)", []),  # nothing is known of that
        ("Sub(i, planes)", "Add(i, one)", [INT32, INT64]),  # no window, only a range
        ("Sub(i, planes)", "Sub(i, own2)", []),
        ("2, 2]>(x)", "2, 2], storage_order: int = 1>(x)", [INT32, INT64]),
        ("2, 2]>(x)", '2, 2], auto_pad: string = "SAME_UPPER">(x)', [INT32, INT64]),
        ("ints = [1, 1]>(x)", "ints = [1, 1]>(x2)", [INT32, INT64]),
        ("Add(t, one)", "Identity(i)", [INT16, INT64]),
    ],
)
def test_other_indices(old: str, new: str, kinds: list[int]) -> None:
    assert old in POOL
    text = POOL.replace(old, new).replace("{ [pool]", "{ [x2] x2 = Neg(x) [pool]")
    text = text.replace("[within]", "[own2] own2 = Neg(planes) [within]")
    assert casts(text, Narrow()) == kinds


def test_of_few_columns_a_byte_is_enough() -> None:
    text = POOL.replace("600, 600", "7200, 50").replace("300, 300", "3600, 25")
    text = text.replace("MatMul(x, x)", "MatMul(x, turned)").replace(
        "[a]", "[turn] turned = Transpose <perm: ints = [0, 1, 3, 2]>(x) [a]"
    )
    text = text.replace(
        "[b] b = MatMul(a, x) [c] c = MatMul(b, x)", "[b] b = MatMul(a, x) [c] c = Exp(b)"
    )
    assert casts(text.replace("Mul(f, a)", "MatMul(a, f)"), Narrow()) == [UINT8, INT64]


def test_casts_that_cost_more_than_they_save_are_left_out() -> None:
    assert casts(POOL.replace("600", "16").replace("300", "8"), Narrow()) == []


def test_on_cuda_an_index_may_lie_outside_its_window() -> None:
    model = open_text(POOL)
    timeline = simulate(model.graph, session_kind("tuned", "cuda"))
    graph = PassManager([Narrow()]).run(model, timeline)[0].model.graph
    kinds = [graph.tensors[n.outputs[0]].dtype for n in graph.nodes if n.op == "Cast"]
    assert kinds == [INT32, INT64]


def test_a_window_is_what_numpy_says() -> None:
    text = """g (float[2, 3, 7, 9] x) => (float[] v, int64[] i)
     { [pool] v, i = MaxPool <kernel_shape: ints = [3, 2], strides: ints = [2, 3],
       pads: ints = [1, 1, 2, 0], dilations: ints = [1, 2]>(x) }"""
    facts = facts_of(open_text(text))
    found = window_of(facts, tensor(facts.graph, "i"))
    assert found is not None
    total = sum((part for parts in found.parts for part in parts), np.zeros((), np.int64))
    rows, columns = tensor(facts.graph, "i").shape[2:]
    for n, c, h, w in np.ndindex(2, 3, rows, columns):
        assert total[n, c, h, w] == (n * 3 + c) * 63 + (2 * h - 1) * 9 + 3 * w - 1
    assert found.reach == 2 * 9 + 2


RANGES = {
    "Cast <to: int = 7>(k)": (0, 1),
    "ArgMax <axis: int = 1>(x)": (0, 5),
    "Add(s, s)": (0, 10),
    "Sub(s, c)": (-7, 8),
    "Mul(s, c)": (-15, 35),
    "Max(s, c)": (0, 7),
    "Where(k, s, c)": (-3, 7),
    "Concat <axis: int = 0>(s, c)": (-3, 7),
    "Transpose(s)": (0, 5),
    "Mul(huge, s)": (-(2**63), 2**63 - 1),  # it may wrap
    "Abs(c)": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("node", RANGES)
def test_ranges(node: str) -> None:
    text = f"""g (float[4, 6] x, bool[4, 1] k) => (int64[] t)
      <int64[4, 1] c = {{-3, 0, 2, 7}}, int64[4, 1] huge = {{1, 2, 3, 4611686018427387904}}>
      {{ [s] s = ArgMin <axis: int = 1>(x) [t] t = {node} }}"""
    facts = facts_of(open_text(text))
    assert Ranges(facts).of(tensor(facts.graph, "t").id) == RANGES[node]


def test_what_a_body_reads_stays_as_it_is() -> None:
    """Cast back before the body, it would be wide from there on."""
    text = POOL.replace("(float[2, 4, 600, 600] x)", "(float[2, 4, 600, 600] x, bool up)")
    inside = """If(up) <then_branch = yes () => (int64[2, 4, 300, 300] p) { p = Add(t, one) },
        else_branch = no () => (int64[2, 4, 300, 300] q) { q = Sub(t, one) }>"""
    assert casts(text.replace("Add(t, one)", inside), Narrow()) == []


def test_what_the_author_wants_kept_stays_as_it_is() -> None:
    model = parse(POOL)
    within = next(node for node in model.graph.node if node.name == "within")
    within.metadata_props.add(key="memplan.checkpoint", value="true")
    assert casts(model, Narrow()) == []
