"""Recurrent layers with a symbolic batch, under a scalar loss."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from helpers.gradients import draw

STEPS, BATCH, WIDTH, HIDDEN = 6, 4, 5, 8


def layer(op: str = "LSTM", **attributes: object) -> onnx.ModelProto:
    """A layer with a symbolic batch, under a scalar loss."""
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * HIDDEN
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"W": (ways, rows, WIDTH), "R": (ways, rows, HIDDEN), "B": (ways, 2 * rows)}
    nodes = [
        helper.make_node(
            op, ["x", *shapes], ["y", "last"], name="rnn", hidden_size=HIDDEN, **attributes
        ),
        helper.make_node("Mul", ["y", "y"], ["square"], name="square"),
        helper.make_node("ReduceSum", ["square"], ["loss"], name="sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", 1, [STEPS, "N", WIDTH])],
        [helper.make_tensor_value_info("loss", 1, [])],
        [
            numpy_helper.from_array(draw(shape, k).astype(np.float32) / 4, name)
            for k, (name, shape) in enumerate(shapes.items())
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
