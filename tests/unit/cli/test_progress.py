"""The line that is shown while something takes long: what it says, in every command that may."""

import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partialmethod
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from helpers import odd_models as odd
from helpers.graphs import parse
from helpers.ort_artifacts import training_model
from helpers.training_steps import long_skips
from memplan.solver.cache import before_compiling
from memplan_cli import progress
from memplan_cli.main import main
from memplan_cli.options import Report

FORWARD = """
g (float[8,4] x, float[4,4] w) => (float loss)
{ y = MatMul(x, w)  loss = ReduceMean <keepdims = 0> (y) }
"""


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True

    def run(self, *arguments: str) -> int:
        """The exit code of a command."""
        with redirect_stderr(self):
            return main([*arguments])

    @property
    def lines(self) -> list[str]:
        """What was shown, one line after the other."""
        parts = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", self.getvalue())
        return [text.rstrip() for text in parts if text.strip()]


class AtOnce(Timer):
    """A timer that waits for nothing."""

    def start(self) -> None:
        self.function()

    def join(self, timeout: float | None = None) -> None:
        pass


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Where commands show lines at once, and every one of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "Timer", AtOnce)
    monkeypatch.setattr(Progress, "update", partialmethod(Progress.update, refresh=True))
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


BUDGET = r"\d+ B|[\d.]+ [KM]iB"
SHOWN = {
    ("analyze", "m.onnx"): ["analyzing m.onnx 0:00:00"],
    ("rewrite", "m.onnx", "--budget", "70%", "--dry-run", "--strategy", "greedy"): [
        "reading and preparing m.onnx",
        rf"planning for 70%, at most 20 s: peak ({BUDGET}), [\d.]+% extra time",
    ],
    ("check", "--update", "m.onnx"): ["reading the lock", "analyzing 1/1: m.onnx"],
    ("device",): ["starting providers"],
    ("profile", "m.onnx", "-o", "c.json"): ["profiling m.onnx: 5 runs after two to warm up"],
    ("validate", "m.onnx", "m.onnx"): [
        "reading both models",
        r"proving the files equivalent \(1 of 4\)",
        r"running original \(2 of 4\)",
    ],
    ("grad", "f.onnx", "-o", "step.onnx", "--loss", "loss", "--wrt=w"): ["differentiating f.onnx"],
    ("lower", "t.onnx", "-o", "lowered.onnx"): ["lowering t.onnx"],
}


@pytest.mark.parametrize("arguments", SHOWN, ids=" ".join)
def test_whoever_waits_sees_what_for(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    """And nothing of it is left at the end."""
    odd.saved(long_skips(), Path(), "m.onnx")
    odd.saved(parse(FORWARD), Path(), "f.onnx")
    odd.saved(training_model(), Path(), "t.onnx")
    assert terminal.run(*arguments) == 0, terminal.getvalue()
    shown = iter(terminal.lines)
    for pattern in SHOWN[arguments]:
        assert any(re.match(pattern, text) for text in shown), (pattern, terminal.lines)
    assert terminal.getvalue().endswith("\x1b[2K")
    assert all(
        re.search(r" \d:\d\d:\d\d$", line) for line in terminal.lines if "compiling" not in line
    )


@pytest.mark.parametrize("flag", ["-q", "-v"])
def test_no_line_beside_a_log_and_none_for_quiet_commands(terminal: Terminal, flag: str) -> None:
    odd.saved(long_skips(), Path(), "m.onnx")
    assert terminal.run("analyze", "m.onnx", flag) == 0
    assert not any("analyzing m.onnx" in line for line in terminal.lines)


def test_names_in_the_line_neither_steer_the_terminal_nor_wrap(terminal: Terminal) -> None:
    """A line that wraps could not be written over."""
    name = "\x1b[2J" + "long" * 30 + ".onnx"
    odd.saved(long_skips(), Path(), name)
    assert terminal.run("analyze", name) == 0
    assert terminal.lines[0].startswith(r"analyzing \x1b[2Jlong")
    assert all(len(line) < 80 for line in terminal.lines)


def test_what_takes_less_than_a_second_shows_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "Timer", Timer)
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 1000)
    odd.saved(long_skips(), Path(), "m.onnx")
    assert terminal.run("analyze", "m.onnx") == 0
    assert terminal.getvalue() == ""


def test_a_sweep_has_a_bar(terminal: Terminal) -> None:
    report = Report("text", False, 0, "auto", False)
    with redirect_stderr(terminal), progress.waiting(report, "", counted=True) as show:
        show("N=32 at 60%", completed=3, total=12)
    assert re.search(r" 3/12 0:00:0\d N=32 at 60%$", terminal.lines[-1])


def test_when_the_time_for_planning_is_over_the_plan_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, shown = [0.0], list[Callable[[], str]]()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress._planning(shown.append, "60%", 4)(1 << 20, 0.05)
    texts = [shown[0]() for now[0] in (4.0, 12.0)]
    assert texts == [
        "planning for 60%, at most 4 s: peak 1.00 MiB, 5.00% extra time",
        "checking the plan for 60%: peak 1.00 MiB, 5.00% extra time",
    ]


def test_a_compilation_is_said_wherever_stderr_goes_unless_quiet() -> None:
    for quiet in (False, True):
        report = Report("text", quiet, 0, "auto", False)
        with (
            redirect_stderr(io.StringIO()) as said,
            progress.planning_progress(report, Path("m.onnx"), "70%", None),
        ):
            while before_compiling:
                before_compiling.pop()()
        assert ("compiling the planner" in said.getvalue()) == (not quiet)
    assert not before_compiling
