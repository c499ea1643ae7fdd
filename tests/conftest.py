"""Where models are, and how tests start the program."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_models"
# Larger models that some checkouts have beside them; tests use them when they are there.
SHARED = Path(os.environ.get("MEMPLAN_SHARED", ROOT.parent / "shared")) / "models"
DIMS = {
    "gpt_dynamic": {"N": 24},
    "gpt_dyn": {"s78": 4},
    "resnet50_dynbatch_224": {"s14": 32},
}


def sample_models() -> list[Path]:
    """The models that ship with the project."""
    return sorted(SAMPLES.glob("*.onnx"))


def runnable_models() -> list[Path]:
    """Sample models and, where present, the shared runnable ones."""
    return sample_models() + sorted((SHARED / "runnable").glob("*.onnx"))


def load_benchmark(name: str) -> ModuleType:
    """A module of ``benchmarks/``, which is not installed; memplan stays the installed one."""
    sys.path.append(str(ROOT))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT))


Memplan = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def memplan(tmp_path: Path) -> Memplan:
    """Runs the installed program in ``tmp_path`` and returns the finished process."""
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))

    def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = (
            [script]
            if script
            else [sys.executable, "-c", "from memplan_cli.main import run; run()"]
        )
        return subprocess.run(
            [*command, *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA runtime without a GPU (``tests/gpu/stub.py``), compiled once."""
    sys.path.append(str(ROOT / "tests" / "gpu"))
    import stub

    missing = stub.missing()
    if missing:
        pytest.skip(f"no CUDA stub without {missing}")
    return Path(stub.build(tmp_path_factory.mktemp("cuda_stub")))


@pytest.fixture
def cuda_stub(stub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets child processes find the stub where CUDA would be."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_folder))
    return stub_folder


@pytest.fixture(scope="session")
def gpu() -> str:
    """The name of a real GPU."""
    from memplan.runtime.gpu import find_gpu

    found = find_gpu()
    if isinstance(found, str) or found.name == "Stub GPU":
        pytest.skip("no CUDA device")
    return found.name
