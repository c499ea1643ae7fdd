"""Calls and constants against ONNX's own definitions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers import odd_models as odd
from helpers.odd_models import saved
from helpers.reading import refused
from memplan.api.analysis import analyze

Edit = Callable[[onnx.GraphProto], object]


def split(graph: onnx.GraphProto) -> None:
    """Into billions of outputs."""
    node = helper.make_node("Split", ["x"], ["cut"], name="cut", axis=0, num_outputs=2**31)
    graph.node.insert(0, node)


def typed(tensor: onnx.TensorProto) -> None:
    """Three elements, in the field of their type."""
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 3)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda g: g.node[0].input.pop(),
            "Node(fc1) with schema(::MatMul:13) has input size 1 not in range",
        ),
        (
            lambda g: g.node[1].input.append("x"),
            "Node(act) with schema(::Relu:14) has input size 2 not in range",
        ),
        (
            lambda g: g.node[0].input.__setitem__(1, ""),
            "Node (fc1)'s input 1 is marked single but has an empty string",
        ),
        (
            lambda g: g.node[3].ClearField("output"),
            "Node(mean) with schema(::ReduceMean:18) has output size 0 not in range",
        ),
        (
            lambda g: g.node[9].ClearField("attribute"),
            "Required attribute 'to' is missing. (Bad node spec for node. Name: mask",
        ),
        (
            lambda g: g.node[9].attribute[0].CopyFrom(helper.make_attribute("to", "float")),
            "Mismatched attribute type in 'mask : to'",
        ),
        (split, "cut (Split) has 1 output, and num_outputs is 2147483648"),
    ],
)
def test_a_call_against_the_definition(tmp_path: Path, edit: Edit, message: str) -> None:
    model = odd.training()
    edit(model.graph)
    del model.graph.output[0]
    assert message in refused(model, tmp_path)


def test_the_same_inside_a_body_and_a_function(tmp_path: Path) -> None:
    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].input.append("h")
    assert "::Neg:13) has input size 2 not in range" in refused(model, tmp_path)

    model = odd.local_function()
    model.functions[0].node[0].input.append("v")
    assert "::Relu:14) has input size 2 not in range" in refused(model, tmp_path)


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    model = odd.local_function()
    model.functions[0].opset_import.append(helper.make_opsetid("local", 1))
    model.functions[0].node[0].CopyFrom(helper.make_node("Act", ["v"], ["w"], domain="local"))
    assert "must not be recursive" in refused(model, tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.dims.__setitem__(0, -1), "negative dimension"),
        (lambda t: setattr(t, "raw_data", t.raw_data[:-4]), "needs 128 bytes and has 124"),
        (lambda t: t.dims.__setitem__(0, 2**62), "bytes and has 128"),
        (lambda t: setattr(t, "data_type", 0), "unknown element type 0"),
        (lambda t: setattr(t, "data_type", 99), "unknown element type 99"),
        (typed, "needs 32 elements and has 3"),
    ],
)
@pytest.mark.parametrize("where", ["initializer", "node"])
def test_a_constant_that_does_not_fit(
    tmp_path: Path, damage: Callable[[onnx.TensorProto], object], message: str, where: str
) -> None:
    if where == "initializer":
        model = odd.training()
        tensor = next(t for t in model.graph.initializer if t.name == "w2")
    else:
        model = odd.constant_nodes()
        tensor = model.graph.node[1].attribute[0].t
        tensor.CopyFrom(odd.weights("share", 32, 1))
    damage(tensor)
    assert message in refused(model, tmp_path)


def test_constants_of_every_element_type_are_read(tmp_path: Path) -> None:
    for number in onnx.TensorProto.DataType.values():
        if number in (TensorProto.UNDEFINED, TensorProto.STRING):
            continue
        model = odd.training()
        for raw in (False, True):
            if raw:
                kind = helper.tensor_dtype_to_np_dtype(number)
                values = np.zeros(3, dtype=kind)
                tensor = onnx.numpy_helper.from_array(values, f"extra_{raw}")
            else:
                tensor = helper.make_tensor(f"extra_{raw}", number, [3], [0, 0, 0])
            assert tensor.data_type == number
            model.graph.initializer.append(tensor)
        assert analyze(saved(model, tmp_path)).timeline.resident_bytes >= 2724
