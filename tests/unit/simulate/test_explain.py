"""What the bytes of the peak are, who holds them, and the stash of every module."""

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from helpers.graphs import KIB, REUSING, TUNED, open_text, tensor
from helpers.random_graphs import models as random_models
from memplan.api.analysis import analyze_open
from memplan.simulate.explain import Explainer, Live, Stash, TensorClass
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import simulate

# Two blocks that scale, a loss, both gradients, and one running state. 1 KiB per tensor.
STEP = """
g (float[256] x, float[256] y, float[256] "blk.0.scale", float[256] "blk.1.scale", float[256] m)
  => (float loss, float[256] "blk.0.scale_grad", float[256] "blk.1.scale_grad", float[256] m_new)
  <float k = {0.5}, float one = {1}>
{
    [mul0] a = Mul(x, "blk.0.scale")
    [tanh0] b = Tanh(a)
    [mul1] c = Mul(b, "blk.1.scale")
    [add1] e = Add(c, "blk.1.scale")
    [diff] d = Sub(e, y)
    [mean] loss = ReduceMean<keepdims = 0>(d)
    [head] gd = Mul(e, k)
    [dw1] "blk.1.scale_grad" = Mul(gd, b)
    [db] gb = Mul(gd, "blk.1.scale")
    [square] b2 = Mul(b, b)
    [slope] tb = Sub(one, b2)
    [da] ga = Mul(gb, tb)
    [dw0] "blk.0.scale_grad" = Mul(ga, x)
    [keep] m1 = Mul(m, k)
    [renew] m_new = Add(m1, "blk.0.scale_grad")
}"""


def explain(model: OpenModel, session: SessionKind = TUNED) -> Explainer:
    """The explainer of a model's timeline."""
    return Explainer(simulate(model.graph, session), model.phases, model.modules)


@pytest.fixture(scope="module")
def step() -> Explainer:
    """The hand-written training step, explained."""
    return explain(open_text(STEP))


def test_class_of_every_tensor(step: Explainer) -> None:
    found = {t.name: str(step.class_of(t)) for t in step.graph.tensors}
    assert found == {
        "x": "inputs",
        "y": "inputs",
        "blk.0.scale": "weights",
        "blk.1.scale": "weights",
        "m": "optimizer_state",
        "k": "constants",
        "one": "constants",
        "a": "activation",
        "b": "stash",
        "c": "activation",
        "e": "stash",
        "d": "activation",
        "loss": "output",
        "gd": "gradient",
        "blk.1.scale_grad": "output",
        "gb": "gradient",
        "b2": "gradient",
        "tb": "gradient",
        "ga": "gradient",
        "blk.0.scale_grad": "output",
        "m1": "gradient",
        "m_new": "output",
    }


def test_classes_sum_to_the_bytes_of_every_step(step: Explainer) -> None:
    timeline = step.timeline
    for at in range(len(timeline.order)):
        assert sum(step.by_class(at).values()) == timeline.resident_bytes + timeline.dynamic[at]
    assert timeline.peak_step == 8
    assert step.by_class(8) == {
        TensorClass.WEIGHTS: 2 * KIB,
        TensorClass.INPUTS: 2 * KIB,
        TensorClass.OPTIMIZER_STATE: KIB,
        TensorClass.CONSTANTS: 8,
        TensorClass.STASH: KIB,
        TensorClass.GRADIENT: 2 * KIB,
        TensorClass.OUTPUT: KIB + 4,
    }


def test_a_buffer_with_a_stash_in_it_is_a_stash(step: Explainer) -> None:
    allocation = step.timeline.allocation
    shared = allocation.buffers[allocation.buffer_of[tensor(step.graph, "a").id]]
    assert [step.graph.tensors[t].name for t in shared.members] == ["a", "b"]
    assert step.buffer_class(shared) is TensorClass.STASH


def at_peak(step: Explainer) -> dict[str, Live]:
    """What is live at the peak, by the name of the tensor that the buffer was made for."""
    return {live.name: live for live in step.at_peak()}


def test_who_holds_what_at_the_peak(step: Explainer) -> None:
    found = at_peak(step)
    assert {name: live.held_by for name, live in found.items()} == {
        "a": "Mul square (backward)",
        "gd": "in use by Mul db (backward)",
        "blk.1.scale_grad": "graph output, held to the end",
        "gb": "Mul da (backward)",
        "loss": "graph output, held to the end",
    }
    assert sum(live.nbytes for live in found.values()) == step.timeline.dynamic_peak_bytes
    sizes = [live.nbytes for live in step.at_peak()]
    assert sizes == sorted(sizes, reverse=True)
    kept = found["a"]
    assert (kept.birth, kept.death, kept.producer) == (0, 10, "mul0")
    assert (kept.module, kept.tensor_class) == ("blk.0", TensorClass.STASH)
    assert (found["gd"].birth, found["gd"].death) == (6, 9)


# A graph, and who holds which tensors at its peak.
HELD: dict[str, tuple[str, dict[str, str]]] = {
    "further readers are counted once each": (
        """g (float[256] x) => (float[256] y) { [a] a = Neg(x)
        [big] b = Concat<axis = 0>(x, x, x, x) [sum] s = ReduceSum<keepdims = 0>(b)
        [b1] c = Mul(a, a) [b2] d = Add(a, c) [b3] e = Add(a, d) [y] y = Add(e, s) }""",
        {"a": "Mul b1 (forward) and 2 more"},
    ),
    "nobody": (
        """g (float[2,256] x) => (float[1,256] y)
        { [split] p, rest = Split<axis = 0, num_outputs = 2>(x) [n] n = Neg(p) [y] y = Neg(n) }""",
        {"rest": "unused: held to the end"},
    ),
    "what the node of the peak makes names its reader": (
        """g (float[256] x) => (float[1] y) <int64[1] first = {0}>
        { [a] a = Neg(x) [b] b = Exp(a) [y] y = ReduceSum(b, first) }""",
        {"a": "in use by Exp b (loss)", "b": "ReduceSum y (loss)"},
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_who_holds_it(name: str) -> None:
    text, holders = HELD[name]
    found = at_peak(explain(open_text(text)))
    assert {tensor: found[tensor].held_by for tensor in holders} == holders


def test_stashes_with_readers(step: Explainer) -> None:
    assert step.stashes() == [
        Stash("a", KIB, "mul0", ("dw1", "square"), "blk.0"),
        Stash("e", KIB, "add1", ("head",), "blk.1"),
    ]


def test_stash_bytes_by_module_largest_first() -> None:
    model = open_text(STEP.replace("[slope] tb = Sub(one, b2)", "[slope] tb = Mul(c, b2)"))
    report = analyze_open(model, TUNED).as_json()
    assert list(report["stash_by_module"].items()) == [  # type: ignore[attr-defined]
        ("blk.1", 2 * KIB),
        ("blk.0", KIB),
    ]


def test_the_analysis_carries_the_same(step: Explainer) -> None:
    found = analyze_open(open_text(STEP), TUNED)
    report = found.as_json()
    assert sum(found.by_class.values()) == found.timeline.peak_bytes == report["peak_bytes"]
    assert report["peak_node"] == "db"
    assert report["stash_bytes"] == 2 * KIB
    assert report["stash_by_module"] == {"blk.0": KIB, "blk.1": KIB}
    assert report["phases"] == {"forward": 4, "loss": 2, "backward": 7, "update": 2}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models())
def test_classes_sum_to_every_step_of_random_graphs(model: onnx.ModelProto) -> None:
    opened = open_text(model)
    for session in (TUNED, REUSING):
        found = explain(opened, session)
        for at, nbytes in enumerate(found.timeline.dynamic.tolist()):
            assert sum(found.by_class(at).values()) == found.timeline.resident_bytes + nbytes
        live = sum(item.nbytes for item in found.at_peak())
        assert live == found.timeline.dynamic_peak_bytes
