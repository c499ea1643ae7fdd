"""State in place: what is bound over old values gives the same bits, and takes what is said."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.effort import tries
from helpers.graphs import parse
from helpers.sessions import session
from helpers.state_graphs import feeds, state_step
from memplan import RewriteOptions, ValidateOptions, analyze, rewrite, validate
from memplan.api.state_modes import bindings, settled
from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import InfeasibleError
from memplan.ops.book import BOOK
from memplan.runtime.bound import run_bound
from memplan.runtime.messages import RunRequest
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind
from memplan.units import parse_size

TUNED = session_kind("tuned")


def _opened(model: onnx.ModelProto) -> OpenModel:
    return settled(opened(prepare(model, Path("model.onnx"), {})), TUNED, ("in-place",))


def _fed(model: onnx.ModelProto, given: Mapping[str, np.ndarray], steps: int) -> list[np.ndarray]:
    """All outputs of some steps of a plain loop: new values are fed back."""
    runner, values = session(model, "tuned"), dict(given)
    names = [output.name for output in runner.get_outputs()]
    found: list[np.ndarray] = []
    for _ in range(steps):
        result = dict(zip(names, runner.run(names, values), strict=True))
        values.update({k.removesuffix("_new"): v for k, v in result.items() if k.endswith("_new")})
        found += result.values()
    return found


def _bound(model: onnx.ModelProto, given: Mapping[str, np.ndarray], steps: int) -> list[np.ndarray]:
    """The same with state bound where memplan says it may be."""
    in_place, second = bindings(_opened(model).graph)
    request = RunRequest(in_place=in_place, second=second)
    runner, values = session(model, "tuned"), dict(given)
    names = [output.name for output in runner.get_outputs()]
    found: list[np.ndarray] = []
    for _ in range(steps):
        result = dict(zip(names, run_bound(runner, values, request), strict=True))
        values.update({k.removesuffix("_new"): v for k, v in result.items() if k.endswith("_new")})
        found += result.values()
    return found


def _same_bits(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("seed", range(tries(75)))
def test_what_lies_in_place_gives_the_bits_of_a_plain_loop(seed: int) -> None:
    model = state_step(seed)
    given = feeds(seed, model)
    assert _same_bits(_fed(model, given, 3), _bound(model, given, 3))


def test_scalars_stay_scalars_in_a_run_with_bound_state() -> None:
    """An output that the graph has twice is there twice, too."""
    model = parse(
        "g (float lr, float[3] w) => (float r, float[3] w_new, float r)"
        " { r = Mul(lr, lr) w_new = Mul(w, lr) }"
    )
    given = {"lr": np.asarray(2, np.float32), "w": np.ones(3, np.float32)}
    found = run_bound(session(model, "tuned"), given, RunRequest(in_place={"w_new": "w"}))
    assert [output.shape for output in found] == [(), (3,), ()]


def test_the_random_steps_have_pairs_of_both_kinds() -> None:
    graphs = [_opened(state_step(seed)).graph for seed in range(40)]
    assert sum(len(g.state.in_place) for g in graphs if g.state) > 80
    assert sum(len(g.state.apart) for g in graphs if g.state) > 80
    reasons = {why.split(" ", 1)[-1] for g in graphs if g.state for why in g.state.apart.values()}
    assert len({reason[-30:] for reason in reasons}) > 1


@pytest.mark.parametrize("seed", range(tries(75)))
def test_the_check_of_the_file_agrees_with_the_simulator(seed: int) -> None:
    model = state_step(seed)
    state = _opened(model).graph.state
    assert state is not None
    pairs = {v.name: v.name.removesuffix("_new") for v in model.graph.output if "_new" in v.name}
    graph = _opened(model).graph
    assert unsafe_pairs(model, pairs).keys() == {graph.tensors[o].name for o in state.apart}


@pytest.mark.parametrize("seed", range(6))
def test_a_rewritten_step_keeps_its_bits_and_its_bytes(seed: int, tmp_path: Path) -> None:
    original, new = tmp_path / "step.onnx", tmp_path / "new.onnx"
    model = state_step(seed, layers=9)
    onnx.save(model, original)
    floor = analyze(original, state="in-place")
    peak = floor.timeline.peak_with_workspace_bytes
    share = (peak + 2 * floor.floor_with_workspace_bytes) // 3
    options = RewriteOptions(
        parse_size(str(share)), state=("in-place",), optimize="none", time_limit=1.0
    )
    try:
        rewrite(original, options, new)
    except InfeasibleError:
        pytest.skip("no plan at this budget")
    found = validate(original, new, ValidateOptions(runs=1, plain=False))
    assert not found.findings
    assert found.rewritten.predicted_peak_bytes == found.rewritten.measured_peak_bytes
    given = feeds(seed, model)
    assert _same_bits(_fed(model, given, 3), _bound(onnx.load(new), given, 3))


OVERWRITES = {key: entry.overwrites for key, entry in BOOK.items() if entry.overwrites}


@pytest.mark.parametrize("key", sorted(OVERWRITES))
@pytest.mark.parametrize("other", [(), (1,), (64,), (3, 1), (3, 64)], ids=str)
def test_every_listed_kernel_may_write_over_what_it_reads(key: str, other: tuple[int, ...]) -> None:
    op, value = key.lstrip(":"), helper.make_tensor_value_info
    generator = np.random.default_rng(0)
    for slot in OVERWRITES[key]:
        names = ["x"] if OVERWRITES[key] == (0,) else ["x", "y"] if slot == 0 else ["y", "x"]
        inputs = [value("x", TensorProto.FLOAT, [3, 64]), value("y", TensorProto.FLOAT, [*other])]
        given = {
            "x": generator.standard_normal((3, 64)).astype(np.float32),
            "y": generator.standard_normal(other).astype(np.float32),
        }
        if op == "Where":
            names = ["c", "x", "y"] if slot == 1 else ["c", "y", "x"]
            inputs.append(value("c", TensorProto.BOOL, [*other]))
            given["c"] = np.asarray(generator.integers(0, 2, other)).astype(bool)
        node = helper.make_node(op, names, ["x_new"])
        output = value("x_new", TensorProto.FLOAT, [3, 64])
        graph = helper.make_graph([node], "g", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        used = {name: given[name] for name in given if name in names}
        for name in given.keys() - used.keys():
            graph_input = next(v for v in model.graph.input if v.name == name)
            model.graph.input.remove(graph_input)
        runner = session(model, "tuned")
        request = RunRequest(in_place={"x_new": "x"})
        assert _same_bits(runner.run(None, used), run_bound(runner, used, request))
