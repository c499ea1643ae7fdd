"""``FILE.py:FUNCTION`` where a model is only read: captured for its sizes, kept while it holds."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.models import SAMPLES
from helpers.running import Memplan

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

LAYERS = "WIDTH, DEPTH = 32, 2\n"
STEP = """\
import os, sys
import torch
from torch import nn
from torch.nn import functional as F

def make_step(width=None, depth=None):
    with open("runs", "a") as runs:
        runs.write("run\\n")
    if width is None:
        from layers import WIDTH as width, DEPTH as depth
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    model = nn.Sequential(*layers)
    loss = lambda model, x: model(x).square().mean()
    return model, loss, {"x": torch.randn(128, width)}, torch.optim.AdamW(model.parameters(), 1e-3)
"""


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A step in two files, and a cache of its own."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "step.py").write_text(STEP)
    return "step.py:make_step"


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often the step's code has run."""
    return lambda: (tmp_path / "runs").read_text().count("run")


def peak(inside: Memplan, *arguments: str) -> int:
    done = inside("analyze", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"]["path"] == arguments[0]
    return int(found["peak_bytes"])


def test_its_sizes_are_those_of_its_file(inside: Memplan) -> None:
    assert peak(inside, f"{SAMPLES}/nets.py:cnn_bn") == peak(inside, f"{SAMPLES}/cnn_bn.onnx")


def test_code_runs_again_only_where_something_of_it_has_changed(
    inside: Memplan, step: str, runs: Callable[[], int], tmp_path: Path
) -> None:
    first = peak(inside, step)
    assert peak(inside, step) == first
    assert runs() == 1
    (tmp_path / "layers.py").write_text(LAYERS.replace(", 2", ", 3"))
    assert peak(inside, step) != first
    assert runs() == 2
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "step.py").write_text(
        STEP.replace(
            "from layers import WIDTH as width,",
            "width = int(open('width').read())\n        from layers import",
        )
    )
    (tmp_path / "width").write_text("32")
    assert peak(inside, step) == first
    (tmp_path / "width").write_text("64")
    assert peak(inside, step) > first
    assert runs() == 4


def test_a_damaged_cache_is_made_again(
    inside: Memplan, step: str, runs: Callable[[], int], tmp_path: Path
) -> None:
    first = peak(inside, step)
    for k, (kind, damage) in enumerate((("json", "{}"), ("json", "not JSON"), ("onnx", ""))):
        (file,) = (tmp_path / "cache" / "steps").glob(f"*.{kind}")
        file.write_text(damage)
        assert peak(inside, step) == first
        assert runs() == k + 2


def test_a_cache_that_others_can_write_is_not_used(
    inside: Memplan, step: str, runs: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "cache").chmod(0o777)
    assert peak(inside, step) == peak(inside, step)
    assert runs() == 2


def test_code_that_needs_values_runs_as_it_is(
    inside: Memplan, step: str, runs: Callable[[], int], tmp_path: Path
) -> None:
    plain = peak(inside, step)
    needs = STEP.replace(
        "    return model",
        "    assert model[0][0].weight.sum().item() != 0\n    return model",
    )
    (tmp_path / "step.py").write_text(needs)
    assert peak(inside, step) == plain
    assert runs() == 3  # without values, with them


def git(folder: Path, *arguments: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_lock_holds_it_explains_and_accepts(inside: Memplan, step: str, tmp_path: Path) -> None:
    assert inside("check", "--update", step).returncode == 0
    lock = (tmp_path / "memplan.lock").read_text()
    assert f'[models."{step}"]' in lock
    assert re.search(r'^torch = "2\.', lock, re.MULTILINE)
    assert inside("check").returncode == 0
    (tmp_path / "layers.py").write_text(LAYERS.replace(", 2", ", 3"))
    done = inside("check")
    assert done.returncode == 1
    assert "into backward" in done.stdout
    line = STEP[: STEP.index("loss =")].count("\n") + 1
    assert re.search(rf"\+ \*?\.?[0-9*]+ \S+ .*; made at step\.py:{line}\n", done.stdout)
    assert f"accept:  memplan check --update {step}" in done.stdout
    assert re.search(rf"fit:     memplan rewrite {step} --budget \d+ --dry-run", done.stdout)
    assert inside("check", "--update").returncode == 0
    assert inside("check").returncode == 0


def test_another_pytorch_is_named_first_where_a_peak_grows(
    inside: Memplan, step: str, tmp_path: Path
) -> None:
    lock = tmp_path / "memplan.lock"
    inside("check", "--update", step)
    text = re.sub(r'torch = ".*"', 'torch = "2.9.1"', lock.read_text())
    lock.write_text(text)
    done = inside("check")
    assert done.returncode == 0
    assert "differs from the lock in torch" in done.stdout
    lock.write_text(re.sub(r"(\npeak_bytes = )\d+", r"\g<1>1000", text))
    done = inside("check", "--format", "json")
    assert done.returncode == 1
    (entry,) = json.loads(done.stdout)["entries"]
    assert entry["causes"][0]["kind"] == "torch"
    assert entry["causes"][0]["text"].startswith("captured by another PyTorch: 2.9.1 -> 2.")


def test_the_base_is_captured_from_its_own_files(
    inside: Memplan, step: str, runs: Callable[[], int], tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "layers.py", "step.py")
    git(tmp_path, "commit", "-qm", "one")
    same = inside("check", "--base", "main", step)
    assert same.returncode == 0
    assert runs() == 1  # nothing that it is made from has changed
    (tmp_path / "layers.py").write_text(LAYERS.replace(", 2", ", 3"))
    done = inside("check", "--base", "main", step)
    assert done.returncode == 1
    assert "at the merge-base with main" in done.stdout
    removed = tmp_path / "step.py"
    removed.unlink()
    assert "removed" in inside("check", "--base", "main", step).stdout


BAD = {
    "raises": ('raise ValueError("no [bold]b")', 2, "raises ValueError: no [bold]b"),
    "exits": ("sys.exit(3)", 2, "raises SystemExit: 3"),
    "ends": ("os._exit(7)", 2, "raises SystemExit: 7"),
    "returns": ("return 1", 2, "returns"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_code_is_one_line(inside: Memplan, step: str, tmp_path: Path, name: str) -> None:
    body, code, said = BAD[name]
    (tmp_path / "step.py").write_text(f"{STEP}\n\ndef {name}():\n    {body}\n")
    done = inside("analyze", f"step.py:{name}")
    assert done.returncode == code
    assert said in done.stderr.splitlines()[0]
    assert not done.stdout


def test_what_code_prints_and_changes_harms_no_report(
    inside: Memplan, step: str, tmp_path: Path
) -> None:
    plain = peak(inside, step)
    loud = STEP.replace(
        "    loss =", '    print("{" * 100000); os.chdir("/"); os.environ.clear()\n    loss ='
    )
    (tmp_path / "step.py").write_text(loud)
    assert peak(inside, step) == plain


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("analyze", "gone.py:make_step"), 2, "gone.py does not exist"),
        (("analyze", "step.py:gone"), 2, "step.py has no function 'gone'"),
        (("analyze", "step.py:make_step", "-o", "step.py", "--force"), 2, "step.py is an input"),
        (
            ("rewrite", "step.py:make_step", "--budget", "90%"),
            3,
            "step.py:make_step does not exist",
        ),
        (("validate", "step.py:make_step", "b.onnx"), 3, "step.py:make_step does not exist"),
        (("check", "gone.py:make_step"), 3, "does not exist"),
    ],
)
@pytest.mark.usefixtures("step")
def test_what_cannot_be_read(
    inside: Memplan, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = inside(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    if code == 3 and arguments[0] != "check":
        assert "memplan capture step.py:make_step -o step.onnx makes it" in done.stderr


def test_without_pytorch(inside: Memplan, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.pytorch import installed_torch

    monkeypatch.setattr(installed_torch, "find_spec", lambda name: None)
    for arguments in (("analyze", step), ("check", "--update", step)):
        done = inside(*arguments)
        assert done.returncode == 5
        assert "needs torch and onnxscript" in done.stderr


def test_diff_and_a_dry_run_take_it(inside: Memplan, step: str) -> None:
    assert "in both" in inside("diff", step, step, "-q").stdout
    done = inside("rewrite", step, "--budget", "min", "--effort", "1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run" in done.stdout or "not written" in done.stdout
