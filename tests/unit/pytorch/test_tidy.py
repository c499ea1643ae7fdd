"""What is written of the exporter's graph. Needs no PyTorch."""

import onnx
import pytest
from onnx import TensorProto, helper

from memplan.errors import ModelError
from memplan.proto.metadata import CHECKPOINT_KEY, node_metadata
from memplan.pytorch.tidy import tidy

SCOPES = "pkg.torch.onnx.name_scopes"


def model(size: str | int = "s7") -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="node_relu"),
        helper.make_node("Dropout", ["a"], ["b"], name="node_drop"),
        helper.make_node("Exp", ["b"], ["c"], name="node_relu"),
    ]
    scopes = ("['', 'model', 'model.act', 'relu']", "['', 'model', 'drop']", "['', 'exp']")
    for node, scope in zip(nodes, scopes, strict=True):
        node.metadata_props.add(key=SCOPES, value=scope)
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File '/home/me/net.py'")
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, 4])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [size, 4])],
    )
    graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["2*s7", 4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_modules_names_and_seeds() -> None:
    found = model()
    tidy(found, {})
    assert [node.name for node in found.graph.node] == ["relu", "drop", "relu_1"]
    modules = [node_metadata(node).get("memplan.module") for node in found.graph.node]
    assert modules == ["act", None, "loss"]
    assert [item.name for item in found.graph.node[1].attribute] == ["seed"]
    assert b"/home/me" not in found.SerializeToString()


def test_symbols_get_the_names_that_were_asked_for() -> None:
    found = model()
    tidy(found, {"x": {0: "batch"}})
    values = (*found.graph.input, *found.graph.output, *found.graph.value_info)
    dims = [value.type.tensor_type.shape.dim[0].dim_param for value in values]
    assert dims == ["batch", "batch", "2*batch"]


def test_a_dimension_that_became_a_number_is_refused() -> None:
    with pytest.raises(ModelError, match="'batch' of 'x' became 2"):
        tidy(model(2), {"x": {0: "batch"}})


def test_what_enters_or_leaves_a_region_is_marked() -> None:
    found = model()
    assert tidy(found, {}, {"drop": 1}) == 2
    marked = [n.name for n in found.graph.node if CHECKPOINT_KEY in node_metadata(n)]
    assert marked == ["relu", "drop"]
