"""The static proof: what memplan writes is equivalent, and no wrong file is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers import wrong_files
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
