"""Which masks may be kept packed, what stands for it in a problem, and plans that use it."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text, tensor
from helpers.plans import checked, estimate
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.planning.apply import apply_plan
from memplan.planning.encode_problem import within
from memplan.planning.forms.dormant import Extended
from memplan.planning.forms.extend_graph import NO_KINDS, extend, kinds_for
from memplan.planning.forms.packed_masks import PACKED
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.solver.strategies.builtin import parse_strategy

PACKS = frozenset({PACKED})
DROPPED = """
g ({shape} x) => (float[] z) <float ratio = {{0.25}}, bool on = {{1}}>
{{
    [d1] a, m1 = Dropout<seed: int = 1>(x, ratio, on)
    [e1] b = Tanh(a)
    [d2] c, m2 = Dropout<seed: int = 2>(b, ratio, on)
    [e2] d = Tanh(c)
    [d3] e, m3 = Dropout<seed: int = 3>(d, ratio, on)
    [f3] f3 = Cast<to: int = 1>(m3)
    [g3] g3 = Mul(e, f3)
    [f2] f2 = Cast<to: int = 1>(m2)
    [g2] g2 = Mul(g3, f2)
    [f1] f1 = Cast<to: int = 1>(m1)
    [g1] g1 = Mul(g2, f1)
    [z] z = ReduceSum<keepdims: int = 0>(g1)
}}"""
MASKED = """
g (float[8192] x) => (float[] z{more})
<float ratio = {{0.5}}, bool on = {{1}}, float half = {{0.5}}>
{{
    {make}
    [e] e = Tanh(x)
    [w] w = Where(m, e, x)
    [z] z = ReduceSum<keepdims: int = 0>(w)
}}"""


def model_of(shape: str = "float[64, 128]") -> OpenModel:
    return open_text(DROPPED.format(shape=shape))


def extended(model: OpenModel, provider: str = "cpu") -> Extended:
    return extend(model.graph, small_constants(model.prepared.bound.graph), provider, PACKS)


DRAWN = "[d] y, m = Dropout(x, ratio, on)"
BODY = "{ [i] t = Where(m, x, x) }"
BRANCHES = f"""{DRAWN} [if] q = If(on) <then_branch: graph = g1 () => (float[8192] t) {BODY},
    else_branch: graph = g2 () => (float[8192] t) {BODY}>"""


@pytest.mark.parametrize(
    ("make", "more", "packed"),
    [
        (DRAWN, "", True),
        ("[r] r = RandomUniformLike(x) [m] m = Less(r, half)", "", True),
        ("[b] m = Bernoulli<dtype: int = 9>(x)", "", True),
        ("[m] m = Less(x, half)", "", False),  # it can be compared again
        (DRAWN, ", bool[8192] m", False),  # the interface
        (BRANCHES, ", float[8192] q", False),  # a body reads it
    ],
)
def test_masks_that_were_drawn_may_be_packed(make: str, more: str, packed: bool) -> None:
    assert bool(extended(open_text(MASKED.format(make=make, more=more))).forms) == packed


def test_a_part_of_a_mask_is_cut_again_out_of_the_whole() -> None:
    make = "[d] y, whole = Dropout(x, ratio, on) [m] m = Transpose(whole)"
    found = extended(open_text(MASKED.format(make=make, more="")))
    assert [found.graph.tensors[form.tensor].name for form in found.forms] == ["whole"]


@pytest.mark.parametrize("shape", ["float[61, 129]", "float[8, 128]"])
def test_odd_and_small_masks_are_left_alone(shape: str) -> None:
    assert not extended(model_of(shape)).forms


def test_bytes_need_an_opset_that_adds_them_and_shapes_that_hold() -> None:
    assert kinds_for(model_of().prepared, PACKS) == PACKS
    text = '<ir_version: 8, opset_import: ["" : 13]>' + DROPPED.format(shape="float[64, 128]")
    assert not kinds_for(open_text(text).prepared, PACKS)
    symbolic = open_text(DROPPED.format(shape="float[N, 128]"), dims={"N": 64})
    assert not kinds_for(symbolic.prepared, PACKS)


@pytest.mark.parametrize(("provider", "last"), [("cpu", "GreaterOrEqual"), ("cuda", "Cast")])
def test_operators_that_the_provider_has(provider: str, last: str) -> None:
    found = extended(model_of(), provider)
    mask = tensor(found.graph, "m1")
    form = found.forms[0]
    assert form.tensor == mask.id
    assert found.graph.nodes[form.decode].op == last
    packed = found.graph.tensors[found.graph.nodes[form.encode[-1]].outputs[0]]
    assert (packed.nbytes, packed.dtype) == (mask.nbytes // 8, 2)
    assert mask.id not in found.makers


def request_for(model: OpenModel, budget: int, forms: frozenset[str] = PACKS) -> PlanRequest:
    values = small_constants(model.prepared.bound.graph)
    return PlanRequest(model.graph, TUNED, budget, estimate, values, forms=forms)


def lowest(model: OpenModel, forms: frozenset[str]) -> tuple[int, bool]:
    """The lowest peak that is found, verified and proved, and whether something is unpacked."""
    request = replace(request_for(model, 0, forms=forms), lowest=True)
    plan = make_plan(prepare(request), parse_strategy("search{iterations=6}"), 10.0)
    prepared = model.prepared
    rewritten = apply_plan(prepared.proto, plan, prepared.dims)
    timeline = checked(prepared, rewritten, plan)
    found = prove(reference_side(prepared, rewritten), Side(rewritten, prepared.folder))
    assert found.proved, found.reason
    used = any(node.name.startswith("m1/pack") for node in rewritten.graph.node)
    return timeline.peak_with_workspace_bytes, used


@pytest.mark.slow
def test_packing_goes_where_no_recomputation_does() -> None:
    model = model_of()
    below, used = lowest(model, PACKS)
    above, never = lowest(model, NO_KINDS)
    assert used
    assert not never
    assert below < above


def test_a_mask_that_is_to_be_recomputed_is_drawn_once() -> None:
    """``--recompute '*'`` means masks, too; a search must not begin with one made of nothing.

    One that is to stay is not packed at all.
    """
    model = model_of()
    stays = replace(request_for(model, 1 << 40), keep=frozenset({tensor(model.graph, "m2").id}))
    assert len(prepare(stays).problem.forms) == 2
    encoded = prepare(request_for(model, 1 << 40)).problem
    masks = frozenset(tensor(model.graph, name).id for name in ("m1", "m2"))
    assert masks <= {form.tensor for form in encoded.forms}
    problem = within(encoded, 10**9, masks)
    assert np.array_equal(problem.start, problem.order)
    assert not problem.protected.any()
