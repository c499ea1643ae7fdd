"""Work on many items: answers from processes, what becomes of lost ones, and how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import joblib
import pytest

from helpers.processes import eventually, runs
from memplan.processes.parallel import answers

WORK = """
import os, signal, sys, time
def square(number):
    return number * number
def told(number):
    return os.getpid(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN
def fragile(number):
    if number == 2:
        os._exit(1)
    return number
def sleepy(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)
"""
PARENT = """
import sys, work
from memplan.processes.parallel import answers
for answer in answers(work.sleepy, [sys.argv[1]] * 2, 2):
    print(answer)
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of functions that other processes find."""
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), before]).rstrip(os.pathsep))
    sys.modules.pop("work", None)


def function(name: str) -> Callable[..., object]:
    import work  # type: ignore[import-not-found]

    found: Callable[..., object] = getattr(work, name)
    return found


@pytest.mark.slow
def test_no_more_processes_are_started_than_there_are_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    parallel_of_joblib = joblib.Parallel

    def noted(**settings: object) -> object:
        asked.append(settings["n_jobs"])
        return parallel_of_joblib(**settings)

    monkeypatch.setattr(joblib, "Parallel", noted)
    assert list(answers(function("square"), [3], 60)) == [(0, 9)]
    # Of one, joblib would make this process; again where one of an earlier test was found dead.
    assert set(asked) == {2}


@pytest.mark.slow
def test_the_process_that_notes_what_is_shared_outlives_a_terminal() -> None:
    """One started in its place would know of nothing, and say so in tracebacks."""
    code = """
import os, signal, time, work
from joblib.externals.loky.backend.resource_tracker import _resource_tracker as tracker
from memplan.processes.parallel import answers
for answer in answers(work.square, [3], 2):
    os.kill(tracker._pid, signal.SIGHUP)
    time.sleep(0.5)
    ended = os.waitpid(tracker._pid, os.WNOHANG)
    print(answer, ended, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(0, 9) (0, 0) set()\n", "")


@pytest.mark.parametrize("backend", ["sequential", "threading"])
def test_work_is_done_where_the_caller_says(backend: str) -> None:
    with joblib.parallel_config(backend):
        found = dict(answers(function("told"), [3, 1, 2]))
    assert {pid for pid, _ in found.values()} == {os.getpid()}  # type: ignore[misc]
    assert sorted(found) == [0, 1, 2]


def test_no_items_have_no_answers() -> None:
    assert not list(answers(function("square"), []))


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_work_is_done_elsewhere(jobs: int) -> None:
    before = dict(os.environ)
    found = dict(answers(function("told"), range(4), jobs))
    assert sorted(found) == [0, 1, 2, 3]
    for answer in found.values():
        pid, ignores_interrupts = answer  # type: ignore[misc]
        assert pid != os.getpid()
        assert ignores_interrupts
    assert dict(os.environ) == before


@pytest.mark.slow
def test_a_module_in_the_current_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "current"
    folder.mkdir()
    for name in ("joblib", "numpy", "random"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    # Another number of processes: none of an earlier test, which started elsewhere.
    assert dict(answers(function("square"), [2], 3)) == {0: 4}
    assert not (folder / "ran").exists()


@pytest.mark.slow
def test_an_item_that_ends_its_process_is_told_and_the_others_go_on() -> None:
    found = dict(answers(function("fragile"), range(5), 2))
    assert found == {0: 0, 1: 1, 2: None, 3: 3, 4: 4}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(number: signal.Signals, tmp_path: Path) -> None:
    place = tmp_path / "pids"
    place.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(place)], stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: len(list(place.iterdir())) == 2)
        pids = [int(path.name) for path in place.iterdir()]
        assert all(map(runs, pids))
        parent.send_signal(number)
        assert parent.wait() != 0
        assert eventually(lambda: not any(map(runs, pids)))
    finally:
        parent.kill()
        parent.wait()
