"""What is known of new tensors: of many nodes of one kind, inferred once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from memplan.equivalence.facts import inferred
from memplan.equivalence.normal_forms import Input
from memplan.equivalence.terms import UNKNOWN, Fact, Terms
from memplan.proto import native
from memplan.shapes import one_node

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def terms_of(**known: Fact | np.ndarray) -> tuple[Terms, dict[str, int]]:
    terms, names = Terms("cpu"), {}
    for name, it in known.items():
        made = terms.constant(it) if isinstance(it, np.ndarray) else terms.of(Input(name, b""), it)
        names[name] = made
    return terms, names


def test_nodes_of_one_kind_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    infer = native.infer_shapes

    def counted(model: onnx.ModelProto, **more: bool) -> onnx.ModelProto:
        calls.append(model)
        return infer(model, **more)

    monkeypatch.setattr(native, "infer_shapes", counted)
    one_node._infer_node.cache_clear()
    terms, names = terms_of(a=Fact(FLOAT, (3, 5)), b=Fact(FLOAT, (3, 5)), c=Fact(FLOAT, (5, 3)))
    for first, second in (("a", "b"), ("b", "a")):
        node = helper.make_node("Gemm", [first, second], [f"{first}y"], name=first, transA=1)
        assert inferred(node, names, terms, 20) == (Fact(FLOAT, (5, 5)),)
    assert len(calls) == 1
    others = [
        (helper.make_node("Gemm", ["a", "a"], ["y"], transA=1), (5, 5)),  # one tensor, read twice
        (helper.make_node("Gemm", ["a", "b"], ["y"], transB=1), (3, 3)),  # another attribute
        (helper.make_node("Gemm", ["a", "c"], ["y"]), (3, 3)),  # other shapes
    ]
    for node, shape in others:
        assert inferred(node, names, terms, 20) == (Fact(FLOAT, shape),)
    assert len(calls) == 4


def test_contents_are_told_apart() -> None:
    known = {"x": Fact(FLOAT, (4, 6)), "i": np.array([2, 12]), "j": np.array([8, 3])}
    terms, names = terms_of(**known)
    for target, shape in (("i", (2, 12)), ("j", (8, 3))):
        node = helper.make_node("Reshape", ["x", target], ["y"])
        assert inferred(node, names, terms, 20) == (Fact(FLOAT, shape),)


def test_a_missing_input_and_a_narrow_constant() -> None:
    one = np.array(1, ml_dtypes.bfloat16)
    terms, names = terms_of(x=Fact(onnx.TensorProto.BFLOAT16, (2,)), one=one)
    node = helper.make_node("Clip", ["x", "", "one"], ["y"])
    assert inferred(node, names, terms, 20) == (Fact(onnx.TensorProto.BFLOAT16, (2,)),)
    node = helper.make_node("Foreign", ["x"], ["y"], domain="org.example")
    assert inferred(node, names, terms, 20) == (UNKNOWN,)
