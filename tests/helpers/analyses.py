"""Analyses for reports: real, hostile, and by hand."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper


def small_graph(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    output = nodes[-1].output[0] if nodes else "x"
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [4])]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
