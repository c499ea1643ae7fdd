"""Fixtures: the installed program, a CUDA runtime without a GPU, and a real GPU."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from helpers import cuda_stub as stub
from helpers.effort import THOROUGH
from helpers.processes import HANG_SECONDS, eventually, runs
from helpers.running import Memplan, runner

FOLDER = Path(__file__).parent
SLOW_FOLDERS = ("ort", "gpu", "e2e")
PLANNING = re.compile(
    r'rewrite\(|"rewrite|RewriteOptions|replay\(|sweep|plans\.|strategies"|torch_plan|COMMANDS'
    r"|memplan\.(solver|planning|passes)\b|import (solver|planning|passes)\b"
    r"|helpers\.(chunking|every_order|passes|plans|problems|steps|sweeps)\b"
)
"""What a module of tests says that plan something. The others run first, beside the compiler."""
COMPILER = "MEMPLAN_TESTS_COMPILER"
"""The process that compiles the planner, in the environment of pytest and of its workers."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell. Children would inherit it: tests that interrupt one never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the planner, once for all workers and beside their first tests, which are those that
    are listed first: xdist would have the largest groups first, and these plan."""
    from memplan.solver.cache import code_folder, is_empty, version_name  # without the compiler

    config.option.loadscopereorder = False
    if not hasattr(config, "workerinput") and is_empty(code_folder(version_name())):
        code = "from memplan.solver.search.warm_up import warm_up; warm_up()"
        os.environ[COMPILER] = str(subprocess.Popen([sys.executable, "-c", code]).pid)


@cache
def may_plan(module: Path) -> bool:
    """Whether tests of a module may plan, by what it says."""
    return PLANNING.search(module.read_text(encoding="utf-8")) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that plan nothing come first. Then those of one model follow one another, before all
    others: they are the longest. Nightly ones are left out.

    What is not in the quick loop: all that runs models or the installed program, by its folder;
    other tests of more than a second say so themselves.
    """

    def place(item: pytest.Item) -> tuple[bool, bool, str]:
        group = item.get_closest_marker("xdist_group")
        return may_plan(item.path), group is None, group.args[0] if group else ""

    if not THOROUGH:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    items.sort(key=place)
    for item in items:
        folder = item.path.relative_to(FOLDER).parts[0]
        if folder in SLOW_FOLDERS or any(map(item.get_closest_marker, ("nightly", "xdist_group"))):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_plan_is_rejected(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The net that plans again what the check rejects, or the proof does not follow, must not hide
    that this happened, nor a bound that a plan contradicts be dropped in silence. Tests that plan
    nothing load no planner for it."""
    if not may_plan(request.path) and "memplan.planning.plan" not in sys.modules:
        yield
        return
    from memplan.planning.plan import Rejected
    from memplan.solver.strategies import incumbent

    reasons: list[str] = []
    original = Rejected.__init__

    def noted(self: Rejected, reason: str) -> None:
        reasons.append(reason)
        original(self, reason)

    monkeypatch.setattr(Rejected, "__init__", noted)
    monkeypatch.setattr(incumbent, "contradicted", reasons.append)
    yield
    if request.node.get_closest_marker("rejects") is None:
        assert not reasons, "a plan was rejected, not proved, or undercuts a certified bound"


@pytest.fixture(autouse=True)
def planner_is_compiled(request: pytest.FixtureRequest) -> None:
    """A command says so where it compiles, and many tests ask for silence."""
    compiler = os.environ.get(COMPILER)
    if compiler and may_plan(request.path):
        assert eventually(lambda: not runs(int(compiler)))
        del os.environ[COMPILER]


@pytest.fixture
def memplan(program: Memplan) -> Memplan:
    """The installed program; modules replace it by :func:`helpers.running.runner` to save time."""
    return program


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """The program in this process, in ``tmp_path``: it saves the start of an interpreter."""
    return runner(tmp_path, monkeypatch, capfd)


@pytest.fixture
def program(tmp_path: Path) -> Memplan:
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
            timeout=HANG_SECONDS,
        )

    return run


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA runtime without a GPU (``helpers/cuda_stub.py``), compiled once."""
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
