"""``memplan run`` as people and scripts use it: data, logs, checkpoints, and what kills it."""

import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.commands import succeeded
from helpers.networks import FAMILIES, batches, training_step
from helpers.processes import as_from_a_terminal, eventually
from helpers.refusals import assert_harmless, assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_FINDING, EXIT_MODEL, EXIT_USAGE, UsageError
from memplan.training.telling import StepReport
from memplan.training.train import TrainOptions, run
from memplan.training.trainer import Trainer

STEP = "step.onnx"
RUN = ("run", STEP, "--data", "data.npz", "--threads", "1", "--seed", "7")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a step, its forward part and data."""
    folder, model = tmp_path_factory.mktemp("made"), training_step("mlp")
    onnx.save(model, folder / STEP)
    onnx.save(FAMILIES["mlp"](), folder / "forward.onnx")
    data = batches(model, 10)
    arrays = {name: np.concatenate([batch[name] for batch in data]) for name in data[0]}
    np.savez(folder / "data.npz", **arrays)
    return folder


@pytest.fixture(autouse=True)
def files(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def losses(path: Path) -> list[str]:
    """The steps and losses of a log, as they stand."""
    return [f"{row['step']} {row['loss']}" for row in csv.DictReader(path.read_text().splitlines())]


def test_the_loss_falls_and_everything_is_written(memplan: Memplan, tmp_path: Path) -> None:
    out = succeeded(
        memplan(
            *(*RUN, "--steps", "60", "--lr", "0.01", "--log", "run.csv", "--checkpoint", "run.npz"),
            *("--checkpoint-every", "25", "--export-forward", "net.onnx"),
            *("--forward", "forward.onnx"),
        )
    )
    assert "step.onnx: 60 steps on cpu, loss" in out
    assert "data.npz: 320 samples, 10 batches per epoch" in out
    assert "state in place: 19 outputs" in out
    rows = losses(tmp_path / "run.csv")
    assert len(rows) == 60
    assert float(rows[-1].split()[1]) < float(rows[0].split()[1])
    onnx.checker.check_model(str(tmp_path / "net.onnx"))
    with np.load(tmp_path / "run.npz") as checkpoint:
        assert checkpoint["step"] == 61


def test_json_has_the_fields_of_the_contract(inside: Memplan) -> None:
    found = json.loads(succeeded(inside(*RUN, "--steps", "4", "--format", "json")))
    assert found["schema"] == "memplan.run/1"
    assert (found["steps"], found["resumed_from"], len(found["losses"])) == (4, 0, 4)
    assert found["peak_bytes"] == found["resident_bytes"] + found["predicted_dynamic_bytes"]
    assert found["state"]["in_place"] == 19
    assert found["state"]["reasons"] == {}
    assert not found["synthetic"]


def test_without_data_there_are_random_batches_and_it_says_so(inside: Memplan) -> None:
    out = succeeded(inside("run", STEP, "--steps", "40", "--lr", "0.02", "--seed", "3"))
    assert "SYNTHETIC" in out
    quiet = succeeded(inside("run", STEP, "--steps", "1", "--quiet"))
    assert float(quiet) > 0


def test_a_log_of_json_lines(inside: Memplan, tmp_path: Path) -> None:
    succeeded(inside(*RUN, "--steps", "3", "--log", "run.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert set(rows[0]) == {"step", "loss", "lr", "seconds"}
    assert_refused(inside(*RUN, "--steps", "3", "--log", "run.jsonl"), EXIT_USAGE, "exists")
    for name in ("run.txt", "run.json"):
        assert_refused(inside(*RUN, "--log", name), EXIT_USAGE, f"{name}: the name ends in neither")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "none.onnx"), EXIT_MODEL, "none.onnx does not exist"),
        ((*RUN, "--resume"), EXIT_USAGE, "require --checkpoint"),
        ((*RUN, "--batch", "7"), EXIT_USAGE, "--batch is gone"),
        ((*RUN, "--measure"), EXIT_USAGE, "--measure is gone"),
        ((*RUN, "--no-guard"), EXIT_USAGE, "--no-guard is gone"),
        ((*RUN, "--no-spin"), EXIT_USAGE, "--no-spin is gone"),
        ((*RUN, "--ready-batches"), EXIT_USAGE, "the step wants float32[32, 12]"),
        ((*RUN, "--hyper", "lr"), EXIT_USAGE, "expected NAME=NUMBER"),
        ((*RUN, "--hyper", "rate=1"), EXIT_USAGE, "no hyperparameter 'rate'"),
        ((*RUN, "--init", "w*=1"), EXIT_USAGE, "init is w*=1: expected 'random'"),
        ((*RUN, "--state", "sideways"), EXIT_USAGE, "expected in-place, apart or OUT=IN"),
        ((*RUN, "--weights-file", "data.npz"), EXIT_USAGE, "which is not state"),
        (("run", STEP, "--data", STEP), EXIT_USAGE, "cannot be read as .npz"),
        ((*RUN, "--log", "nowhere/run.csv"), EXIT_USAGE, "does not exist"),
        ((*RUN, "--checkpoint", "nowhere/run.npz"), EXIT_USAGE, "does not exist"),
        ((*RUN, "--export-forward", "a"), EXIT_USAGE, "--export-forward requires --forward"),
        ((*RUN, "--format", "json", "-o", "a", "--checkpoint", "a"), EXIT_USAGE, "another output"),
        ((*RUN, "--threads", "100000"), EXIT_USAGE, "threads is 100,000"),
        ((*RUN, "--steps", "9" * 20), EXIT_USAGE, "steps is 99,999,999,"),
        ((*RUN, "--checkpoint", "a", "--checkpoint-every", "9" * 20), EXIT_USAGE, "give at most"),
    ],
)
def test_what_cannot_be_is_refused_in_two_lines(
    arguments: tuple[str, ...], code: int, words: str, inside: Memplan
) -> None:
    assert_refused(inside(*arguments), code, words)


def test_a_loss_that_is_not_a_number_ends_the_run_and_the_state_before_is_kept(
    inside: Memplan, tmp_path: Path
) -> None:
    with np.load(tmp_path / "data.npz") as data:
        arrays = dict(data)
    arrays["x"][5 * 32 : 6 * 32] = np.inf
    np.savez(tmp_path / "data.npz", **arrays)
    done = inside(*RUN, "--no-shuffle", "--steps", "9", "--checkpoint", "run.npz")
    assert done.returncode == EXIT_FINDING
    assert "the loss of step 6 is" in done.stderr
    with np.load(tmp_path / "run.npz") as checkpoint:
        assert checkpoint["step"] == 6
        assert all(np.isfinite(checkpoint[name]).all() for name in ("a.weight", "z.bias"))


def test_a_run_goes_on_as_if_it_had_not_ended(inside: Memplan, tmp_path: Path) -> None:
    succeeded(inside(*RUN, "--steps", "21", "--log", "whole.csv", "--checkpoint", "whole.npz"))
    again = ("--log", "run.csv", "--checkpoint", "run.npz", "--resume")
    for steps in ("8", "8", "21"):
        succeeded(inside(*RUN, "--steps", steps, *again))
    assert losses(tmp_path / "run.csv") == losses(tmp_path / "whole.csv")
    assert (tmp_path / "run.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_refused_run_changes_nothing(inside: Memplan, tmp_path: Path) -> None:
    files = ("--log", "run.csv", "--checkpoint", "run.npz")
    succeeded(inside(*RUN, "--steps", "2", *files))
    early = (tmp_path / "run.npz").read_bytes()
    succeeded(inside(*RUN, "--steps", "4", *files, "--resume"))
    (tmp_path / "run.npz").write_bytes(early)
    refused = (
        ("--resume", "--seed", "8"),
        ("--resume", "--no-shuffle"),
        ("--resume", "--lr", "1e39"),
        ("--force", "--hyper", "rate=1"),
        ("--force", "--weights-file", "data.npz"),
    )
    for arguments in refused:
        assert_harmless(inside, tmp_path, EXIT_USAGE, (), *RUN, *files, *arguments)
    # One that fails in its first step: there is nothing new to keep.
    with np.load(tmp_path / "data.npz") as data:
        np.savez(tmp_path / "bad.npz", **dict(data) | {"x": np.full_like(data["x"], np.nan)})
    bad = ("run", STEP, "--data", "bad.npz", *files, "--force")
    assert_harmless(inside, tmp_path, EXIT_FINDING, ("step 1 is nan",), *bad)


@pytest.mark.parametrize("shared", ["log", "checkpoint"])
def test_a_file_of_a_run_that_goes_on_is_refused(
    shared: str, inside: Memplan, tmp_path: Path
) -> None:
    files = {"log": "run.csv", "checkpoint": "run.npz"}
    endless = ("--steps", "1000000", "--log", "run.csv", "--checkpoint", "run.npz")
    saved = tmp_path / files["checkpoint"]
    first = subprocess.Popen(command(*RUN, *endless, "--checkpoint-every", "3"), cwd=tmp_path)
    try:
        assert eventually(saved.exists)
        (tmp_path / "link.csv").symlink_to(files["log"])
        mine = {"log": "other.csv", "checkpoint": "other.npz"} | {shared: files[shared]}
        words = f"{files[shared]} is in use by another run"
        second = (*RUN, "--steps", "2", "--log", mine["log"], "--checkpoint", mine["checkpoint"])
        assert_refused(inside(*second, "--force"), EXIT_USAGE, words)
        linked = (*RUN, "--steps", "2", "--log", "link.csv", "--force")
        assert_refused(inside(*linked), EXIT_USAGE, "run.csv is in use")
        trainer = Trainer(tmp_path / STEP)
        with pytest.raises(UsageError, match=r"run\.npz is in use by another run"):
            trainer.save(saved)
        trainer.close()
    finally:
        first.terminate()
        first.wait()
    rows = losses(tmp_path / "run.csv")
    assert rows[0].startswith("1 ")
    with np.load(saved) as checkpoint:
        assert checkpoint["step"] == len(rows) + 1
    assert not list(tmp_path.glob(".memplan*"))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from memplan_cli.main import run; run()", *arguments]


LONG = (*RUN, "--steps", "400", "--lr", "0.003", "--checkpoint-every", "7")


@pytest.mark.nightly
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    inside: Memplan, tmp_path: Path
) -> None:
    succeeded(inside(*LONG, "--log", "whole.csv", "--checkpoint", "whole.npz"))
    log = tmp_path / "run.csv"
    going_on = command(*LONG, "--log", "run.csv", "--checkpoint", "run.npz", "--resume")
    moments = random.Random(0)
    for _ in range(3):
        rows = len(log.read_bytes().splitlines()) if log.exists() else 0
        wanted = rows + moments.randrange(5, 90)
        child = subprocess.Popen(going_on, cwd=tmp_path, stdout=subprocess.DEVNULL)
        assert eventually(
            lambda wanted=wanted, child=child: (
                child.poll() is not None
                or (log.exists() and len(log.read_bytes().splitlines()) > wanted)
            )
        )
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    subprocess.run(going_on, cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    assert losses(log) == losses(tmp_path / "whole.csv")
    assert (tmp_path / "run.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["ctrl-c", "sigterm", "sighup"],
)
def test_a_signal_ends_the_run_behind_a_step_with_a_checkpoint(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    log = tmp_path / "run.csv"
    endless = command(*RUN, "--steps", "1000000", "--log", "run.csv", "--checkpoint", "run.npz")
    child = subprocess.Popen(
        endless,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    assert eventually(
        lambda: (
            child.poll() is not None or (log.exists() and len(log.read_bytes().splitlines()) > 5)
        )
    )
    child.send_signal(number)
    _, errors = child.communicate()
    assert child.returncode == code
    step = len(losses(log))
    assert f"run.npz holds the state after step {step}; --resume goes on" in errors
    with np.load(tmp_path / "run.npz") as checkpoint:
        assert checkpoint["step"] == step + 1


def test_a_full_disk_at_a_checkpoint_ends_no_run(tmp_path: Path, inside: Memplan) -> None:
    checkpoint = tmp_path / "run.npz"
    options = TrainOptions(
        data=tmp_path / "data.npz",
        threads=1,
        seed=7,
        steps=6,
        checkpoint=checkpoint,
        checkpoint_every=2,
        log=tmp_path / "run.csv",
        resume=True,
    )
    run(tmp_path / STEP, options)
    before = checkpoint.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def full(step: StepReport, steps: int, peak: int | None) -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limit[1]))
        return True

    try:
        with pytest.raises(UsageError, match=r"run\.npz cannot be written"):
            run(tmp_path / STEP, replace(options, steps=11), progress=full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(losses(tmp_path / "run.csv")) == 11  # the run itself came to its end
    assert checkpoint.read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    result = run(tmp_path / STEP, replace(options, steps=11))
    assert (result.resumed, result.steps) == (6, 11)
