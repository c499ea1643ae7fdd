"""What is known of new tensors: of many nodes of one kind, inferred once."""

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from memplan.equivalence.facts import inferred
from memplan.equivalence.normal_forms import Input
from memplan.equivalence.terms import UNKNOWN, Fact, Terms

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def terms_of(**known: Fact | np.ndarray) -> tuple[Terms, dict[str, int]]:
    terms, names = Terms("cpu"), {}
    for name, it in known.items():
        made = terms.constant(it) if isinstance(it, np.ndarray) else terms.of(Input(name, b""), it)
        names[name] = made
    return terms, names


def test_what_is_not_known_is_learned_and_what_is_known_stays() -> None:
    terms, names = terms_of(typed=Fact(FLOAT, None), shaped=Fact(0, (2,)))
    for name in names:
        terms.learn(names[name], Fact(FLOAT, (2,)))
        assert terms.facts[names[name]] == Fact(FLOAT, (2,))
        terms.learn(names[name], Fact(INT64, (3,)))
        assert terms.facts[names[name]] == Fact(FLOAT, (2,))


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
