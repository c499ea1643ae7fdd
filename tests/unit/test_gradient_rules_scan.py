"""Gradients of Scan: finite differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from gradients import check, draw, runtime

RNN = """
    <ir_version: 10, opset_import: ["" : 20]>
    rnn (double[3,2] x, double[4] h0, double[2,4] w, double[4,4] r, double[4] b)
        => (double[4] last, double[3,4] all)
    {
        [loop] last, all = Scan<num_scan_inputs = 1, body = step
            (double[4] h, double[2] xt) => (double[4] next, double[4] out)
            {
                [in] a = MatMul(xt, w)
                [rec] c = MatMul(h, r)
                [sum] s = Add(a, c)
                [bias] z = Add(s, b)
                [act] next = Tanh(z)
                [out] out = Identity(next)
            }>(h0, x)
    }"""


def feeds_for(model: onnx.ModelProto) -> dict[str, Any]:
    """Numbers for every input."""
    return {
        value.name: draw([d.dim_value for d in value.type.tensor_type.shape.dim], seed=k) / 2
        for k, value in enumerate(model.graph.input)
    }


@pytest.mark.parametrize("ys", [["last", "all"], ["last"], ["all"]])
def test_rnn(ys: list[str]) -> None:
    model = onnx.parser.parse_model(RNN)
    check((model, feeds_for(model)), ys=ys, run=runtime)
