"""Exporters put axes and shapes together in the graph; gradients need to know them."""

from __future__ import annotations

import numpy as np
import pytest

import memplan
from helpers.gradients import check, draw
from helpers.graphs import parse
from memplan.errors import ModelError


def test_axes_that_are_a_concat_of_constants_are_known() -> None:
    """As ``torch.onnx.export(optimize=False)`` writes mean pooling."""
    model = parse(
        """g (double[2,3,4,5] x, double[3,2] w) => (double[2,2] y) {
          one = Constant <value = int64[1] {-1}> ()
          two = Constant <value = int64[1] {-2}> ()
          axes = Concat <axis = 0> (one, two)
          p = ReduceMean <keepdims = 0> (x, axes)
          y = MatMul(p, w) }"""
    )
    check((model, {"x": draw((2, 3, 4, 5)), "w": draw((3, 2))}))


def test_weights_behind_computed_axes_have_a_rank() -> None:
    """Of a recurrent layer: its sizes were "not known"."""
    model = parse(
        """g (float[5,2,3] x, float[16,3] wi, float[16,4] wh) => (float[5,1,2,4] y) {
          nought = Constant <value = int64 {0}> ()
          axis = Constant <value = int64[1] {0}> ()
          axes = Unsqueeze(nought, axis)
          w = Unsqueeze(wi, axes)  r = Unsqueeze(wh, axes)
          y = LSTM <hidden_size = 4> (x, w, r) }"""
    )
    grads = memplan.gradients(model, "y", ["wi", "wh"])
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in grads.graph.output
    }
    assert (shapes["wi_grad"], shapes["wh_grad"]) == ([16, 3], [16, 4])


@pytest.mark.parametrize("given", ["int64[1] more", "float[4] more"])
def test_numbers_that_a_run_decides_are_not_taken_for_known(given: str) -> None:
    axis = "Identity(more)" if given.startswith("int") else "ArgMax <keepdims = 1> (more)"
    model = parse(
        f"""g (float[2,3,4] x, {given}) => (float z) {{
          axes = {axis}
          y = ReduceMean <keepdims = 0> (x, axes)
          z = ReduceSum <keepdims = 0> (y) }}"""
    )
    with pytest.raises(ModelError, match=r"not known|run time"):
        memplan.gradients(model, "z", "x")


def test_floats_are_left_alone() -> None:
    """They may be trained, and what is computed of them in the graph stays there."""
    model = parse(
        """g (float[4] x) => (float z) <float[4] w = {1, 2, 3, 4}> {
          v = Mul(w, w)  y = Mul(x, v)  z = ReduceSum <keepdims = 0> (y) }"""
    )
    found = memplan.gradients(model, "z", "w")
    weights = {tensor.name: tensor for tensor in found.graph.initializer}
    assert np.frombuffer(weights["w"].raw_data or b"", np.float32).tolist() in ([], [1, 2, 3, 4])
    assert [node.op_type for node in found.graph.node][:2] == ["Mul", "Mul"]
