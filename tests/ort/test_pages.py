"""Pages of the documentation that a reader follows from top to bottom."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.effort import THOROUGH
from helpers.models import ROOT
from helpers.page_list import ALWAYS, ELSEWHERE, PAGES
from helpers.pages import DOCS, Page, agrees, commands, examples, files, follow, same_words
from memplan import Trainer
from memplan.errors import EXIT_INFEASIBLE
from memplan_cli.main import main

pytestmark = pytest.mark.ort
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


def test_every_page_with_commands_is_listed() -> None:
    pages = [ROOT / "README.md", ROOT / "sample_models" / "README.md", *DOCS.rglob("*.md")]
    with_commands = {path for path in pages if any(examples(str(path)))}
    listed = {(DOCS / name).resolve() for name in (*(page.path for page in PAGES), *ELSEWHERE)}
    assert with_commands == listed


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("peak 210 MiB within the budget\n", "peak 2 KiB within the\nbudget, in chunks\n", True),
        ("peak 210 MiB within the budget\n", "peak 210 MiB inside the budget\n", False),
        ("a row\n...\nbelow it\n", "below it\na row\n", True),
        ("gelu_5 is recomputed\n", "getitem is recomputed\n", True),
    ],
)
def test_words_of_a_page(shown: str, printed: str, same: bool) -> None:
    assert same_words(shown, printed) is same


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1.00 b\n", "a\n1.01  b\n", True),
        ("a 1.00 b\n", "a 1.10 b\n", False),
        ("a 1 b\n", "a 2 b\n", False),
        ("a\n...\nd\n", "a b c d\n", True),
        ("a\n...\nd\n", "a b d e\n", False),
        ("a\n...\n", "a b\n", True),
        ("...\nc\n...\n", "a b\n", False),
        ("a\n", "a b\n", False),
        ("peak +1.50%\n", "peak +1.52%\n", True),
        ("1.50%\n", "1.50\n", False),
    ],
)
def test_what_counts_as_the_output_of_a_page(shown: str, printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same


@pytest.mark.slow
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
    assert "softmax_1/grad/Mul" in said[1].out.split("floor")[1]
    assert "below the floor" in said[3].err
    assert said[2].out.startswith("fits: ")
