"""Graphs that break a rule of ONNX: what is wrong, in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.odd_models import constant, info
from helpers.reading import refusal, refused

Edit = Callable[[onnx.ModelProto], None]


def test_an_opset_before_seven(tmp_path: Path) -> None:
    message = refused(odd.training(6), tmp_path)
    assert "opset 6" in message
    assert "7 and newer" in message


def test_a_graph_without_outputs(tmp_path: Path) -> None:
    model = odd.training()
    del model.graph.output[:]
    assert "no outputs" in refused(model, tmp_path)


def test_a_cycle_and_a_wrong_order(tmp_path: Path) -> None:
    cyclic = odd.training()
    cyclic.graph.node[0].input[0] = "h_grad"
    message = refused(cyclic, tmp_path)
    assert "must be topologically sorted, however input 'h_grad' of node: name: fc1" in message

    unsorted = odd.training()
    nodes = list(unsorted.graph.node)
    del unsorted.graph.node[:]
    unsorted.graph.node.extend(reversed(nodes))
    assert "must be topologically sorted" in refused(unsorted, tmp_path)


def test_a_node_that_reads_its_own_output(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.node[1].input[0] = "a"
    assert "must be topologically sorted, however input 'a'" in refused(model, tmp_path)


def _twice_by_nodes(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "h"


def _node_and_input(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "x"


def _node_and_initializer(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "w1"


def _two_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.append(info("x", [3]))


def _two_initializers(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(constant("zero", 1.0))


@pytest.mark.parametrize(
    "edit",
    [_twice_by_nodes, _node_and_input, _node_and_initializer, _two_inputs, _two_initializers],
)
def test_a_tensor_with_two_definitions(tmp_path: Path, edit: Edit) -> None:
    model = odd.training()
    edit(model)
    message = refused(model, tmp_path)
    assert "single static assignment" in message or "name is not unique" in message


def test_a_body_that_hides_an_outer_tensor(tmp_path: Path) -> None:
    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].output[0] = "h"
    assert "however 'h' has been used as output names multiple times" in refused(model, tmp_path)


def test_an_undefined_tensor_in_the_graph_and_in_a_body(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.node[5].input[0] = "nowhere"
    message = refused(model, tmp_path)
    assert "'nowhere'" in message
    assert "fc2_grad_a" in message

    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].input[0] = "w2_grad"  # computed later
    assert "'w2_grad'" in refused(model, tmp_path)


def test_an_output_that_nothing_computes(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.output[0].name = "lost"
    assert "Graph output 'lost' is not an output of any node" in refused(model, tmp_path)


def test_things_without_a_name(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.input.append(info("", [3]))
    assert "'name' of 'value_info' is required" in refused(model, tmp_path)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    data = odd.training().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(b"fc2_grad_a", b"fc2\xff\xfegrad_"))
    assert "UTF-8" in refusal(path).message
