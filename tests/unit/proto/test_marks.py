"""Marks of checkpoints in a file: read, and carried over to an optimized one."""

import onnx

from helpers.checkpoints import STEP
from helpers.graphs import graph_of, open_text, parse
from memplan.proto.metadata import CHECKPOINT_KEY, carry_marks, marked_names


def test_marks_of_nodes_and_values() -> None:
    model = parse(STEP)
    (mul,) = [node for node in model.graph.node if node.name == "mul"]
    mul.metadata_props.add(key=CHECKPOINT_KEY, value="True")
    (norm,) = [node for node in model.graph.node if node.name == "norm"]
    norm.metadata_props.add(key=CHECKPOINT_KEY, value="false")
    value = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [40, 40])
    value.metadata_props.add(key=CHECKPOINT_KEY, value="1")
    model.graph.value_info.append(value)
    assert marked_names(model.graph) == ["a", "h"]
    graph = open_text(model).graph
    assert {graph.tensors[t].name for t in graph.checkpoints} == {"a", "h"}
    assert graph_of(STEP).checkpoints == frozenset()


def test_marks_survive_an_optimizer_that_drops_them() -> None:
    source, target = parse(STEP), parse(STEP)
    for node in source.graph.node:
        if node.name in ("mul", "norm", "cast"):
            node.metadata_props.add(key=CHECKPOINT_KEY, value="1")
    value = onnx.helper.make_tensor_value_info("keep", onnx.TensorProto.BOOL, [40, 40])
    value.metadata_props.add(key=CHECKPOINT_KEY, value="1")
    source.graph.value_info.append(value)
    (cast,) = [node for node in target.graph.node if node.name == "cast"]
    cast.output[0] = "fused"
    assert carry_marks(source.graph, target.graph) == ["c"]
    assert marked_names(target.graph) == ["a", "keep", "n", "mean", "dev"]
