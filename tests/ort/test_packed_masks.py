"""Packed masks on ONNX Runtime: every pattern of bits comes back, and plans with them hold."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans, lists, sampled_from, tuples
from onnx import TensorProto, helper, numpy_helper

from helpers.graphs import TUNED, open_text
from helpers.plans import checked, estimate, outputs_of
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.planning.apply import apply_plan
from memplan.planning.forms.extend_graph import extend, kinds_for
from memplan.planning.forms.packed_masks import PACKED
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate
from memplan.solver.strategies.builtin import parse_strategy

ROWS = 1024
PACKS = frozenset({PACKED})


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_every_byte_comes_back(provider: str) -> None:
    """All 256 patterns, by the operators chosen for each provider (on the CPU's kernels)."""
    model = open_text("""
    g (float[8192] x) => (bool[8192] z) <float ratio = {0.5}, bool on = {1}>
    { [d] y, mask = Dropout(x, ratio, on) [z] z = Not(mask) }""")
    values = small_constants(model.prepared.bound.graph)
    found = extend(model.graph, values, provider, PACKS)
    names = [tensor.name for tensor in found.graph.tensors]
    nodes = [
        helper.make_node(
            node.op,
            [names[t] for t in node.inputs],
            ["back" if names[t] == "mask" else names[t] for t in node.outputs],
            **dict(node.attributes),
        )
        for node in found.graph.nodes[found.first_dormant :]
        if "pack" in node.name
    ]
    mask, back = (
        helper.make_tensor_value_info(name, TensorProto.BOOL, [8 * ROWS])
        for name in ("mask", "back")
    )
    constants = [numpy_helper.from_array(v, n) for n, v in found.constants.items() if "pack" in n]
    graph = helper.make_graph(nodes, "packed", [mask], [back], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    patterns = np.arange(ROWS) % 256
    bits = ((patterns >> np.arange(8)[:, None]) & 1).astype(bool).reshape(-1)
    (result,), _ = outputs_of(proto, {"mask": bits})
    assert np.array_equal(result, bits)


LAYERS = lists(
    tuples(sampled_from(["dropout", "draw", "same draw", "none"]), booleans()),
    min_size=2,
    max_size=4,
)


def masked_net(layers: list[tuple[str, bool]], size: int) -> OpenModel:
    """A chain of layers with masks, which are read again in reverse; ``seen``: also as they are."""
    forward, backward, value = [], [], "x"
    for k, (kind, seen) in enumerate(layers):
        if kind == "dropout":
            forward.append(f"[d{k}] a{k}, m{k} = Dropout<seed: int = {k}>({value}, ratio, on)")
        else:
            seed = 7 if kind == "same draw" else k
            drawn = f"[u{k}] u{k} = RandomUniformLike<seed: float = {seed}.5>(x)"
            compared = f"[c{k}] m{k} = Less({value if kind == 'none' else f'u{k}'}, half)"
            forward += [compared] if kind == "none" else [drawn, compared]
            forward.append(f"[a{k}] a{k} = Where(m{k}, {value}, x)")
        forward.append(f"[t{k}] t{k} = Tanh(a{k})")
        value = f"t{k}"
        mine = [f"[f{k}] f{k} = Cast<to: int = 1>(m{k})", f"[g{k}] g{k} = Mul(G, f{k})"]
        if seen:
            mine[1:] = [f"[h{k}] h{k} = Mul(G, f{k})", f"[g{k}] g{k} = Where(m{k}, h{k}, G)"]
        backward.append((k, mine))
    gradient = value
    for k, mine in reversed(backward):
        forward += [text.replace("G", gradient) for text in mine]
        gradient = f"g{k}"
    constants = "<float ratio = {0.25}, bool on = {1}, float half = {0.3}>"
    body = " ".join([*forward, f"[z] z = ReduceSum<keepdims: int = 0>({gradient})"])
    return open_text(f"g (float[{size}] x) => (float[] z) {constants} {{ {body} }}")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LAYERS, sampled_from([8192, 8196]))
def test_plans_with_packed_masks_hold(layers: list[tuple[str, bool]], size: int) -> None:
    """The lowest peak with packs is proved, simulated as planned, and gives the same bits."""
    model = masked_net(layers, size)
    assert kinds_for(model.prepared, PACKS)
    values = small_constants(model.prepared.bound.graph)
    request = PlanRequest(model.graph, TUNED, 0, estimate, values, lowest=True, forms=PACKS)
    prepared = model.prepared
    plan = make_plan(prepare(request), parse_strategy("search{iterations=3,certify=0}"), 10.0)
    rewritten = apply_plan(prepared.proto, plan, prepared.dims)
    timeline = checked(prepared, rewritten, plan)
    found = prove(reference_side(prepared, rewritten), Side(rewritten, prepared.folder))
    assert found.proved, found.reason
    before_it = simulate(model.graph, TUNED).peak_with_workspace_bytes
    assert timeline.peak_with_workspace_bytes <= before_it
    feeds = {"x": np.linspace(-1, 1, size, dtype=np.float32)}
    before, _ = outputs_of(prepared.proto, feeds)
    after, _ = outputs_of(rewritten, feeds)
    assert [array.tobytes() for array in before] == [array.tobytes() for array in after]
    if size % 8:
        assert not any("pack" in node.name for node in rewritten.graph.node)
