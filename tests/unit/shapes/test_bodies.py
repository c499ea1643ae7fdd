"""Shapes in bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers import odd_models as odd
from helpers.odd_models import BOOL, FLOAT, INT64, constant, info, model, saved
from memplan.api.analysis import analyze
from memplan.shapes.body_shapes import body_models
from memplan.shapes.complete import value_types
from memplan.simulate.opened import open_model


def _body_of(proto: onnx.ModelProto, op: str) -> list[tuple[int | None, bool]]:
    types, _ = value_types(proto)
    node = next(node for node in proto.graph.node if node.op_type == op)
    return [(body.trips, body.complete) for body in body_models(proto, node, types)]


def test_iterations_of_bodies() -> None:
    assert _body_of(odd.conditional(), "If") == [(1, True), (1, True)]
    assert _body_of(odd.loop(5), "Loop") == [(5, True)]
    assert _body_of(odd.loop(5, as_node=True), "Loop") == [(5, True)]
    assert _body_of(odd.loop(0), "Loop") == [(0, True)]
    assert _body_of(odd.loop(2**63 - 1, stacked=False), "Loop") == [(None, True)]
    assert _body_of(odd.scan(), "Scan") == [(odd.BATCH, True)]


@pytest.mark.parametrize("axis", [0, -2, 1])
def test_a_scan_takes_slices_along_its_axis(axis: int) -> None:
    rows, columns = (odd.BATCH, odd.HIDDEN) if axis != 1 else (odd.HIDDEN, odd.BATCH)
    body = helper.make_graph(
        [helper.make_node("Neg", ["row"], ["minus"])],
        "body",
        [info("row", None)],
        [info("minus", None)],
    )
    proto = model(
        [
            helper.make_node(
                "Scan",
                ["rows"],
                ["out"],
                name="scan",
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[axis],
            )
        ],
        [info("rows", [rows, columns])],
        [info("out", None)],
    )
    graph = open_model_of(proto)
    assert graph["out"] == (odd.BATCH, odd.HIDDEN)


def open_model_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...] | None]:
    """Shapes by name."""
    types, _ = value_types(proto)
    return {name: value.shape for name, value in types.items()}


def test_a_body_that_hands_on_a_sequence_keeps_its_type(tmp_path: Path) -> None:
    pair = helper.make_tensor_sequence_value_info("seq", FLOAT, None)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("SequenceInsert", ["seq", "x"], ["longer"]),
        ],
        "body",
        [info("k", [], INT64), info("on", [], BOOL), pair],
        [info("still", [], BOOL), helper.make_tensor_sequence_value_info("longer", FLOAT, None)],
    )
    proto = model(
        [
            helper.make_node("SequenceConstruct", ["x"], ["first"], name="first"),
            helper.make_node("Loop", ["trips", "", "first"], ["all"], name="loop", body=body),
            helper.make_node("ConcatFromSequence", ["all"], ["joined"], name="join", axis=0),
        ],
        [info("x", [2, 3])],
        [info("joined", [8, 3])],
        [constant("trips", 3, np.int64)],
    )
    path = saved(proto, tmp_path)
    opened = open_model(path)
    joined = opened.graph.tensor_named("joined")
    assert joined is not None
    assert joined.shape == (8, 3)
    types, _ = value_types(proto)
    made = body_models(proto, proto.graph.node[1], types)[0].model.graph
    assert made.output[1].type.HasField("sequence_type")
    assert analyze(path).timeline.peak_bytes > 0
