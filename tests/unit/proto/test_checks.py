"""Calls and constants against ONNX's own definitions."""

from __future__ import annotations

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

Edit = Callable[[onnx.ModelProto], None]


def _too_few_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[1:]


def _too_many_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[1].input.append("x")


def _an_absent_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = ""


def _no_outputs(model: onnx.ModelProto) -> None:
    model.graph.node[3].ClearField("output")


def _no_attribute(model: onnx.ModelProto) -> None:
    del model.graph.node[9].attribute[:]  # Cast's target


def _wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[9].attribute[0].CopyFrom(helper.make_attribute("to", "float"))


def _billions_of_outputs(model: onnx.ModelProto) -> None:
    split = helper.make_node("Split", ["x"], ["cut"], name="cut", axis=0, num_outputs=2**31)
    model.graph.node.insert(0, split)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_too_few_inputs, "Node(fc1) with schema(::MatMul:13) has input size 1 not in range"),
        (_too_many_inputs, "Node(act) with schema(::Relu:14) has input size 2 not in range"),
        (_an_absent_input, "Node (fc1)'s input 1 is marked single but has an empty string"),
        (_no_outputs, "Node(mean) with schema(::ReduceMean:18) has output size 0 not in range"),
        (_no_attribute, "Required attribute 'to' is missing. (Bad node spec for node. Name: mask"),
        (_wrong_attribute, "Mismatched attribute type in 'mask : to'"),
        (_billions_of_outputs, "cut (Split) has 1 output, and num_outputs is 2147483648"),
    ],
)
def test_a_call_against_the_definition(tmp_path: Path, edit: Edit, message: str) -> None:
    model = odd.training()
    edit(model)
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


def _negative(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] = -1


def _short(tensor: onnx.TensorProto) -> None:
    tensor.raw_data = tensor.raw_data[:-4]


def _huge(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] = 2**62


def _undefined(tensor: onnx.TensorProto) -> None:
    tensor.data_type = 0


def _future(tensor: onnx.TensorProto) -> None:
    tensor.data_type = 99


def _typed(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_negative, "negative dimension"),
        (_short, "needs 128 bytes and has 124"),
        (_huge, "bytes and has 128"),
        (_undefined, "unknown element type 0"),
        (_future, "unknown element type 99"),
        (_typed, "needs 32 elements and has 3"),
    ],
)
@pytest.mark.parametrize("where", ["initializer", "node"])
def test_a_constant_that_does_not_fit(
    tmp_path: Path, damage: Callable[[onnx.TensorProto], None], message: str, where: str
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
