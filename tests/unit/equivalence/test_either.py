"""A product by a mask that joins two, and what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from helpers.graphs import parse
from helpers.proofs import proof

_HEAD = "g (float[8] g1, bool[8] a, bool[8] b) => (float[8] y) <float z = {0}, float o = {1}> "
_TWICE = (
    "{ [p] wa = Where(a, z, o) [q] wb = Where(b, z, o) [m] p = Mul(g1, wa) [n] y = Mul(p, wb) }"
)
_ONCE = "{ [o] c = Or(a, b) [w] wc = Where(c, z, o) [n] y = Mul(g1, wc) }"


def _with(body: str, **constants: float) -> onnx.ModelProto:
    model = parse(_HEAD + body)
    for tensor in model.graph.initializer:
        if tensor.name in constants:
            value = np.asarray(constants[tensor.name], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def test_a_mask_that_joins_two_gives_what_both_give() -> None:
    assert proof(_with(_TWICE), _with(_ONCE)).proved


@pytest.mark.parametrize(
    "constants",
    [{"z": -0.0}, {"o": -1.0}, {"z": 0.5}, {"z": float("nan")}],
    ids=["another sign", "not handed on", "not 0", "not a number"],
)
def test_other_numbers_are_not_joined(constants: dict[str, float]) -> None:
    """``g·-0·-0`` has the sign of ``g``, ``g·-0`` has the other."""
    assert proof(_with(_TWICE, **constants), _with(_ONCE, **constants)).reason is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Or(a, b)", "And(a, b)"),
        ("Where(c, z, o)", "Where(c, o, z)"),
        ("Mul(g1, wc)", "Div(g1, wc)"),
        ("Or(a, b)", "Or(a, a)"),
    ],
)
def test_what_only_looks_like_it(old: str, new: str) -> None:
    assert old in _ONCE
    assert proof(_with(_TWICE), _with(_ONCE.replace(old, new))).reason is not None
