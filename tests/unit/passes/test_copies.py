"""Widened casts and broadcasts that are kept as what they are of, and those that are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans, lists, sampled_from, tuples

from helpers.graphs import TUNED, open_text
from helpers.passes import applied
from helpers.plans import outputs_of
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.passes.manager import PassManager
from memplan.passes.narrow import Narrow
from memplan.simulate.timeline import simulate

CAST = """g (float[256, 256] x{inputs}) => (float[256, 256] z{outputs})
<float zero = {{0.0}}, int64[2] shape = {{256, 256}}, int64[2] some = {{256, 16}}>
{{ [m] m = Greater(x, zero) [f] f = Cast<to: int = 1>({source})
   [a] a = MatMul(x, {first}) [b] b = MatMul(a, x) [c] c = MatMul(b, a) [e] e = Mul(c, b)
   [k] k = Mul(e, a) [z] z = Mul(k, f) {more} }}"""


def text(
    inputs: str = "", outputs: str = "", source: str = "m", first: str = "f", more: str = ""
) -> str:
    return CAST.format(inputs=inputs, outputs=outputs, source=source, first=first, more=more)


def again(model_text: str) -> int:
    """How many nodes are made again."""
    return sum("/again" in node.name for node in applied(model_text, Narrow()).graph.nodes)


def test_a_mask_is_kept_and_cast_again() -> None:
    model = open_text(text())
    before = simulate(model.graph, TUNED)
    step = PassManager([Narrow()]).run(model, before)[0]
    assert step.note == "1 cast or broadcast made again"
    saved = before.peak_with_workspace_bytes - step.timeline.peak_with_workspace_bytes
    assert saved == 256 * 256 * 3  # four bytes an element before, one now
    found = prove(
        reference_side(model.prepared), Side(step.model.prepared.proto, model.prepared.folder)
    )
    assert found.proved, found.reason
    assert found.recomputed == 1


def test_a_broadcast_is_kept_as_what_it_repeats() -> None:
    body = text().replace(
        "[f] f = Cast<to: int = 1>(m)", "[s] s = ReduceMax(x, axes) [f] f = Expand(s, shape)"
    )
    body = body.replace("int64[2] some = {256, 16}", "int64[1] axes = {1}")
    assert again(body) == 1


@pytest.mark.parametrize(
    "left_alone",
    [
        text(outputs=", float[256, 256] f"),
        text(source="n", more="").replace("[f]", "[n] n = Cast<to: int = 11>(x) [f]"),
        text().replace("[f] f = Cast<to: int = 1>(m)", "[f] f = Where(m, x, zero)"),
        text().replace("Mul(k, f)", "Mul(k, x)"),
    ],
    ids=["graph output", "narrowing", "not a copy", "not wanted late"],
)
def test_left_alone(left_alone: str) -> None:
    assert again(left_alone) == 0


LAYERS = lists(
    tuples(sampled_from(["cast", "expand", "float16", "twice", "same twice"]), booleans()),
    min_size=1,
    max_size=4,
)


@pytest.mark.ort
@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LAYERS)
def test_random_graphs_keep_their_bits(layers: list[tuple[str, bool]]) -> None:
    """Never a higher peak; proved; the same bits, NaN and infinities among the inputs."""
    makers = {
        "cast": "[m{k}] m{k} = Greater({v}, zero) [f{k}] f{k} = Cast<to: int = 1>(m{k})",
        "expand": "[m{k}] m{k} = ReduceMax({v}, axes) [f{k}] f{k} = Expand(m{k}, shape)",
        "float16": "[m{k}] m{k} = Cast<to: int = 10>({v}) [f{k}] f{k} = Cast<to: int = 1>(m{k})",
        "twice": "[m{k}] m{k} = Greater({v}, zero) [h{k}] h{k} = Cast<to: int = 10>(m{k})"
        " [f{k}] f{k} = Cast<to: int = 1>(h{k})",
        "same twice": "[m{k}] m{k} = Greater({v}, zero) [h{k}] h{k} = Cast<to: int = 1>(m{k})"
        " [i{k}] i{k} = Cast<to: int = 1>(m{k}) [f{k}] f{k} = Add(h{k}, i{k})",
    }
    nodes, value, names = [], "x", []
    for k, (kind, early) in enumerate(layers):
        nodes.append(makers[kind].format(k=k, v=value))
        nodes.append(f"[v{k}] v{k} = Add({value}, {f'f{k}' if early else 'x'})")
        value = f"v{k}"
        names.append(f"f{k}")
    for k, name in enumerate(reversed(names)):
        nodes.append(f"[w{k}] w{k} = Mul({value}, {name})")
        value = f"w{k}"
    model = open_text(
        "g (float[64, 64] x) => (float[64, 64] z) <float zero = {0.0}, int64[1] axes = {1},"
        f" int64[2] shape = {{64, 64}}> {{ {' '.join(nodes)} [z] z = Neg({value}) }}"
    )
    before = simulate(model.graph, TUNED)
    step = PassManager([Narrow(any_price=True)]).run(model, before)[0]
    assert step.timeline.peak_with_workspace_bytes <= before.peak_with_workspace_bytes
    found = prove(
        reference_side(model.prepared), Side(step.model.prepared.proto, model.prepared.folder)
    )
    assert found.proved, found.reason
    x = np.linspace(-2, 2, 64 * 64, dtype=np.float32).reshape(64, 64)
    x[0, :4] = np.nan, np.inf, -np.inf, -0.0
    old, _ = outputs_of(model.prepared.proto, {"x": x})
    new, _ = outputs_of(step.model.prepared.proto, {"x": x})
    assert [array.tobytes() for array in old] == [array.tobytes() for array in new]
