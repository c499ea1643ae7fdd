"""``FILE.py:FUNCTION``: what a user may get wrong. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.pytorch.load_function import returned_by, split_target
from memplan.pytorch.torch_step import TorchStep, as_step, parameter_names

SOURCE = """
import sys
from beside import WORD

def given():
    return WORD

def failing():
    raise KeyError("first line\\nsecond line")

value = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORD = 'yes'")
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def test_a_function_may_import_what_lies_beside_its_file(source: Path) -> None:
    path, name = split_target(f"{source}:given")
    assert returned_by(path, name) == "yes"


@pytest.mark.parametrize("target", ["train.py", "train.py:", ":f", "train.py:f()", "train.py:a b"])
def test_targets_of_another_form(target: str) -> None:
    with pytest.raises(UsageError, match="does not name a file and a function") as raised:
        split_target(target)
    assert "train.py:make_step" in raised.value.hint


def test_a_missing_file() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py does not exist"):
        split_target("nowhere.py:f")


@pytest.mark.parametrize("name", ["absent", "value"])
def test_a_missing_function_and_those_that_are_there(source: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"no function '{name}'") as raised:
        returned_by(source, name)
    assert raised.value.hint == "it has given, failing"


def test_a_function_that_raises(source: Path) -> None:
    with pytest.raises(UsageError, match=r"failing\(\) in .* raises KeyError") as raised:
        returned_by(source, "failing")
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("text", ["1 / 0", "import nowhere_to_be_found", "def f(:", "exit(3)"])
def test_a_file_that_raises(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"train\.py raises "):
        returned_by(path, "f")


@pytest.mark.parametrize(
    "given",
    [(1, 2, 3), {"model": 1, "loss": 2, "batch": 3}, TorchStep(1, 2, 3)],  # type: ignore[arg-type]
)
def test_a_step_in_every_form(given: object) -> None:
    found = as_step(given)
    assert (found.model, found.loss, found.batch, found.optimizer) == (1, 2, 3, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "int is not a training step"),
        ((1, 2), "tuple of 2"),
        (None, "NoneType"),
        ({"model": 1}, "no 'model' or no 'batch'"),
        ({"model": 1, "batch": 2, "optimiser": 3}, "unknown key 'optimiser'"),
    ],
)
def test_what_is_not_a_step(given: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        as_step(given)


def test_names_of_a_functions_parameters() -> None:
    def loss(model: object, x: object, y: object, *more: object, scale: int = 1) -> None: ...

    assert parameter_names(loss, 1) == ("x", "y")
