"""Rude functions in our own process: what they change is put back, how they end is told."""

from __future__ import annotations

import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.pytorch.foreign import foreign_code, raised, their_turn
from memplan.pytorch.load_function import returned_by


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "folder": (os.getcwd, lambda: os.chdir("/")),
    "umask": (_umask, lambda: os.umask(0o777)),
    "environment": (lambda: dict(os.environ), os.environ.clear),
    "import path": (lambda: list(sys.path), sys.path.clear),
    "importers": (lambda: list(sys.meta_path), sys.meta_path.clear),
    "arguments": (lambda: sys.argv, lambda: setattr(sys, "argv", ["x"])),
    "stdout": (lambda: sys.stdout, lambda: setattr(sys, "stdout", None)),
    "hook": (lambda: sys.excepthook, lambda: setattr(sys, "excepthook", None)),
    "signal": (
        lambda: signal.getsignal(signal.SIGTERM),
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    ),
    "alarm": (lambda: signal.getitimer(signal.ITIMER_REAL), lambda: signal.alarm(1000)),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL),
        lambda: locale.setlocale(locale.LC_ALL, "C"),
    ),
    "logging": (lambda: logging.root.manager.disable, lambda: logging.disable(50)),
    "log handlers": (
        lambda: list(logging.root.handlers),
        lambda: logging.root.addHandler(logging.NullHandler()),
    ),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.simplefilter("error")),
    "recursion limit": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(100_000)),
    "random numbers": (random.getstate, random.random),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_function_changes_in_the_process_is_as_it_was(what: str, tmp_path: Path) -> None:
    read, change = CHANGES[what]
    before = read()
    with foreign_code(tmp_path / "train.py"), their_turn(first=True):
        change()
    assert read() == before


def test_a_loss_finds_what_its_function_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEFT", raising=False)
    before = os.getcwd()
    with foreign_code(tmp_path / "train.py"):
        with their_turn(first=True):
            os.chdir(tmp_path)
            os.environ["LEFT"] = "1"
        assert (os.getcwd(), os.environ.get("LEFT")) == (before, None)
        with their_turn():
            assert (os.getcwd(), os.environ.get("LEFT")) == (str(tmp_path), "1")
            os.environ["LEFT"] = "2"
        with their_turn():
            assert os.environ["LEFT"] == "2"
    with their_turn():
        assert (os.getcwd(), os.environ.get("LEFT")) == (before, None)


class _Mine(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    "error", [SystemExit(0), GeneratorExit(), BaseException("x"), _Mine("y"), ValueError("z")]
)
def test_however_the_code_of_a_file_ends_it_is_told_in_one_line(
    error: BaseException, tmp_path: Path
) -> None:
    pytest.importorskip("torch")  # whose own frames are not the user's
    here = Path(__file__)
    told = rf"{here.name}:\d+ raises {type(error).__name__}"
    with pytest.raises(UsageError, match=told), foreign_code(here):
        raise error


def test_an_interrupt_stays_one_and_errors_of_ours_stay_ours(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(KeyboardInterrupt), foreign_code(Path(__file__)):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), foreign_code(tmp_path / "train.py"):
        _ = 1 / 0


class _Unspeakable(Exception):
    def __str__(self) -> str:
        sys.exit(0)


def test_an_error_whose_text_is_long_or_raises_is_told_all_the_same() -> None:
    assert raised("f()", _Unspeakable()).message == "f() raises _Unspeakable"
    assert len(raised("f()", ValueError("x" * 10**6)).message) < 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_that_comes_back_does_not_go_on(tmp_path: Path) -> None:
    with foreign_code(tmp_path / "train.py"):
        with their_turn(first=True):
            other = os.fork()
        assert other  # the one that is 0 has ended
    assert os.waitpid(other, 0)[1] == 0


def test_signals_are_left_alone_in_other_threads(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with foreign_code(tmp_path / "train.py"), their_turn(first=True):
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_a_file_beside_it_stands_for_no_module_of_python_later(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("OURS = True")
    (tmp_path / "train.py").write_text("import colorsys\ndef f(): return colorsys.OURS")
    sys.modules.pop("colorsys", None)
    with foreign_code(tmp_path / "train.py"):
        assert returned_by(tmp_path / "train.py", "f") is True
    import colorsys

    assert not hasattr(colorsys, "OURS")


def test_pytorchs_defaults_are_the_functions_and_not_ours(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with foreign_code(tmp_path / "train.py"):
        with their_turn(first=True):
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            torch.set_grad_enabled(False)
        assert torch.zeros(1).dtype == torch.float32
        assert torch.zeros(1).device.type == "cpu"
        assert torch.is_grad_enabled()
        with their_turn():
            made = torch.zeros(1)
            assert (made.dtype, made.device.type) == (torch.float64, "meta")
        assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize(
    ("mode", "named"),
    [
        ("torch.inference_mode()", "torch.inference_mode"),
        ("torch.autocast('cpu')", "torch.autocast"),
        ("torch.device('meta')", "a mode"),
    ],
)
def test_a_mode_that_a_function_leaves_entered_is_named(
    mode: str, named: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        f"import torch\nMODES = []\ndef f():\n    MODES.append({mode}); MODES[0].__enter__()\n"
    )
    path = tmp_path / "train.py"
    try:
        with pytest.raises(UsageError, match=f"leaves {named}"), foreign_code(path):
            returned_by(path, "f")
    finally:
        sys.modules["memplan_captured_train"].MODES[0].__exit__(None, None, None)
    assert torch.zeros(1).device.type == "cpu"
