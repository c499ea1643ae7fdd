"""Graphs as text: ``ROOM/SOURCE.onnxtxt``, and what a part of memplan makes of it,
``ROOM/CASE.expected.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected files anew; read the diff.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import onnx
import onnx.parser
import onnx.printer
import pytest

import memplan
from helpers.graphs import TUNED
from helpers.loops import peak, reopened, steps_of
from helpers.plans import checked, estimate, outputs_of
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Pass
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import named
from memplan.passes.manager import run_passes
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.planning.apply import apply_plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.proto.metadata import node_metadata
from memplan.runtime.inputs import synthesize
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate
from memplan.solver.strategies.builtin import parse_strategy

FOLDER, UPDATE = Path(__file__).parent, "MEMPLAN_UPDATE_GOLDEN"
Make = Callable[[OpenModel], onnx.ModelProto]


def gradients(*wrt: str) -> Make:
    return lambda model: memplan.gradients(model.prepared.proto, ["all"], wrt)


def passed(applied: Pass) -> Make:
    def make(model: OpenModel) -> onnx.ModelProto:
        (step,) = run_passes([applied], model, simulate(model.graph, TUNED))
        return step.model.prepared.proto

    return make


def stored_less(wish: str) -> Make:
    def make(model: OpenModel) -> onnx.ModelProto:
        steps = steps_of(model)
        rows = list(zip(steps, named(steps, wish), strict=True))
        return store_less(model.prepared.proto, rows, False)

    return make


def planned(budget: int) -> Make:
    def make(model: OpenModel) -> onnx.ModelProto:
        values = small_constants(model.prepared.bound.graph)
        request = PlanRequest(model.graph, TUNED, budget, estimate, values)
        plan = make_plan(prepare(request), parse_strategy("greedy"), 0.0)
        result = apply_plan(model.prepared.proto, plan, model.prepared.dims)
        assert checked(model.prepared, result, plan).peak_with_workspace_bytes <= budget
        return result

    return make


@dataclass(frozen=True)
class Golden:
    """What is made of a model, and its dynamic peak before and after.

    Args:
        source: the model's file, where it has another name than the case.
        dims: sizes that the simulation binds; the file keeps its symbols.
        random: it draws, and is another file then: no bits to compare.
    """

    make: Make
    before: int
    after: int
    source: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    random: bool = False


# A tensor of a step is 8 × 16 × 4 = 512 B. The Scan stacks h, e and t; the Loop s and t.
CASES = {
    "autodiff/scan_cell": Golden(gradients("w", "b", "h0"), 576, 2272),
    "loops/scan_t": Golden(stored_less("t"), 19972, 17412, "scan"),  # from e, which is stored
    "loops/scan_all": Golden(stored_less("all"), 19972, 14852, "scan"),  # h is left; x is an input
    "loops/loop_t": Golden(stored_less("t_all"), 24580, 18436, "loop"),  # by what the Loop stacks
    # s needs the state before the step, which is stacked then: as much as s.
    "loops/loop_all": Golden(stored_less("all"), 24580, 15364, "loop"),
    "passes/elide": Golden(passed(Elide()), 4096, 3076),
    "passes/prune": Golden(passed(Prune()), 5124, 4612),
    "passes/prune_wrt": Golden(passed(Prune(("w",))), 5124, 2564, "prune"),
    "passes/release": Golden(passed(Release()), 744, 472),
    "passes/order": Golden(passed(Order(rounds=3)), 4352, 2560),
    "planning/mlp": Golden(planned(57_000), 35332, 29188),
    "planning/view": Golden(planned(8_000), 7168, 6144),
    "planning/dropout": Golden(planned(9_000), 7424, 6400, random=True),
    "planning/layer_norm": Golden(planned(8_000), 7200, 6160),
    "planning/symbolic": Golden(planned(7_500), 7168, 6144, dims={"N": 4}),
}


def source_of(name: str) -> Path:
    path = FOLDER / f"{name}.onnxtxt"
    return path.with_name(f"{CASES[name].source}.onnxtxt") if CASES[name].source else path


@cache
def both(name: str) -> tuple[OpenModel, OpenModel]:
    """The model of a case, before and after."""
    golden = CASES[name]
    model = reopened(onnx.parser.parse_model(source_of(name).read_text()), **golden.dims)
    return model, reopened(golden.make(model), **golden.dims)


def as_text(model: onnx.ModelProto) -> str:
    """The model, and behind it the nodes' metadata, which the printer leaves out."""
    notes = [
        f"# {node.name}: " + ", ".join(f"{k} = {v}" for k, v in node_metadata(node).items())
        for node in model.graph.node
        if node.metadata_props
    ]
    lines = [line.rstrip() for line in onnx.printer.to_text(model).splitlines()]
    return "\n".join([*lines, *notes]) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_expected_text(name: str) -> None:
    after = both(name)[1].prepared.proto
    onnx.checker.check_model(after, full_check=True)
    path = FOLDER / f"{name}.expected.onnxtxt"
    if os.environ.get(UPDATE) == "1":
        path.write_text(as_text(after))
    assert as_text(after) == path.read_text(), f"set {UPDATE}=1 to accept it"


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same_in_the_bytes_that_are_predicted(name: str) -> None:
    golden, models = CASES[name], both(name)
    assert tuple(map(peak, models)) == (golden.before, golden.after)
    feeds, found = synthesize(models[0].graph), []
    for model in models:
        proto = model.prepared.proto
        given = {v.name: feeds[v.name] for v in proto.graph.input if v.name in feeds}
        values, measured = outputs_of(proto, given, golden.dims)
        assert measured.dynamic_bytes == peak(model)
        names = (value.name for value in proto.graph.output)
        found.append({k: v.tobytes() for k, v in zip(names, values, strict=True)})
    shared = found[0].keys() & found[1].keys()
    assert shared
    assert golden.random or all(found[0][k] == found[1][k] for k in shared)


def test_every_file_is_used() -> None:
    used = {source_of(name) for name in CASES}
    used |= {FOLDER / f"{name}.expected.onnxtxt" for name in CASES}
    assert {*FOLDER.rglob("*.onnxtxt")} == used
