"""What pairs of loops store, which choices there are, and what may not be asked for."""

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from helpers.graphs import open_text
from helpers.loops import CELL, cell, layer, pairs_of, parsed, steps_of, trained
from helpers.running import runner
from memplan.api.analysis import analyze, analyze_open
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import InfeasibleError, UsageError
from memplan.passes.loops.loop_step import named
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind
from memplan.units import parse_size

# Bytes of one [3,4] float tensor: what one step of one tensor takes.
ONE = 3 * 4 * 4


def test_what_a_pair_stores() -> None:
    """The gate outputs, both states before the step, and tanh(c), which is the state h as well:
    so h before the step is read from the same tensor, shifted."""
    (pair,) = pairs_of(cell())
    found = {item.tensor: (item.name, item.step_bytes) for item in pair.stored}
    assert pair.steps == 5
    assert {name: nbytes for name, (_, nbytes) in found.items()} == {
        "h": ONE,
        "c": ONE,
        "ii": ONE,
        "ff": ONE,
        "gg": ONE,
        "next": ONE,
    }
    assert found["next"][0] == "all"
    assert pair.step_bytes == 6 * ONE


def test_no_pair_without_a_backward_loop() -> None:
    """Two layers read each other, and are no pair: both are forward."""
    model = layer("LSTM", 4, 2, 4, 4, 2)
    assert [p.backward.node.name for p in pairs_of(model)] == [
        "layer1/forward/Scan/grad/Scan",
        "layer0/forward/Scan/grad/Scan",
    ]


def test_what_is_held_anyway_is_not_recomputed() -> None:
    """``all`` is read behind the loop as well, for the gradient by r: so h, which is the same, and
    ``next`` are held; c, which nothing else reads, is not."""
    (step,) = steps_of(cell())
    assert step.cell.stacked == {"next"}


def test_names_are_all_outputs_or_none() -> None:
    steps = steps_of(cell())
    with pytest.raises(
        UsageError, match=r"Split 'split' can be recomputed only with .*: f, g$"
    ) as e:
        named(steps, "i+ii")
    assert e.value.hint == "add them: --scan-recompute 'i+ii+f+g'"
    (kept,) = named(steps, "i+f+g+ii")
    assert "s" in kept.stored
    assert [node.name for node in kept.recomputed] == ["split", "si"]


def test_names_of_what_is_stacked() -> None:
    """The name of a scan output stands for the tensor in the body."""
    (pair,) = pairs_of(cell())
    name = next(item.name for item in pair.stored if item.tensor == "ii")
    assert named(steps_of(cell()), name) == named(steps_of(cell()), "ii")


def test_names_that_mean_nothing() -> None:
    with pytest.raises(UsageError, match="--scan-recompute nothing: no forward loop") as error:
        named(steps_of(cell()), "s+nothing")
    assert error.value.hint.startswith("there are: a, b, s, i, f, g, ii")
    with pytest.raises(UsageError, match="the graph has no forward Scan or Loop"):
        named([], "all")


def test_random_numbers_are_not_drawn_again() -> None:
    text = CELL.replace(
        "[next] next = Tanh(after)", "[drop] d, m = Dropout(after, half, on) [next] next = Tanh(d)"
    )
    text = text.replace(
        "float[T,N,4] all)\n    {", "float[T,N,4] all)\n    <float half = {0.5}, bool on = {1}> {"
    )
    steps = steps_of(trained(parsed(text, T=5, N=3)))
    with pytest.raises(UsageError, match="cannot be recomputed"):
        named(steps, "d+m")
    (kept,) = named(steps, "all")
    assert "m" in kept.stored
    assert "drop" not in [node.name for node in kept.recomputed]
    (kept,) = named(steps, "auto")
    assert "drop" not in [node.name for node in kept.recomputed]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A training graph of a layer whose peak is what the loops store, on disk."""
    path = tmp_path / "layer.onnx"
    onnx.save(layer("LSTM", 12, 4, 8, 16).prepared.proto, path)
    return path


def options(budget: str, **more: str) -> RewriteOptions:
    """Without fusions; the search ends where it is certified, not by the clock."""
    return RewriteOptions(parse_size(budget), optimize="none", time_limit=60.0, **more)  # type: ignore[arg-type]


def test_analysis(saved: Path) -> None:
    (pair,) = analyze(saved).as_json()["recurrent"]  # type: ignore[misc]
    assert pair["steps"] == 12
    assert pair["stored_bytes_per_step"] == 6 * 4 * 16 * 4
    assert pair["stored_bytes"] == 12 * 6 * 4 * 16 * 4
    assert [row["bytes_per_step"] for row in pair["stored"]] == [4 * 16 * 4] * 6


def test_the_planner_stores_as_little_as_it_must(saved: Path) -> None:
    """The smaller the budget, the less is stored, at more cost; not where nothing is asked for."""
    costs, stored = [], []
    for budget in ("100%", "80%", "75%"):
        result = rewrite(saved, options(budget), dry_run=True)
        assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
        costs.append(result.plan.extra_cost_fraction)
        stored.append(sum(pair.after_bytes for pair in result.pairs))
    assert costs[0] == 0
    assert 0 < costs[1] <= costs[2]
    assert stored[0] == 0  # nothing was changed
    assert stored[1] >= stored[2] > 0
    with pytest.raises(InfeasibleError):
        rewrite(saved, options("75%", scan_recompute="none"), dry_run=True)
    with pytest.raises(UsageError, match="--scan-recompute fit is gone"):
        rewrite(saved, options("80%", scan_recompute="fit"), dry_run=True)


def test_the_report_is_what_the_file_says(saved: Path) -> None:
    target = saved.with_name("less.onnx")
    result = rewrite(saved, options("100%", scan_recompute="all"), target)
    (change,) = result.as_json()["recurrent"]  # type: ignore[misc]
    (pair,) = pairs_of(open_model(target))
    assert change["stored_bytes_per_step_after"] == pair.step_bytes
    assert change["stored_bytes_per_step_before"] == 6 * 4 * 16 * 4
    assert change["stored_bytes_after"] == 12 * pair.step_bytes
    assert result.waterfall[1].name == "recurrent"
    assert result.timeline.peak_with_workspace_bytes < 0.8 * result.original.timeline.peak_bytes
    assert result.plan.bound_fraction == 0


def test_the_commands(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    memplan = runner(saved.parent, monkeypatch, capfd)
    out = memplan("analyze", saved).stdout
    assert "Stored by Scan layer0/forward/Scan" in out
    assert "1.50 KiB a step × 12 = 18.0 KiB" in out
    assert "stored for the backward" not in out  # the table says it, once
    common = ("rewrite", saved, "--budget", "100%", "--optimize", "none", "--dry-run")
    found = memplan(*common, "--scan-recompute", "*/Split")
    assert (found.returncode, found.stdout) == (2, "")
    assert "can be recomputed only with all its outputs; not named:" in found.stderr
    done = memplan(*common, "--scan-recompute", "all", "--format", "json")
    assert json.loads(done.stdout)["recurrent"][0]["recomputed"]
    text = memplan(*common, "--scan-recompute", "all").stdout
    assert "1 loop stores less" in text
    assert "Loops that store less" in text


SCANS = """
g (float[3,4] x, float[4] z) => (float[4] bs, float[4] fs)
  <int64[1] i0 = {{0}}, int64[1] i4 = {{4}}, int64[1] i1 = {{1}}>
{{
  fs, st = Scan <num_scan_inputs = 1,
    body = b (float[4] s, float[4] e) => (float[4] s2, float[4] o)
    {{ s2 = Add(s, e)  o = Identity(s2) }}> (z, x)
  {way}
  bs = Scan <num_scan_inputs = 1,
    body = c (float[4] s, float[4] e) => (float[4] s2) {{ s2 = Add(s, e) }}> (z, {end})
}}"""


def test_a_way_that_doubles_at_every_node_is_walked_once() -> None:
    """Both inputs of each Concat are the one before: 2 to the power of 40 ways."""
    count, lines = 40, ["d0 = Identity(st)"]
    for k in range(count):
        lines.append(f"c{k} = Concat <axis = 1> (d{k}, d{k})")
        lines.append(f"d{k + 1} = Slice(c{k}, i0, i4, i1)")
    model = open_text(SCANS.format(way="\n".join(lines), end=f"d{count}"))
    assert analyze_open(model, session_kind("tuned")).timeline.peak_bytes > 0


def test_a_way_of_3000_copies_is_walked() -> None:
    """Not by a function that calls itself."""
    lines = ["d0 = Identity(st)", *(f"d{k + 1} = Identity(d{k})" for k in range(3000))]
    model = open_text(SCANS.format(way="\n".join(lines), end="d3000"))
    assert analyze_open(model, session_kind("tuned")).timeline.peak_bytes > 0
