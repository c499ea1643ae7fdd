"""``memplan sweep`` as people and scripts use it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import integers_end_in_bytes, succeeded
from helpers.processes import HANG_SECONDS, as_from_a_terminal, eventually
from helpers.refusals import assert_harmless, assert_refused
from helpers.running import Memplan
from helpers.sweeps import batched
from memplan.errors import EXIT_ENVIRONMENT, EXIT_INFEASIBLE, EXIT_MODEL, EXIT_USAGE

pytestmark = pytest.mark.e2e

MODEL = "model.onnx"
QUICK = ("--strategy", "greedy", "--passes", "none", "--optimize", "none", "--jobs", "1")
SWEEP = ("sweep", MODEL, "--dim", "N=256,512", "--budget", "60%,1kB", *QUICK)


@pytest.fixture(autouse=True)
def model(tmp_path: Path) -> Path:
    return batched(tmp_path)


def test_the_table(memplan: Memplan) -> None:
    lines = succeeded(memplan(*SWEEP)).splitlines()
    assert lines[0] == "4 points: 2 planned, 2 infeasible"
    rows = [line.split() for line in lines if line.startswith((" 256", "256", "512"))]
    assert [row[:2] for row in rows] == [
        ["256", "60%"],
        ["256", "1kB"],
        ["512", "60%"],
        ["512", "1kB"],
    ]
    assert max(map(len, lines)) <= 80


def test_json_csv_and_page_say_the_same(inside: Memplan, tmp_path: Path) -> None:
    found = json.loads(succeeded(inside(*SWEEP, "--format", "json")))
    assert found["schema"] == "memplan.sweep/1"
    assert all(map(integers_end_in_bytes, found["points"]))
    text = succeeded(inside(*SWEEP, "--format", "csv"))
    rows = list(csv.DictReader(io.StringIO(text)))
    for point, row in zip(found["points"], rows, strict=True):
        assert row["dim.N"] == str(point["dims"]["N"])
        assert row["peak_bytes"] == str(point["peak_bytes"])
        assert row["status"] == point["status"]
    succeeded(inside(*SWEEP, "--format", "html", "-o", "sweep.html"))
    assert (tmp_path / "sweep.html").read_text().startswith("<!doctype html>")
    words = ("sweep.html exists", "--force")
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *SWEEP, "-o", "sweep.html")
    succeeded(inside(*SWEEP, "--format", "html", "-o", "sweep.html", "--force"))


def test_what_fits(inside: Memplan) -> None:
    done = inside("sweep", MODEL, "--fit", "400kB", "--fit-step", "16", *QUICK, "--format", "json")
    (fit,) = json.loads(succeeded(done))["fits"]
    assert fit["dim"] == "N"
    assert fit["largest"] % 16 == 0
    assert 0 < fit["as_it_is"] < fit["largest"]
    assert fit["how"] == "recomputed"
    line = succeeded(inside("sweep", MODEL, "--fit", "400kB", "--fit-step", "16", *QUICK, "-q"))
    assert line.startswith(f"N up to {fit['largest']:,} fits 400kB")


def test_a_killed_sweep_goes_on(memplan: Memplan, tmp_path: Path) -> None:
    """Whenever it is killed, the file holds finished points, and the next one ends with the same
    table."""
    script = [sys.executable, "-c", "from memplan_cli.main import run; run()"]
    command = [*script, *SWEEP, "--resume", "points.json", "--format", "json"]
    points = tmp_path / "points.json"
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert eventually(lambda: points.exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = json.loads(points.read_text())["points"]
    assert kept
    whole = succeeded(memplan(*SWEEP, "--resume", "points.json", "--format", "json"))
    assert json.loads(points.read_text())["points"].items() >= kept.items()
    assert whole == succeeded(memplan(*SWEEP, "--format", "json"))


def test_an_interrupted_sweep_says_how_to_go_on(tmp_path: Path) -> None:
    long = ("--strategy", "search", "--effort", "10000000", "--jobs", "1")
    command = [sys.executable, "-c", "from memplan_cli.main import run; run()"]
    command += ["sweep", MODEL, "--dim", "N=512", "--budget", "60%", *long]
    resume = ["--resume", "points.json"]
    process = subprocess.Popen(
        [*command, *resume], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        preexec_fn=as_from_a_terminal,
    )  # fmt: skip
    assert eventually((tmp_path / "points.json").exists)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 130
    assert error.strip().splitlines() == [
        "error: interrupted",
        "hint: finished points are in points.json: the same command goes on from there",
    ]


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
        ((MODEL, "--dim", "N=8", "--budget", "4G"), EXIT_USAGE, "ambiguous"),
        ((MODEL, "--dim", "N=8", "--session", "tuned,plain"), EXIT_USAGE, "'plain' is not one of"),
        ((MODEL, "--fit", "60%"), EXIT_USAGE, "expected a size, got 60%"),
        ((MODEL, "--fit", "1MB", "--fit-dim", "M"), EXIT_USAGE, "no input has a dimension 'M'"),
        ((MODEL, "--dim", "N=8", "--backend", "dask"), EXIT_USAGE, "needs the address"),
        ((MODEL, "--dim", "N=8", "--address", "tcp://a:1"), EXIT_USAGE, "Dask scheduler"),
        ((MODEL, "--dim", "N=8", "--resume", MODEL), EXIT_USAGE, "inputs are never overwritten"),
        ((MODEL, "--dim", "N=8", "--resume", "no/such"), EXIT_USAGE, "does not exist"),
        ((MODEL, "--dim", "N=8", "-o", MODEL, "--force"), EXIT_USAGE, "never overwritten"),
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


def test_the_program_is_ended_with_its_workers_by_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from memplan_cli.main import run; run()"]
    command += ["sweep", MODEL, "--dim", "N=512", "--budget", "60%", "--effort", "10000000"]
    process = subprocess.Popen(
        [*command, "--resume", "p.json"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        preexec_fn=as_from_a_terminal,
    )  # fmt: skip
    assert eventually((tmp_path / "p.json").exists)
    process.terminate()
    assert "error: terminated" in process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 143


DASK = """
import json, os, subprocess, sys
from distributed import LocalCluster
import memplan
from memplan_cli.main import main

def fragile(number):
    if number == 1:
        os._exit(1)
    return number

if __name__ == "__main__":
    arguments = sys.argv[1:]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        code = main([*arguments, "--backend", "dask", "--address", address])
        from memplan.processes.parallel import DaskWorkers, Lost
        found = dict(DaskWorkers(address).answers(fragile, range(3)))
    lost = isinstance(found.pop(1), Lost) and found == {0: 0, 2: 2}
    sys.exit(code if lost else 99)
"""


def test_a_dask_cluster_gives_the_same_bytes(memplan: Memplan, tmp_path: Path) -> None:
    """A real cluster: a scheduler and two processes. It also tells of a worker that is lost."""
    pytest.importorskip("distributed")
    (tmp_path / "cluster.py").write_text(DASK)
    arguments = (*SWEEP, "--fit", "400kB", "--fit-step", "64", "--format", "json")
    done = subprocess.run(
        [sys.executable, "cluster.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"},
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == succeeded(memplan(*arguments))


def test_a_cluster_that_is_not_there(memplan: Memplan) -> None:
    pytest.importorskip("distributed")
    arguments = ("--backend", "dask", "--address", "tcp://127.0.0.1:1")
    done = memplan("sweep", MODEL, "--dim", "N=8", *arguments)
    assert_refused(done, EXIT_ENVIRONMENT, "no Dask scheduler at tcp://127.0.0.1:1")
