"""Pairs of loops that store less: bits, and measured peaks, on ONNX Runtime."""

from pathlib import Path

import pytest

from helpers.graphs import parse
from helpers.loops import CELL, cell, layer, pairs_of, parsed, peak, reopened, steps_of, trained
from helpers.plans import outputs_of
from helpers.scans import MIXED, ODD, RNN
from memplan.autodiff.backward import Request, build_gradients
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import named
from memplan.runtime.inputs import synthesize
from memplan.shapes.infer import run_inference
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened


def check(model: OpenModel) -> list[int]:
    """What is cheap and all: bits, predicted = measured. The measured peaks."""
    feeds, steps = synthesize(model.graph, draw=1), steps_of(model)
    expected, before = outputs_of(model.prepared.proto, feeds)
    assert before.dynamic_bytes == peak(model)
    found = [before.dynamic_bytes]
    for wish in ("auto", "all"):
        rows = list(zip(steps, named(steps, wish), strict=True))
        proto = store_less(model.prepared.proto, rows, False)
        after = reopened(proto)
        outputs, measured = outputs_of(after.prepared.proto, feeds)
        assert [x.tobytes() for x in outputs] == [x.tobytes() for x in expected]
        assert measured.dynamic_bytes == peak(after)
        found.append(measured.dynamic_bytes)
    return found


@pytest.mark.parametrize("text", [RNN, MIXED, ODD], ids=["rnn", "mixed", "odd"])
def test_axes_directions_and_states(text: str) -> None:
    check(trained(parse(text)))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers", [1, 2])
def test_layers(op: str, layers: int) -> None:
    peaks = check(layer(op, 6, 3, 8, 16, layers))
    if op != "RNN":  # that stores nothing but its states
        assert min(peaks) < peaks[0]


def test_a_cell_of_hand() -> None:
    peaks = check(cell(12))
    assert min(peaks) < peaks[0]


def test_a_state_that_is_an_output_is_not_stored_again() -> None:
    """Without a gradient of ``r`` only what is recomputed reads h: the output, shifted."""
    made = build_gradients(parsed(CELL, T=12, N=3), Request(("all",), ("x",), ("d",)))
    model = reopened(made)
    check(model)
    steps = steps_of(model)
    proto = store_less(made, list(zip(steps, named(steps, "all"), strict=True)), False)
    forward = next(node for node in proto.graph.node if node.op_type == "Scan")
    assert len(forward.output) == 4  # two states, all, and c before every step


def test_one_row_is_multiplied_otherwise() -> None:
    """Then the product before the loop is not made again in slices: its bits would differ."""
    check(layer("LSTM", 6, 1, 8, 16))


def test_symbolic_sizes() -> None:
    """Steps and batch are bound for the plan only; the file keeps its interface."""
    made = build_gradients(parse(CELL), Request(("all",), ("w", "r"), ("d",)))
    sizes = {"T": 5, "N": 3}
    model = opened(prepare(made, Path("test.onnx"), sizes))
    feeds, steps = synthesize(model.graph, draw=1), steps_of(model)
    kept = named(steps, "all")
    proto = store_less(made, list(zip(steps, kept, strict=True)), True)
    assert proto.graph.input == made.graph.input
    after = opened(prepare(proto, Path("test.onnx"), sizes))
    (pair,) = pairs_of(after)
    assert pair.step_bytes < steps[0].pair.step_bytes
    outputs, expected = (outputs_of(each, feeds, sizes)[0] for each in (proto, made))
    assert [x.tobytes() for x in outputs] == [x.tobytes() for x in expected]


def test_onnx_may_give_up_on_the_shapes_of_a_graph() -> None:
    model = layer("LSTM", 6, 3, 8, 16, 1)
    proto = model.prepared.proto
    default = proto.graph.initializer.add(name=proto.graph.input[0].name, data_type=1, dims=[99])
    default.raw_data = bytes(4 * 99)
    assert run_inference(proto) is proto
    steps = steps_of(model)
    rows = list(zip(steps, named(steps, "auto"), strict=True))
    assert store_less(proto, rows, False).graph.node
