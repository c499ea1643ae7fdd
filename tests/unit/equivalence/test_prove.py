"""The static proof: what memplan writes is equivalent, and no wrong file is."""

from pathlib import Path

import onnx
import pytest

from helpers import wrong_files
from helpers.graphs import parse
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.shapes.prepare import prepare


def proof(first: onnx.ModelProto, second: onnx.ModelProto) -> Equivalence:
    return prove(reference_side(prepare(first, Path("first.onnx"), {})), Side(second, Path()))


def test_a_model_is_equivalent_to_itself() -> None:
    found = proof(wrong_files.original(), wrong_files.original())
    assert found.proved
    assert (found.recomputed, found.explained, found.pins) == (0, 0, 0)


def test_everything_that_a_rewrite_adds_is_proved() -> None:
    found = proof(wrong_files.original(), wrong_files.rewritten())
    assert found.reason is None
    assert found.proved
    assert (found.recomputed, found.pins) == (3, 2)


def test_the_right_rewrite_is_a_valid_model() -> None:
    onnx.checker.check_model(wrong_files.rewritten(), full_check=True)


@pytest.mark.parametrize("name", wrong_files.WRONG)
def test_a_wrong_file_is_not_proved(name: str) -> None:
    found = proof(wrong_files.original(), wrong_files.wrong_file(name))
    assert not found.proved, name
    assert found.reason


RANDOM = """g (float[8] x) => (float[8] y) {{
  [a] a = {first} (x)
  [b] b = {second} (x)
  [y] y = {last} (a, b)
}}"""


def drawn(first: str, second: str, last: str = "Add") -> onnx.ModelProto:
    return parse(RANDOM.format(first=first, second=second, last=last))


def swapped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The first two nodes in each other's place."""
    nodes = list(model.graph.node)
    copies = [onnx.NodeProto.FromString(nodes[k].SerializeToString()) for k in (1, 0, 2)]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("RandomNormalLike", "RandomNormalLike", False),  # both start from their place in the file
        ("RandomNormalLike <seed: float = 1>", "RandomNormalLike", False),
        ("RandomNormalLike <seed: float = 1>", "RandomNormalLike <seed: float = 1>", True),
        ("Exp", "Abs", True),
    ],
)
def test_a_draw_in_another_place_is_told(first: str, second: str, same: bool) -> None:
    found = proof(drawn(first, second), swapped(drawn(first, second)))
    assert found.reason is None
    assert found.proved is same
    assert found.redrawn is not same


def test_two_draws_that_look_alike_are_two() -> None:
    """What reads one of them must not read the other instead."""
    model = drawn("RandomNormalLike <seed: float = 1>", "RandomNormalLike <seed: float = 1>", "Sub")
    wrong = drawn("RandomNormalLike <seed: float = 1>", "RandomNormalLike <seed: float = 1>", "Sub")
    wrong.graph.node[2].input[0], wrong.graph.node[2].input[1] = "b", "a"
    assert not proof(model, wrong).proved
