"""State in place outlives the passes that change what nodes read and when they run."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers.graphs import TUNED, parse
from helpers.state_graphs import state_step
from memplan.api.state_modes import settled
from memplan.equivalence.in_place import unsafe_pairs
from memplan.passes.manager import run_passes
from memplan.passes.order import Order
from memplan.passes.release import Release
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.timeline import simulate

# One mask reads a view of the old value, the other may be made early.
MASKED = """g (float[16, 16] x, float[16, 16] w) => (float[16, 16] w_new, float[16, 16] y)
<float zero = {0}, int64[2] shape = {16, 16}>
{ [view] v = Reshape(w, shape) [a] a = MatMul(x, v) [act] r = Relu(a) [b] b = Exp(r) [c] c = Sin(b)
  [halves] p, q = Split <axis: int = 0, num_outputs: int = 2>(c)
  [d] d = Concat <axis: int = 0>(p, p)
  [late] m = Greater(a, zero) [other] n = Greater(v, zero) [e] e = Where(m, d, c)
  [f] y = Where(n, e, b) [new] w_new = Sub(w, e) }"""


def in_place(model: onnx.ModelProto) -> OpenModel:
    return settled(opened(prepare(model, Path("model.onnx"), {})), TUNED, ("in-place",))


def pairs_of(model: OpenModel) -> dict[str, str]:
    state = model.graph.state
    assert state is not None
    names = [tensor.name for tensor in model.graph.tensors]
    return {names[output]: names[given] for output, given in state.in_place.items()}


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_pairs_stay_in_place(seed: int | None) -> None:
    model = in_place(parse(MASKED) if seed is None else state_step(seed, layers=8))
    before = pairs_of(model)
    first = simulate(model.graph, TUNED)
    steps = run_passes([Release(), Order(rounds=2)], model, first)
    after = steps[-1].model
    assert pairs_of(after).items() >= before.items()  # another order may let more lie in place
    assert not unsafe_pairs(after.prepared.proto, pairs_of(after))
    assert seed is not None or [step.changed for step in steps] == [True, True]
