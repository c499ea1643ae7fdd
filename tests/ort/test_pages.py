"""Pages of the documentation that a reader follows from top to bottom."""

import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.effort import THOROUGH
from helpers.models import ROOT
from helpers.page_list import ALWAYS, PAGES
from helpers.pages import Page, agrees, blocks, commands, examples, files, follow
from memplan import GradOptions, Trainer, grad
from memplan.errors import EXIT_INFEASIBLE
from memplan_cli.main import main

ARTIFACTS = ROOT / "tests" / "data" / "onnxruntime_training"


def test_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    follow("gradients.md", capsys)


def test_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With files that its version 1.19.2 wrote, and the losses that it gave."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ARTIFACTS, "artifacts")
    follow("commands/lower.md", capsys)
    data = np.load(ARTIFACTS / "batches.npz")
    trainer = Trainer("step.onnx", lr=1e-2)
    found = [
        trainer.step(x=data["x"][step % 4], labels=data["labels"][step % 4]) for step in range(20)
    ]
    np.testing.assert_allclose(found, data["losses"], rtol=1e-5)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page.path).stem)
def test_commands_of_a_page(
    page: Page,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if page.path not in ALWAYS and not THOROUGH:
        pytest.skip("minutes, all in all: MEMPLAN_THOROUGH=1")
    if any("memplan capture " in line for each in examples(page.path) for line in each.commands):
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    follow(page, capsys)


def test_plan_for_an_absent_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's commands with two of its 32 layers, and with budgets for these."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    page = "plan-for-absent-gpu.md"
    monkeypatch.chdir(tmp_path)
    Path("llama.py").write_text(files(page)["llama.py"].replace("depth=32", "depth=2"))
    lines = [line for block, _ in commands(page) for line in block.splitlines()]
    codes, said = [], []
    for line in lines:
        for large, small in {
            "141GB --reserve 3GB": "80%",
            "--budget 80GB": "--budget 25GB",
        }.items():
            line = line.replace(large, small)
        quick = ["--strategy", "greedy"] if "rewrite" in line else []
        codes.append(main([*shlex.split(line)[1:], *quick]))
        said.append(capsys.readouterr())
    assert codes == [0, 0, 0, EXIT_INFEASIBLE], said
    assert "meta device" in said[0].out
    # Masks of 8,192 by 8,192 are computed, and not stored.
    assert Path("llama.onnx").stat().st_size < 2**20
    assert "softmax_1/grad/Mul" in said[1].out.split("floor")[1]
    assert "below the floor" in said[3].err
    assert said[2].out.startswith("fits: ")


def guide_step(layers: str = "* 6") -> None:
    """The guide's classifier, and a training step of it, in the current folder."""
    Path("forward.py").write_text(files("guide.md")["forward.py"].replace("* 6", layers))
    runpy.run_path("forward.py", run_name="__main__")
    options = GradOptions(loss="cross-entropy", logits="logits", optimizer="adamw")
    grad("forward.onnx", options, Path("step.onnx"))


def code_of(page: str) -> str:
    """The only block of Python that is no file."""
    (code,) = (b.text for b in blocks(page) if b.language == "python" and not b.file)
    return code


def test_what_a_test_of_a_peak_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide_step(layers="* 7")
    scope: dict[str, Any] = {}
    exec(compile(code_of("ci.md"), "ci.md", "exec"), scope)
    with pytest.raises(AssertionError) as caught:
        scope["test_the_step_fits"]()
    (shown,) = (b.text for b in blocks("ci.md") if b.text.startswith("FAIL"))
    assert agrees(shown, str(caught.value))


@pytest.mark.skipif(not THOROUGH, reason="minutes: MEMPLAN_THOROUGH=1")
def test_the_python_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    guide_step()
    shutil.copy(ARTIFACTS / "training_model.onnx", tmp_path)
    model = torch.nn.Linear(3, 2)
    scope = {
        "x": np.zeros((2048, 64), np.float32),
        "labels": np.zeros(2048, np.int64),
        "model": model,
        "loss": torch.nn.MSELoss(),
        "batch": (torch.ones(4, 3), torch.ones(4, 2)),
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
    }
    code = code_of("reference.md").replace('fit="24GB"', 'fit="100MB"')
    exec(compile(code, "reference.md", "exec"), scope)
    assert scope["found"].delta_bytes < 0
