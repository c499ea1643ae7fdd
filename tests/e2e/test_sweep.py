"""``memplan sweep`` as people and scripts use it."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import succeeded
from helpers.processes import HANG_SECONDS, as_from_a_terminal, eventually, runs
from helpers.refusals import assert_harmless, assert_refused
from helpers.running import Memplan
from helpers.sweeps import batched
from memplan.errors import EXIT_INFEASIBLE, EXIT_MODEL, EXIT_USAGE

MODEL = "model.onnx"
QUICK = ("--strategy", "greedy", "--jobs", "1")
SWEEP = ("sweep", MODEL, "--dim", "N=256,512", "--budget", "60%,1kB", *QUICK)
ONE = ("sweep", MODEL, "--dim", "N=256", "--budget", "60%,1kB", *QUICK)


@pytest.fixture(autouse=True)
def model(tmp_path: Path) -> Path:
    return batched(tmp_path)


def test_the_table(inside: Memplan) -> None:
    lines = succeeded(inside(*ONE)).splitlines()
    assert lines[0] == "2 points: 1 planned, 1 infeasible"
    assert [line.split()[0] for line in lines[-2:]] == ["60%", "1kB"]
    assert max(map(len, lines)) <= 80


def test_json_csv_and_page_say_the_same(inside: Memplan, tmp_path: Path) -> None:
    found = json.loads(succeeded(inside(*ONE, "--format", "json")))
    assert found["schema"] == "memplan.sweep/1"
    text = succeeded(inside(*ONE, "--format", "csv"))
    rows = list(csv.DictReader(io.StringIO(text)))
    for point, row in zip(found["points"], rows, strict=True):
        assert row["dim.N"] == str(point["dims"]["N"])
        assert row["peak_bytes"] == str(point["peak_bytes"])
        assert row["status"] == point["status"]
    page = ("sweep", MODEL, "--dim", "N=256", "--format", "html", "-o", "sweep.html")
    succeeded(inside(*page))
    assert (tmp_path / "sweep.html").read_text().startswith("<!doctype html>")
    words = ("sweep.html exists", "--force")
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *page)
    succeeded(inside(*page, "--force"))


def test_what_fits(inside: Memplan) -> None:
    """How it is found, and what JSON says of it: tests/unit/api/sweep."""
    line = succeeded(inside("sweep", MODEL, "--fit", "400kB", "--fit-step", "256", *QUICK, "-q"))
    assert re.match(r"N up to [\d,]+ fits 400kB", line)


def children(parent: int) -> list[int]:
    """The processes that it has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(facts[1]) == parent:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGINT, 130, "error: interrupted"),
        (signal.SIGTERM, 143, "error: terminated"),
    ],
)
def test_a_sweep_that_is_broken_off_ends_with_its_workers(
    number: int, code: int, told: str, tmp_path: Path
) -> None:
    """In good order, and it says what to do."""
    command = [sys.executable, "-c", "from memplan_cli.main import run; run()"]
    command += ["sweep", MODEL, "--dim", "N=512", "--budget", "60%", "--strategy", "search"]
    process = subprocess.Popen(
        [*command, "--effort", "10000000", "--jobs", "2"], cwd=tmp_path, stderr=subprocess.PIPE,
        text=True, preexec_fn=as_from_a_terminal,
    )  # fmt: skip
    assert eventually(lambda: len(children(process.pid)) >= 2 or process.poll() is not None)
    workers = children(process.pid)
    process.send_signal(number)
    error = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == code
    assert error.strip().splitlines() == [
        told,
        "hint: fewer sizes or budgets, or a lower --effort, take less time",
    ]
    assert eventually(lambda: not any(map(runs, workers)))


def test_a_thread_that_fails_at_an_interrupt_says_nothing() -> None:
    """joblib's, while it starts, may find its queue gone."""
    code = """
import os, signal, threading
from memplan_cli.signals import interrupt_on_signals
interrupt_on_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
except KeyboardInterrupt:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_points_that_fail_are_rows(inside: Memplan, tmp_path: Path) -> None:
    done = inside("sweep", MODEL, "missing.onnx", "--dim", "N=8", *QUICK)
    assert done.returncode == 0
    assert "2 points: 1 analyzed, 1 failed" in done.stdout
    assert "missing.onnxdoesnotexist" in "".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((MODEL, "--dim", "N=8", "--budget", "1kB"), EXIT_INFEASIBLE, "no point keeps its budget"),
        ((MODEL, "--fit", "1kB"), EXIT_INFEASIBLE, "nothing fits"),
        (("missing.onnx", "--dim", "N=8"), EXIT_MODEL, "missing.onnx does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_without_any_answer_the_table_is_told_and_then_the_error(
    arguments: tuple[str, ...], code: int, words: str, inside: Memplan
) -> None:
    done = inside("sweep", *arguments, *QUICK)
    assert done.returncode == code
    assert "\nN " in done.stdout
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((MODEL, "--dim", "N=8,x"), EXIT_USAGE, "--dim N=8,x: expected NAME=SIZE,SIZE"),
        ((MODEL, "--dim", "N="), EXIT_USAGE, "--dim N=: expected NAME=SIZE,SIZE"),
        ((MODEL, "--dim", "N=0"), EXIT_USAGE, "--dim N=0"),
        ((MODEL, "--dim", "N=8", "--dim", "N=9"), EXIT_USAGE, "given twice"),
        ((MODEL, "--dim", "N=8", "--budget", "60%,"), EXIT_USAGE, "'' is not a size"),
        ((MODEL, "--dim", "N=8", "--session", "tuned,plain"), EXIT_USAGE, "'plain' is not one of"),
        ((MODEL, "--fit", "1TB", "--fit-step", "9" * 20), EXIT_USAGE, "fit_step is 99,999,999,"),
        ((), EXIT_USAGE, "MODEL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_exit_codes(arguments: tuple[str, ...], code: int, words: str, inside: Memplan) -> None:
    quick = QUICK if arguments else ()
    assert_refused(inside("sweep", *arguments, *quick), code, words)


def test_more_jobs_than_a_machine_has_are_refused(inside: Memplan) -> None:
    done = inside("sweep", MODEL, "--dim", "N=8", "--jobs", "99999")
    assert_refused(done, EXIT_USAGE, "jobs is 99,999", "give at most ")


DASK = """
import json, sys
import joblib
from distributed import Client, LocalCluster
import memplan

if __name__ == "__main__":
    plan = memplan.RewriteOptions("100%", strategy="greedy", effort=50)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        found = memplan.sweep(
            "model.onnx", ["60%", "1kB"], dims={"N": [256, 512]}, fit="400kB",
            options=memplan.SweepOptions(plan, fit_step=64),
        )
    print(json.dumps(found.as_json()))
"""


def test_a_dask_cluster_gives_the_same_answers(inside: Memplan, tmp_path: Path) -> None:
    """A real cluster: a scheduler and two processes."""
    pytest.importorskip("distributed")
    (tmp_path / "cluster.py").write_text(DASK)
    done = subprocess.run(
        [sys.executable, "cluster.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"},
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    here = inside(*SWEEP, "--fit", "400kB", "--fit-step", "64", "--format", "json")
    assert json.loads(done.stdout) == json.loads(succeeded(here))
