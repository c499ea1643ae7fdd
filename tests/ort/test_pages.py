"""Pages of the documentation that a reader follows from top to bottom."""

from __future__ import annotations

import fnmatch
import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.effort import THOROUGH
from helpers.models import ROOT
from helpers.page_list import ALWAYS, ELSEWHERE, PAGES
from helpers.pages import (
    DOCS,
    Page,
    agrees,
    blocks,
    commands,
    examples,
    files,
    follow,
    loose,
    same_words,
)
from memplan import GradOptions, Trainer, grad
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


def test_every_command_and_block_of_a_page_is_run_or_named() -> None:
    """A page that nothing follows is named, and so is what following a page leaves out."""
    readmes = (ROOT / name / "README.md" for name in ("benchmarks", "sample_models", "tools"))
    by_path = {(DOCS / page.path).resolve(): page for page in PAGES}
    elsewhere = {(DOCS / name).resolve() for name in ELSEWHERE}
    faults = []
    for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *readmes):
        text = path.read_text(encoding="utf-8")
        followed = {line for example in examples(str(path)) for line in example.commands}
        left = {block.text.splitlines()[0] for block in loose(str(path))}
        if path in elsewhere:
            faults += [] if left or followed else [f"{path}: listed, and has nothing to run"]
        elif path in by_path or left or followed:
            names = by_path[path].left_out if path in by_path else ()
            needed = {glob for glob in names if fnmatch.filter(left | followed, glob)}
            named = {line for glob in names for line in fnmatch.filter(left, glob)}
            faults += [f"{path}: {line}" for line in (left - named) | (set(names) - needed)]
            faults += [] if path in by_path else [f"{path}: not listed"]
        faults += [f"{path}: no fence: {code}" for code in re.findall(r"\n\n    (\S.*)", text)]
    assert faults == []


def test_a_test_that_is_said_to_run_a_page_names_it() -> None:
    for name, reason in ELSEWHERE.items():
        for test in re.findall(r"tests/[\w/]+\.py", reason):
            assert Path(name).name in (ROOT / test).read_text(encoding="utf-8"), f"{test}: {name}"
    for reason in (why for page in PAGES for why in page.left_out.values()):
        assert all((ROOT / test).exists() for test in re.findall(r"tests/[\w/]+\.py", reason))


def test_a_block_that_nothing_runs_is_loose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\nmemplan strategies\n```\n\n```\ngreedy\n```\n\n```\nanother output\n```\n\n"
        "```sh\nmemplan device\n```\n\n```python\nimport nothing\n```\n\n"
        "```text\na --> b\n```\n\n```\nmemplan analyze MODEL\n```\n\n"
        "```\npip install x && memplan strategies\npytest\n```\n\n"
        "```\npip install x && memplan device\n```\n\n# Another\n\n```\nno output of it\n```\n"
    )
    assert [block.text.splitlines()[0] for block in loose(str(page))] == [
        "another output",
        "memplan device",
        "import nothing",
        "memplan analyze MODEL",
        "pip install x && memplan strategies",
        "no output of it",
    ]


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


@pytest.mark.slow
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
    exec(compile(code_of("reference.md"), "reference.md", "exec"), scope)
    assert scope["found"].delta_bytes < 0
