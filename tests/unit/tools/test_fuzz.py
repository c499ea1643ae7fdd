"""A small run of tools/fuzz: always the same items, none of which may find a defect, and planted
defects, which it must find."""

import argparse
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError

from helpers.models import ROOT
from helpers.processes import HANG_SECONDS
from memplan.autodiff.emit.operations import Operations
from memplan.equivalence.prove import Equivalence

FOLDER = ROOT / "tools" / "fuzz"
COUNTS = {"analyze": 100, "rewrite": 30, "grad": 60, "check": 20}
SEED = 11


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import ended
        import hostile
        import proofs
        import values

        main = runpy.run_path(str(FOLDER / "__main__.py"))
        modules = {"ended": ended, "hostile": hostile, "proofs": proofs, "values": values}
        yield SimpleNamespace(**modules, outcome=main["outcome"])
    finally:
        sys.path.remove(str(FOLDER))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("command", COUNTS)
def test_no_item_finds_a_defect(command: str) -> None:
    words = ["--command", command, "--count", str(COUNTS[command]), "--seed", "20", "--each", "120"]
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{command}: {COUNTS[command]} of {COUNTS[command]}, seed" in done.stdout
    assert "exit 0" in done.stdout


@pytest.mark.nightly
def test_it_ends_in_time_and_leaves_no_folder(tmp_path: Path) -> None:
    words = ["--command", "analyze", "--count", "1000000", "--seconds", "2"]
    done = run(*words, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert re.search(r"analyze: \d+ of 1000000, seed", done.stdout)
    assert not list(tmp_path.glob("memplan-fuzz-*"))


def test_what_dies_and_what_has_no_end_is_told(fuzz: Any, tmp_path: Path) -> None:
    def examine(seed: int, number: int) -> Any:
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        if number == 1:
            time.sleep(600)
        return fuzz.ended.Ended({"exit 0": 1}, "a bug" if number == 2 else "")

    options = argparse.Namespace(keep=tmp_path, command="values", seed=1)
    found = [fuzz.outcome(examine, number, 0.2, options).place for number in range(4)]
    assert found == ["died (-15)", "no end in time", "a bug", ""]
    assert (tmp_path / "values-1-2" / "found.txt").exists()


def test_damage_changes_models_and_leaves_some_valid(fuzz: Any) -> None:
    data = fuzz.hostile.seeds()["step"]
    made = {fuzz.hostile.mutated(data, random.Random(k), 0.0) for k in range(80)}
    valid = 0
    for each in made:
        try:
            onnx.checker.check_model(onnx.ModelProto.FromString(each))
            valid += 1
        except (onnx.checker.ValidationError, DecodeError):
            pass
    assert len(made - {data}) > 60
    assert 10 < valid < len(made) - 10


# --- The proof ------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_no_edit_is_called_equal_whose_bits_differ(fuzz: Any) -> None:
    for number in range(3):
        ended = fuzz.proofs.examined(3, number, edits=25)
        assert not ended.place, ended.message
        assert sum(ended.counts.values()) >= 25 > ended.counts["refused"] > 0


@pytest.mark.nightly
def test_a_proof_that_believes_everything_is_found_out(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = Equivalence(None)
    monkeypatch.setattr(fuzz.proofs, "prove", lambda *_: everything)
    monkeypatch.setattr(fuzz.proofs, "equivalence_of", lambda *_: everything)
    assert fuzz.proofs.examined(3, 0).place.startswith("proved, and ")


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_few_graphs(fuzz: Any) -> None:
    ended = [fuzz.values.examined(SEED, number) for number in range(24)]
    assert [each.message for each in ended if each.place] == []
    assert sum("right" in each.counts for each in ended) > 15


def _flag_turned(self: Operations, value: Any, flag: int) -> tuple[Any, int]:
    """Any Transpose ahead of a Gemm as its flag, whatever its axes: of c9b39250, where a gradient
    was off by 111%."""
    made = self.maker(value)
    if made is not None and made.op_type == "Transpose":
        return self.tensor(made.input[0]), 1 - flag
    return value, flag


@pytest.mark.nightly
def test_a_transpose_that_is_none_is_found(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a graph that few would think of; wrong rules: ort/test_gradient_check.py."""
    monkeypatch.setattr(Operations, "_untransposed", _flag_turned)
    ended = (fuzz.values.examined(SEED, number, ("gemm",)) for number in range(40))
    place = next(each.place for each in ended if each.place)
    assert place.partition(":")[0] in ("wrong", "wrong node")
    assert "Transpose" in place
