"""A small run of tools/fuzz: always the same mutants, and none may find a defect."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {"analyze": 150, "rewrite": 20, "grad": 100, "check": 40, "configuration": 40}
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
        import metadata
        import pool
        import seeds

        yield SimpleNamespace(cases=cases, metadata=metadata, pool=pool, seeds=seeds)
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
    assert {outcome.code for outcome in found} >= {0, 2 if command == "configuration" else 3}
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


def test_the_same_number_is_the_same_mutant(fuzz: Any) -> None:
    seeds = fuzz.seeds.built_in()
    runs = [fuzz.cases.Run("analyze", seeds, seed=3, count=1) for _ in range(2)]
    assert runs[0].mutant(7) == runs[1].mutant(7)
    assert runs[0].mutant(7) != runs[0].mutant(8)


@pytest.mark.slow
def test_no_mutant_of_metadata_is_trained_otherwise_without_a_word(fuzz: Any) -> None:
    ends = [fuzz.metadata.outcome(7, number)[3] for number in range(150)]
    assert set(ends) == {"refused", "said", "same"}
