"""A small run of tools/fuzz: always the same mutants, and none may find a defect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.processes import HANG_SECONDS
from memplan.equivalence.prove import Equivalence

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {"analyze": 150, "rewrite": 20, "grad": 100, "check": 40}
LARGEST = 1_000_000_000  # bytes that a command may take for a small file
# Node tests of onnx, each of which once found something: constants that an elided node read, a Cast
# that names its saturation, branches of unequal rank, sizes that are inputs, an old opset.
NODE_TESTS = (
    "test_sce_mean_3d_log_prob_expanded",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_expanded",
    "test_affine_grid_2d_expanded",
    "test_center_crop_pad_crop",
    "test_range_float_type_positive_delta_expanded",
    "test_and2d",
    "test_mvn",
)


@pytest.fixture(scope="module")
def fuzz() -> Any:
    sys.path.insert(0, str(ROOT / "tools" / "fuzz"))
    try:
        import cases
        import pool
        import proofs
        import seeds

        yield SimpleNamespace(
            cases=cases,
            pool=pool,
            proofs=proofs,
            seeds=seeds,
        )
    finally:
        sys.path.remove(str(ROOT / "tools" / "fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COUNTS)
def test_no_mutant_finds_a_defect(command: str, fuzz: Any) -> None:
    run = fuzz.cases.Run(command, fuzz.seeds.built_in(), 20, COUNTS[command], seconds=120)
    begun = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    found = list(fuzz.pool.outcomes(run))
    assert sorted(outcome.number for outcome in found) == list(range(run.count))
    assert [outcome for outcome in found if outcome.is_defect] == []
    assert {outcome.code for outcome in found} >= {0, 3}
    # Cases run in forks, which begin with what the tests before have loaded.
    assert max(outcome.peak_bytes for outcome in found) < LARGEST + begun


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plans", "plain-plans"])
def test_no_random_graph_finds_a_plan_that_is_not_written(command: str, fuzz: Any) -> None:
    run = fuzz.cases.Run(command, {}, seed=5, count=3 if command == "plans" else 1, seconds=300)
    found = list(fuzz.pool.outcomes(run))
    assert [outcome for outcome in found if outcome.is_defect] == []
    ended = {code for outcome in found for code in outcome.counts}
    assert {code[: len("exit 0")] for code in ended} == {"exit 0", "exit 4"}


@pytest.fixture(scope="module")
def node_tests(fuzz: Any) -> dict[str, bytes]:
    found: dict[str, bytes] = fuzz.seeds.node_tests()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", ["analyze", "grad", "validate"])
def test_node_tests_of_onnx(command: str, fuzz: Any, node_tests: dict[str, bytes]) -> None:
    names = {*sorted(node_tests)[::20], *NODE_TESTS} if command != "validate" else NODE_TESTS[:3]
    seeds = {name: node_tests[name] for name in names}
    run = fuzz.cases.Run(command, seeds, 1, len(seeds), seconds=120, unchanged=True)
    found = list(fuzz.pool.outcomes(run))
    assert [outcome for outcome in found if outcome.is_defect] == []
    if command == "analyze":  # each of these is a valid model
        assert [outcome.message for outcome in found if outcome.code] == []


@pytest.mark.slow
def test_no_edit_is_called_equal_whose_bits_differ(fuzz: Any) -> None:
    run = fuzz.cases.Run("proof", {}, seed=3, count=60, seconds=600)
    found = list(fuzz.pool.outcomes(run))
    assert sorted(outcome.number for outcome in found) == list(range(run.count))
    assert [outcome for outcome in found if outcome.is_defect] == []
    said = {what for outcome in found for what in outcome.counts}
    assert {"refused", "proved, same"} <= said


@pytest.mark.slow
def test_a_proof_that_believes_everything_is_found_out(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = Equivalence(None)
    monkeypatch.setattr(fuzz.proofs, "prove", lambda *_: everything)
    monkeypatch.setattr(fuzz.proofs, "equivalence_of", lambda *_: everything)
    run = fuzz.cases.Run("proof", {}, seed=3, count=30, seconds=600)
    found = [outcome.place for outcome in fuzz.pool.outcomes(run) if outcome.is_defect]
    assert len(found) > 3
    assert all(place.startswith("proved, and ") for place in found)


@pytest.mark.slow
def test_an_edit_is_known_by_its_number(fuzz: Any) -> None:
    edits = [fuzz.proofs.mutant(3, number) for number in (1, 1, 2)]
    assert edits[0] == edits[1]
    assert edits[0].edited != edits[2].edited
    assert edits[0].original == edits[2].original


def test_fuzz_that_is_ended_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "fuzz"), "--command", "analyze"]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    options = ["--count", "100000", "--every", "0.1"]
    with subprocess.Popen([*command, *options], env=variables, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        assert any(line.startswith(b"analyze: ") for line in running.stderr)  # it is in the middle
        running.terminate()
        assert running.wait(HANG_SECONDS) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_fuzz_ends_in_time_and_tells_what_was_done() -> None:
    command = [sys.executable, str(ROOT / "tools" / "fuzz"), "--command", "analyze"]
    options = ["--count", "1000000", "--seconds", "3", "--every", "1"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"analyze: \d+ of 1000000 mutants in \d s", done.stdout)


def test_the_same_number_is_the_same_mutant(fuzz: Any) -> None:
    seeds = fuzz.seeds.built_in()
    runs = [fuzz.cases.Run("analyze", seeds, seed=3, count=1) for _ in range(2)]
    assert runs[0].mutant(7) == runs[1].mutant(7)
    assert runs[0].mutant(7) != runs[0].mutant(8)
