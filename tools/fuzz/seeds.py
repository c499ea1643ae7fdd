"""Models that mutants are made of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import memplan

_LARGEST = 200_000
TEXTS = Path(__file__).with_name("seeds.txt")


def built_in() -> dict[str, bytes]:
    """Small models that have a little of everything, and training graphs of some of them."""
    parsed = map(_parsed, TEXTS.read_text(encoding="utf-8").split("\n\n"))
    models = {model.graph.name: model for model in parsed}
    steps = {f"{name} step": training_step(models[name]) for name in _TRAINED}
    steps["deep step"] = training_step(_parsed(_deep(8)))
    models |= steps
    return {name: model.SerializeToString() for name, model in models.items()}


_TRAINED = ("image", "text", "recurrent", "functions")


def training_step(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, the sum of its last output as the loss, and the gradients of its float inputs and
    weights."""
    outputs = [value.name for value in model.graph.output]
    axes = {"keepdims": 0}
    model.graph.node.append(helper.make_node("ReduceSum", outputs[-1:], ["sum_of_all"], **axes))
    model.graph.output.add(name="sum_of_all").type.tensor_type.elem_type = TensorProto.FLOAT
    constants = [tensor for tensor in model.graph.initializer if tensor.data_type == 1]
    inputs = [value for value in model.graph.input if value.type.tensor_type.elem_type == 1]
    names = [value.name for value in (*constants, *inputs)]
    return memplan.gradients(model, "sum_of_all", names)


def _deep(layers: int) -> str:
    """A chain whose activations are most of what is taken."""
    body = "\n".join(
        f"  a{k} = MatMul (h{k}, w)\n  b{k} = Tanh (a{k})\n  h{k + 1} = Mul (b{k}, b{k})"
        for k in range(layers)
    )
    return f"""
<ir_version: 10, opset_import: ["" : 18]>
deep (float[64,16] h0) => (float[64,16] h{layers})
<float[16,16] w = {{0.1}}>
{{
{body}
}}
"""


def _parsed(text: str) -> onnx.ModelProto:
    """The model; one number for an initializer stands for all of its elements."""
    model = onnx.parser.parse_model(text)
    for tensor in model.graph.initializer:
        content = numpy_helper.to_array(tensor) if not tensor.float_data else tensor.float_data
        full = np.resize(np.asarray(content), tuple(tensor.dims))
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(numpy_helper.from_array(full.astype(kind), tensor.name))
    return model


def from_folder(folder: Path) -> dict[str, bytes]:
    """The small ``.onnx`` files of a folder."""
    files = (path for path in sorted(folder.rglob("*.onnx")) if path.stat().st_size < _LARGEST)
    return {path.stem: path.read_bytes() for path in files}


def node_tests() -> dict[str, bytes]:
    """The node tests of the installed onnx package; it takes half a minute to make them."""
    return dict(_node_tests())


def _node_tests() -> Iterator[tuple[str, bytes]]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if case.model is not None and case.model.ByteSize() < _LARGEST:
                yield case.name, case.model.SerializeToString()
