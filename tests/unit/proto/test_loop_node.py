"""Scan and Loop nodes as ONNX lays them out."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from memplan.errors import ModelError
from memplan.proto.loop_node import Slices, read_loop, scan_attributes


def body(inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    def values(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]

    return helper.make_graph([], "body", values(inputs), values(outputs))


def test_scan() -> None:
    """States first; negative axes count from the end where the rank is known."""
    node = helper.make_node(
        "Scan",
        ["h0", "x", "y"],
        ["", "all"],
        body=body(["h", "u", "v"], ["next", "out", "more"]),
        num_scan_inputs=2,
        scan_input_axes=[-1, 1],
        scan_input_directions=[0, 1],
        scan_output_directions=[1],
    )
    loop = read_loop(node, {"x": 3, "y": 2}.__getitem__)
    assert (loop.initials, loop.finals) == (("h0",), ("",))
    assert loop.sequences == (Slices("x", 2, False), Slices("y", 1, True))
    assert loop.stacked == (Slices("all", 0, True), Slices("", 0, False))
    assert (loop.state_inputs, loop.slice_inputs) == (("h",), ("u", "v"))
    assert (loop.state_outputs, loop.slice_outputs) == (("next",), ("out", "more"))
    assert read_loop(node).sequences[0].axis == -1


def test_loop() -> None:
    """Trip count and condition come first, in the body the condition alone goes out."""
    node = helper.make_node(
        "Loop",
        ["count", "", "h0"],
        ["last", "all"],
        body=body(["i", "go", "h"], ["going", "next", "out"]),
    )
    loop = read_loop(node)
    assert (loop.initials, loop.finals, loop.sequences) == (("h0",), ("last",), ())
    assert loop.stacked == (Slices("all", 0, False),)
    assert (loop.state_inputs, loop.slice_inputs) == (("h",), ())
    assert (loop.state_outputs, loop.slice_outputs) == (("next",), ("out",))


def test_no_body() -> None:
    with pytest.raises(ModelError, match="Scan 'lost' lacks its body"):
        read_loop(helper.make_node("Scan", ["x"], ["y"], name="lost", num_scan_inputs=1))


def test_attributes_that_are_read_as_they_were_written() -> None:
    sequences = [Slices("x", 0, False), Slices("y", 1, True)]
    graph = body(["u", "v"], ["w"])
    given = scan_attributes(graph, sequences, [Slices("z", 0, False)])
    assert "scan_output_axes" not in given
    loop = read_loop(helper.make_node("Scan", ["x", "y"], ["z"], **given))
    assert list(loop.sequences) == sequences
    assert loop.stacked == (Slices("z", 0, False),)
