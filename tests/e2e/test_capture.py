"""``memplan capture`` as people use it: what it says of the check, and what a wrong step does."""

import json
from pathlib import Path

import pytest

from helpers.commands import succeeded
from helpers.refusals import assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_FINDING

pytest.importorskip("torch")
pytest.importorskip("onnxscript")


SOURCE = """
import random

import torch
from torch.nn import functional

import memplan


def made(loss):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    batch = {"x": torch.randn(6, 4), "labels": torch.randint(0, 3, (6,))}
    return memplan.TorchStep(model, loss, batch, torch.optim.SGD(model.parameters(), 0.1))


def right():
    return made(lambda model, x, labels: functional.cross_entropy(model(x), labels))


def wrong():
    def loss(model, x, labels):
        return functional.cross_entropy(model(x), labels) * (1.0 + random.random())

    return made(loss)
"""


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)


def test_a_right_step_is_written_and_its_check_is_told(memplan: Memplan, tmp_path: Path) -> None:
    told = succeeded(memplan("capture", "train.py:right", "-o", "step.onnx"))
    text = " ".join(told.split())
    assert "checked against PyTorch: loss within" in text
    assert "2 updates within" in text
    assert "the same 1 random draw in both" in text
    assert "eager PyTorch: peak" in text
    assert "(one step each; other work on the machine counts)" in text
    found = json.loads(
        succeeded(memplan("capture", "train.py:right", "-o", "b.onnx", "--format", "json"))
    )
    assert found["check"]["verdict"] == "equal"
    assert (tmp_path / "step.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_wrong_step_is_a_finding_and_no_file(memplan: Memplan, tmp_path: Path) -> None:
    done = memplan("capture", "train.py:wrong", "-o", "step.onnx")
    assert_refused(done, EXIT_FINDING, "is not PyTorch's", "Python's or NumPy's", "--no-check")
    assert not (tmp_path / "step.onnx").exists()
    succeeded(memplan("capture", "train.py:wrong", "-o", "step.onnx", "--no-check"))
    assert (tmp_path / "step.onnx").exists()
