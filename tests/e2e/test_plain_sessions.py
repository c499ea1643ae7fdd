"""Files for plain sessions: what the commands print, and that broken ones are found out."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import memplan as library
from helpers.running import Memplan
from helpers.training_steps import no_bottleneck, saved_step
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.proto.metadata import node_metadata
from memplan.runtime.inputs import synthesize
from memplan.simulate.opened import open_model
from memplan.units import parse_size

FAST = ("--runs", "1", "--no-plain", "--format", "json")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training step."""
    return saved_step(no_bottleneck, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def plain(source: Path) -> tuple[Path, dict[str, object]]:
    """A rewritten file with recomputed nodes, and the JSON of its making."""
    target = source.with_name("plain.onnx")
    options = RewriteOptions(parse_size("50%"), session="default", effort=6)
    return target, rewrite(source, options, target).as_json()


def test_the_report_names_what_was_added(plain: tuple[Path, dict[str, object]]) -> None:
    path, report = plain
    added = report["plain"]
    assert isinstance(added, dict)
    model = onnx.load(path)
    roles = [node_metadata(node).get("memplan.role", "") for node in model.graph.node]
    assert roles.count("fence") == added["fences"] > 0
    assert roles.count("pin") == added["pins"] > 0
    assert report["recomputed_nodes"] == roles.count("recompute") > 0
    assert added["later_runs_within_budget"] is True
    assert report["session"] == "default"


def test_text_says_how_to_load_it(source: Path, inside: Memplan) -> None:
    done = inside(
        "rewrite",
        source,
        "--budget",
        "90%",
        "--session",
        "default",
        "-o",
        "out.onnx",
        "--strategy",
        "search{iterations=3}",
    )
    assert done.returncode == 0, done.stderr
    assert 'onnxruntime.InferenceSession("out.onnx")' in done.stdout
    assert "from the second run on" in done.stdout
    assert "added for plain sessions: " in done.stdout


def test_it_runs_where_memplan_is_not(source: Path, plain: tuple[Path, dict[str, object]]) -> None:
    feeds = synthesize(open_model(source).graph)
    before = ort.InferenceSession(str(source)).run(None, feeds)
    session = ort.InferenceSession(str(plain[0]))
    for _ in range(2):
        after = session.run(None, feeds)
        for first, second in zip(before, after, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
    assert library.load(plain[0]).get_inputs()[0].name == session.get_inputs()[0].name


def test_validate_proves_it(
    source: Path, plain: tuple[Path, dict[str, object]], inside: Memplan
) -> None:
    done = inside("validate", source, plain[0], "--runs", "1", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["session"] == "default"
    assert found["within_budget"] is True
    assert found["later_runs_within_budget"] is True
    assert found["surviving_clones"] == found["clones"] > 0
    run = found["rewritten"]
    assert run["predicted_peak_bytes"] == run["measured_peak_bytes"]
    assert run["predicted_later_dynamic_bytes"] == run["second_run_dynamic_bytes"]
    before = found["original"]
    assert before["predicted_peak_bytes"] == before["measured_peak_bytes"]
    assert before["predicted_later_dynamic_bytes"] == before["second_run_dynamic_bytes"]
    assert any("enable_mem_pattern = False" in note for note in found["notes"])


def broken(path: Path, target: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, target)
    return target


def without_fences(graph: onnx.GraphProto) -> None:
    fences = {
        n.output[0]: n.input[0]
        for n in graph.node
        if node_metadata(n).get("memplan.role") == "fence"
    }
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = fences.get(name, name)


def without_pins(graph: onnx.GraphProto) -> None:
    kept = [n for n in graph.node if node_metadata(n).get("memplan.role") != "pin"]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del graph.node[:]
    graph.node.extend(copies)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (without_fences, "did not run: merged or removed by the runtime"),
        (without_pins, "over the budget"),
    ],
)
def test_validate_finds_what_is_gone(
    damage: Callable[[onnx.GraphProto], None],
    told: str,
    source: Path,
    plain: tuple[Path, dict[str, object]],
    inside: Memplan,
    tmp_path: Path,
) -> None:
    path = broken(plain[0], tmp_path / "broken.onnx", damage)
    done = inside("validate", source, path, *FAST)
    assert done.returncode == 1
    assert told in " ".join(json.loads(done.stdout)["findings"])


def test_an_old_opset_is_raised(inside: Memplan, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 12]>
        g (float[64, 128] x) => (float y, float[64] s) {
          a = Exp(x)  p = ReduceSum <axes = [1], keepdims = 1> (a)  s = Squeeze <axes = [1]> (p)
          q = Sin(p)  b = Mul(a, q)  y = ReduceSum <keepdims = 0> (b)
        }"""
    )
    source = tmp_path / "old.onnx"
    onnx.save(model, source)
    done = inside("rewrite", source, "--budget", "100%", "--session", "default", "-o", "new.onnx")
    assert done.returncode == 0, done.stderr
    assert "opset raised to 13" in done.stdout
    assert onnx.load(tmp_path / "new.onnx").opset_import[0].version == 13
    feeds = synthesize(open_model(source).graph)
    before, after = (
        ort.InferenceSession(str(path)).run(None, feeds) for path in (source, tmp_path / "new.onnx")
    )
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
