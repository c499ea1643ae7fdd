"""Passes in rewrite: the waterfall, and files with fewer outputs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from helpers.models import SAMPLES
from helpers.running import Memplan
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import UsageError
from memplan.passes.manager import (
    NAMES,
)
from memplan.proto.metadata import get_metadata
from memplan.units import parse_size

MODEL = SAMPLES / "mlp_adamw.onnx"


def options(budget: str, **more: object) -> RewriteOptions:
    return RewriteOptions(
        parse_size(budget), optimize="none", strategy="search{iterations=6}", **more
    )  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_waterfall_ends_where_the_file_is(tmp_path: Path) -> None:
    result = rewrite(MODEL, options("60%"), tmp_path / "out.onnx")
    names = [step.name for step in result.waterfall]
    assert names == ["original", *NAMES, "recompute"]
    first, last = result.waterfall[0], result.waterfall[-1]
    assert first.saved_bytes == 0
    assert last.timeline is result.timeline
    whole = first.timeline.peak_with_workspace_bytes - last.timeline.peak_with_workspace_bytes
    assert sum(step.saved_bytes for step in result.waterfall) == whole > 0
    assert next(step for step in result.waterfall if step.name == "order").saved_bytes > 0
    found = result.as_json()["passes"]
    assert isinstance(found, list)
    assert [row["name"] for row in found] == names
    assert sum(row["saved_bytes"] for row in found) == (
        first.timeline.peak_bytes - result.timeline.peak_bytes
    )
    assert get_metadata(onnx.load(tmp_path / "out.onnx"))["passes"] == list(NAMES)


def test_passes_can_be_left_away() -> None:
    result = rewrite(MODEL, options("100%", passes="none"), dry_run=True)
    assert [step.name for step in result.waterfall] == ["original", "recompute"]
    left = {node.name for node in result.timeline.graph.nodes}
    assert left == {node.name for node in result.original.graph.nodes}
    with pytest.raises(UsageError, match="passes is 'x'") as caught:
        options("100%", passes="x")
    assert caught.value.hint == "expected one of: all, none"
    with pytest.raises(UsageError, match="--wrt requires --passes all"):
        options("100%", passes="none", wrt=("head*",))


@pytest.mark.slow
def test_a_narrowed_file_is_validated_on_what_is_left(inside: Memplan, tmp_path: Path) -> None:
    found = inside(
        "rewrite",
        MODEL,
        "--budget",
        "60%",
        "--wrt",
        "head*",
        "--optimize",
        "none",
        "--strategy",
        "greedy",
        "--format",
        "json",
        "-o",
        "head.onnx",
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert len(answer["removed_outputs"]) == 42
    assert len(answer["removed_inputs"]) == 28
    validate = ("validate", MODEL, "head.onnx", "--runs", "1", "--no-plain", "--format", "json")
    proof = inside(*validate)
    assert proof.returncode == 1
    answer = json.loads(proof.stdout)
    assert answer["finding_parts"] == ["interface"] * 2
    assert all("give --wrt GLOB as to rewrite" in finding for finding in answer["findings"])
    proof = inside(*validate, "--wrt", "head*")
    assert proof.returncode == 0, proof.stdout + proof.stderr
    answer = json.loads(proof.stdout)
    assert answer["proved"] is True
    assert answer["equality"] == "bitwise"
    assert answer["compared_outputs"] == 8
    assert any("28 inputs were removed" in note for note in answer["notes"])
    assert any("42 outputs were removed" in note for note in answer["notes"])


def test_the_text_says_what_is_gone_and_what_was_saved(inside: Memplan) -> None:
    found = inside(
        "rewrite",
        MODEL,
        "--budget",
        "60%",
        "--wrt",
        "head*",
        "--optimize",
        "none",
        "--strategy",
        "greedy",
        "--dry-run",
    )
    text = " ".join(found.stdout.split())
    assert "removed by --wrt, 42 outputs: norm.weight_new, " in text
    assert " and 34 more" in text
    assert "fits by free savings alone" in text
    assert "A narrower --wrt would free" in inside("analyze", MODEL).stdout
