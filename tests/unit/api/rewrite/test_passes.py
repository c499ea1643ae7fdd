"""Passes in rewrite: the waterfall, and files with fewer outputs."""

import json
from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.models import SAMPLES
from helpers.networks import training_step
from helpers.running import Memplan
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import UsageError
from memplan.ops.memory import has_effects
from memplan.passes.manager import NAMES
from memplan.proto.metadata import get_metadata
from memplan.units import parse_size

MODEL = SAMPLES / "mlp_adamw.onnx"


def options(budget: str, **more: object) -> RewriteOptions:
    return RewriteOptions(
        parse_size(budget), optimize="none", strategy="search{iterations=6}", **more
    )  # type: ignore[arg-type]


def test_a_graph_of_which_nothing_is_left_has_a_plan() -> None:
    model = parse("g (float[4] x, float[4] y) => (float[4] y) { h = Exp(x) }")
    result = rewrite(model, RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none"))
    assert len(result.timeline.order) == 0


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


NARROWED = ("--optimize", "none", "--strategy", "greedy")


def test_a_narrowed_file_is_validated_on_what_is_left(inside: Memplan, tmp_path: Path) -> None:
    onnx.save(training_step("mlp"), tmp_path / "step.onnx")
    narrowed = ("rewrite", "step.onnx", *NARROWED, "--wrt", "z*", "--budget", "90%")
    found = inside(*narrowed, "--format", "json", "-o", "head.onnx")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert (len(answer["removed_outputs"]), len(answer["removed_inputs"])) == (12, 8)
    validate = ("validate", "step.onnx", "head.onnx", "--runs", "1", "--draws", "1", "--no-plain")
    validate += ("--format", "json")
    proof = inside(*validate)
    assert proof.returncode == 1
    answer = json.loads(proof.stdout)
    assert answer["finding_parts"] == ["interface"] * 2
    assert all("give --wrt GLOB as to rewrite" in finding for finding in answer["findings"])
    proof = inside(*validate, "--wrt", "z*")
    assert proof.returncode == 0, proof.stdout + proof.stderr
    answer = json.loads(proof.stdout)
    assert answer["proved"] is True
    assert (answer["equality"], answer["compared_outputs"]) == ("bitwise", 9)
    for note in ("8 inputs were removed", "12 outputs were removed"):
        assert any(note in each for each in answer["notes"])


def test_the_text_says_what_is_gone_and_what_was_saved(inside: Memplan) -> None:
    narrowed = ("rewrite", MODEL, *NARROWED, "--wrt", "head*", "--budget", "60%")
    text = " ".join(inside(*narrowed, "--dry-run").stdout.split())
    assert "removed by --wrt, 42 outputs: norm.weight_new, " in text
    assert " and 34 more" in text
    assert "fits by free savings alone" in text


def test_constants_whose_readers_are_gone_go_too() -> None:
    model = parse("""g (float[2,3] x) => (float[2,3] y)
      { s = Constant <value_ints: ints = [2, 3]> ()  a = Reshape (x, s)  b = Tanh (a)
        unread = Constant <value_float: float = 1.5> ()  y = Exp (b) }""")
    result = rewrite(model, RewriteOptions(parse_size("100%"), strategy="greedy"))
    assert [node.op_type for node in result.model.graph.node] == ["Tanh", "Exp"]


def test_operators_of_onnx_do_nothing_but_make_their_outputs() -> None:
    assert not any(map(has_effects, (":Constant", ":NonMaxSuppression", ":If", ":Dropout")))
    assert all(map(has_effects, ("acme:Log", "com.microsoft:YieldOp")))
