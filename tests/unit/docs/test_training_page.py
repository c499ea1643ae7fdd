"""The code of docs/training.md runs as it stands, in its order, in one session."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from helpers.networks import FAMILIES, batches, training_step
from helpers.two_steps import two_batches, two_steps
from memplan import GradOptions, Trainer, grad

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
MINE = """t (float[4] weights_in, float[4] x) => (float loss, float[4] weights_out) {
    q = Mul(weights_in, x) loss = ReduceSum<keepdims = 0>(q) weights_out = Sub(weights_in, x) }"""


class Module:
    """Something with the weights of a PyTorch module."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, np.ndarray]:
        return self.weights


def packed(weights: dict[str, np.ndarray]) -> bytes:
    """The arrays as a safetensors file."""
    header: dict[str, Any] = {}
    data = b""
    for name, value in weights.items():
        place = [len(data), len(data) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": place}
        data += value.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    step = training_step("cnn")
    onnx.save(step, "step.onnx")
    onnx.save(step, "fits.onnx")
    onnx.save(FAMILIES["cnn"](), "forward.onnx")
    onnx.save(parse(MINE), "mine.onnx")
    names = [slot.name for slot in Trainer(step).file.state if slot.role == "parameter"]
    weights = {name: Trainer(step).state_dict()[name] for name in names}
    Path("pretrained.safetensors").write_bytes(packed(weights))
    data = batches(step, 5)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 10
    options = GradOptions(loss="loss", optimizer="adamw")
    grad(FAMILIES["cnn"](), options, Path("gradients.onnx"), update_output="update.onnx")
    scope: dict[str, Any] = {
        "batches": data,
        "batch": data[0],
        **dict(zip(("first", "second", "third", "fourth"), data, strict=False)),
        "x": np.concatenate([batch["x"] for batch in data]),
        "labels": np.concatenate([batch["labels"] for batch in data]),
        "module": Module(weights),
    }
    for name, model in two_steps().items():
        onnx.save(model, f"{name}_step.onnx")
    scope["turns"] = two_batches(3)
    scope["data"] = {name: scope[name] for name in ("x", "labels")}
    for block in blocks:
        exec(compile(block.replace("steps=1000", "steps=10"), str(PAGE), "exec"), scope)
    assert scope["trainer"].steps == {"d": 3, "g": 3}
    assert Path("net.onnx").exists()


def test_what_the_page_prints_is_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(training_step("cnn"), path)
    text = repr(Trainer(path)).replace(str(path), "step.onnx").splitlines()
    shown = PAGE.read_text(encoding="utf-8")
    assert "\n".join(text[:-1]) in shown  # the last line names what starts at 0
