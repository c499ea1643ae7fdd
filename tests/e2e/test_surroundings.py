"""What lies around a model stays out of it: files beside it are not run, none are left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.running import Memplan

MODEL = "model.onnx"
MODULES = ("joblib", "json", "numpy", "onnx", "onnxruntime", "resource", "statistics")
REWRITE = ("rewrite", MODEL, "--budget", "100%", "--strategy", "greedy", "--passes", "none")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Modules of well-known names lie in ``tmp_path``; the file is there once one of them ran."""
    mark = tmp_path / "ran"
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name} ')\n")
    return mark


@pytest.mark.parametrize(
    "arguments",
    [
        (*REWRITE, "--dry-run"),
        ("validate", MODEL, MODEL, "--runs", "1", "--no-plain"),
        ("sweep", MODEL, "--budget", "100%", "--strategy", "greedy"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_module_in_the_current_directory_is_not_run(
    memplan: Memplan, model: Path, ran: Path, arguments: tuple[str, ...]
) -> None:
    done = memplan(*arguments)
    assert done.returncode == 0, done.stderr
    assert not ran.exists(), ran.read_text()


def test_the_runtime_keeps_no_record_of_what_it_ran(
    memplan: Memplan, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's telemetry leaves a database in the home and a session file in TMPDIR."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    home.mkdir()
    scratch.mkdir()
    places = {"HOME": str(home), "TMPDIR": str(scratch)}
    output = tmp_path / "fits.onnx"
    done = memplan(*REWRITE, "-o", output, **places)
    assert done.returncode == 0, done.stderr
    code = f"import memplan; memplan.load({str(output)!r})"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **places}, check=True)
    assert not [path for path in home.rglob("*") if "onnxruntime" in str(path).lower()]
    assert not list(scratch.iterdir())
