"""Rewriting, text in and text out: ``NAME.onnxtxt`` and what it becomes, ``NAME.expected.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected files anew; read the diff.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import pytest

from helpers.golden import UPDATE, as_text
from helpers.graphs import TUNED, open_text
from helpers.plans import checked
from memplan.ir.graph import Graph
from memplan.ops.cost import DEVICES, node_costs
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.proto.metadata import get_metadata
from memplan.runtime.inputs import synthesize
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.solver.strategies.builtin import parse_strategy

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    """A model and the budget it is planned for; ``clones`` are the nodes that run again."""

    budget: int
    clones: tuple[str, ...]
    dims: dict[str, int] = field(default_factory=dict)
    random: bool = False


CASES = {
    "mlp": Golden(57_000, ("relu1",)),
    "view": Golden(8_000, ("start", "view")),
    "dropout": Golden(
        9_000, ("scale", "drop/rebuild_cast", "drop/rebuild_mul", "drop/rebuild_scale"), random=True
    ),
    "layer_norm": Golden(8_000, ("add", "norm")),
    "symbolic": Golden(7_500, ("first",), {"N": 4}),
}


def estimate(graph: Graph) -> list[float]:
    """Costs that no machine changes."""
    return list(node_costs(graph, DEVICES["cpu"], "cpu"))


def read(name: str) -> onnx.ModelProto:
    """The model in a golden file."""
    return onnx.parser.parse_model((FOLDER / f"{name}.onnxtxt").read_text())


def rewritten(name: str) -> tuple[OpenModel, Plan, onnx.ModelProto]:
    """A golden model, its plan, and what the plan makes of it; post-conditions hold."""
    golden = CASES[name]
    model = open_text(read(name), dims=golden.dims)
    values = small_constants(model.prepared.bound.graph)
    request = PlanRequest(model.graph, TUNED, golden.budget, estimate, values)
    plan = make_plan(prepare(request), parse_strategy("greedy"), 0.0)
    result = apply_plan(model.prepared.proto, plan, golden.dims)
    checked(model.prepared, result, plan)
    return model, plan, result


@pytest.mark.parametrize("name", CASES)
def test_rewriting_gives_the_expected_text(name: str) -> None:
    _, plan, result = rewritten(name)
    assert tuple(plan.recomputed) == CASES[name].clones
    assert set(plan.recomputed.values()) == {1}
    path = FOLDER / f"{name}.expected.onnxtxt"
    if os.environ.get(UPDATE) == "1":
        path.write_text(as_text(result))
    assert as_text(result) == path.read_text(), f"set {UPDATE}=1 to accept it"


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].random])
def test_the_expected_text_computes_the_same(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    model, _, result = rewritten(name)
    feeds = synthesize(model.graph)
    before = ReferenceEvaluator(model.prepared.proto).run(None, feeds)
    after = ReferenceEvaluator(result).run(None, feeds)
    assert len(before) == len(model.graph.outputs)
    for x, y in zip(before, after, strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_the_file_says_how_it_was_made(name: str) -> None:
    golden = CASES[name]
    _, plan, result = rewritten(name)
    found = get_metadata(result)
    assert found["budget_bytes"] == golden.budget
    assert found["dims"] == golden.dims
    assert found["session"] == "tuned"
    assert found["strategy"] == "greedy"
    assert found["clones"] == len(golden.clones)
    assert found["predicted_peak_bytes"] == plan.predicted_peak_bytes <= golden.budget


@pytest.mark.parametrize("name", CASES)
def test_interface_and_constants_stay(name: str) -> None:
    before = read(name)
    after = rewritten(name)[2]
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    kept = [tensor.name for tensor in after.graph.initializer][: len(before.graph.initializer)]
    assert kept == [tensor.name for tensor in before.graph.initializer]
    assert after.opset_import == before.opset_import
    assert after.producer_name == before.producer_name


def test_every_golden_file_is_used() -> None:
    found = {path.name for path in FOLDER.glob("*.onnxtxt")}
    assert found == {f"{name}{end}" for name in CASES for end in (".onnxtxt", ".expected.onnxtxt")}
