"""Preparing large files: time grows with the file, not with its square."""

import itertools
import time
from collections.abc import Callable

import onnx
import pytest
from onnx import helper

from memplan.proto.metadata import set_metadata
from memplan.shapes.hidden import HIDDEN_KEY, with_hidden_shapes
from memplan.shapes.prepare import name_nodes

FLOAT = onnx.TensorProto.FLOAT


def chain(length: int) -> onnx.ModelProto:
    """Nodes one behind the other, all of one name, with hidden shapes."""
    names = [f"t{k}" for k in range(length + 1)]
    nodes = [
        helper.make_node("Relu", [source], [target], name="same")
        for source, target in itertools.pairwise(names)
    ]
    x, y = (helper.make_tensor_value_info(name, FLOAT, [4]) for name in (names[0], names[-1]))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    set_metadata(model, {HIDDEN_KEY: {name: [FLOAT, [4]] for name in names[1:-1]}})
    return model


def named(model: onnx.ModelProto) -> None:
    name_nodes(model.graph)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    assert [node.name for node in model.graph.node[:3]] == ["same", "same_1", "same_2"]


def stated(model: onnx.ModelProto) -> None:
    assert len(with_hidden_shapes(model).graph.value_info) == len(model.graph.node) - 1


@pytest.mark.parametrize("step", [named, stated])
def test_time_is_linear_in_the_nodes(step: Callable[[onnx.ModelProto], None]) -> None:
    model = chain(20_000)
    start = time.process_time()
    step(model)
    assert time.process_time() - start < 4  # was 15 s and more, by square
