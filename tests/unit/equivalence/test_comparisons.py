"""Masks of outputs in the proof: they are masks of inputs where they are, and nowhere else."""

from __future__ import annotations

import re

import pytest

from helpers.proofs import proof

HEAD = """g (float[4] i) => (bool[4] m) <float zero = {0}, float six = {6}, float one = {1},
 float[4] row = {0, 0, 0, 0}, float[2, 1] rows = {0, 0}>"""


def graph(activation: str, test: str, shape: str = "4") -> str:
    text = f"{HEAD} {{ [x] x = Neg(i) [act] y = {activation} [test] m = {test} }}"
    return text.replace("bool[4] m", f"bool[{shape}] m")


SAME = [
    ("Clip(x, zero, six)", "Greater(x, zero)"),
    ("Clip(x, zero, six)", "Less(x, six)"),
    ("Clip(x, zero, six)", "Less(zero, x)"),
    ("Clip(x, zero, six)", "Equal(x, one)"),
    ("Clip(x, zero)", "LessOrEqual(x, one)"),
    ("Relu(x)", "Greater(x, zero)"),
    ("Relu(x)", "Equal(x, one)"),
    ("LeakyRelu(x)", "LessOrEqual(x, zero)"),
    ("ThresholdedRelu(x)", "Greater(x, one)"),
    ("Max(x, zero)", "Greater(x, zero)"),
    ("Max(x, row)", "Greater(x, zero)"),
    ("Min(six, x)", "Less(x, one)"),
    ("Abs(x)", "Equal(x, zero)"),
]
OTHER = [
    ("Clip(x, zero, six)", "GreaterOrEqual(x, zero)"),
    ("Clip(x, zero, six)", "Less(x, zero)"),
    ("Clip(x, zero, six)", "Greater(x, six)"),
    ("Clip(x, zero, six)", "Equal(x, six)"),
    ("Clip(x, zero, six)", "Greater(x, i)"),
    ("Relu(x)", "LessOrEqual(x, zero)"),
    ("Relu(x)", "Less(x, one)"),
    ("LeakyRelu <alpha: float = -1>(x)", "Greater(x, zero)"),
    ("LeakyRelu(x)", "Less(x, zero)"),
    ("ThresholdedRelu(x)", "Greater(x, zero)"),
    ("Max(x, one)", "Greater(x, zero)"),
    ("Max(x, i)", "Greater(x, zero)"),
    ("Min(x, six)", "Greater(x, zero)"),
    ("Abs(x)", "Greater(x, zero)"),
    ("Exp(x)", "Greater(x, one)"),
]


def rewired(test: str) -> str:
    return re.sub(r"\bx\b", "y", test)


@pytest.mark.parametrize(("activation", "test"), SAME)
def test_the_output_tells_what_the_input_tells(activation: str, test: str) -> None:
    found = proof(graph(activation, test), graph(activation, rewired(test)))
    assert found.proved, found.reason
    assert found.explained == 1


@pytest.mark.parametrize(("activation", "test"), OTHER)
def test_where_it_does_not_the_proof_fails(activation: str, test: str) -> None:
    assert proof(graph(activation, test), graph(activation, rewired(test))).reason


def test_through_two_activations() -> None:
    text = f"""{HEAD} {{ [x] x = Neg(i) [a] y = Relu(x) [b] z = Clip(y, zero, six)
      [test] m = Greater(x, zero) }}"""
    for name in ("y", "z"):
        assert proof(text, text.replace("Greater(x", f"Greater({name}")).proved
        assert proof(text.replace("Greater(x", f"Greater({name}"), text).proved


def test_a_constant_may_widen_the_mask() -> None:
    text = graph("Max(x, rows)", "Greater(x, zero)", "2, 4")
    narrow = graph("Max(x, rows)", "Greater(x, zero)")
    assert proof(narrow, rewired(text).replace("Max(y,", "Max(x,")).reason
