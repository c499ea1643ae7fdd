"""``memplan profile``, and its costs in ``rewrite``."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import memplan as library
from helpers import odd_models as odd
from helpers.graphs import parse
from helpers.models import SAMPLES
from helpers.odd_models import WORKING, saved
from helpers.running import Memplan
from memplan.api.profiling import ProfileOptions
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import EXIT_USAGE
from memplan.units import parse_size

MODEL, COSTS = "model.onnx", "costs.json"

FAST = ("--runs", "2")
PLAIN = ("rewrite", MODEL, "--budget", "95%", "--dry-run", "--optimize", "none")


def names_of(path: Path, dims: dict[str, int] | None = None) -> set[str]:
    """Names of all nodes, as every other command shows them."""
    return {node.name for node in library.analyze(path, dims).graph.nodes}


def costs_of(path: Path) -> dict[str, float]:
    """The seconds in a costs file."""
    found = json.loads(path.read_text())
    assert found["schema"] == "memplan.costs/1"
    return dict(found["seconds"])


# --- the command ---------------------------------------------------------------------------------


def test_every_node_of_a_sample_model_is_measured(memplan: Memplan, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "gpt_dynamic.onnx", tmp_path / MODEL)
    done = memplan("profile", MODEL, "--dim", "N=2", *FAST, "-o", COSTS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("measured ")
    assert lines[0].endswith(" × the estimate")
    assert lines[2].endswith(" under the profiler; other work on the machine counts")
    for heading in ("operator", "nodes", "measured ms", "estimated ms", "ratio"):
        assert any(heading in line for line in lines)
    assert any(line.strip().startswith("total ") for line in lines)
    assert lines[-1] == f"wrote {COSTS}"
    found = json.loads((tmp_path / COSTS).read_text())
    assert found["fingerprint"] == library.analyze(tmp_path / MODEL, {"N": 2}).fingerprint
    assert (found["provider"], found["runs"], found["dims"]) == ("cpu", 2, {"N": 2})
    assert found["seconds"].keys() == names_of(tmp_path / MODEL, {"N": 2})
    assert all(0 < seconds < 10 for seconds in found["seconds"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == [COSTS, MODEL]


def test_the_report_as_json(inside: Memplan, model: Path, tmp_path: Path) -> None:
    (tmp_path / COSTS).write_text("an earlier one")
    done = inside("profile", MODEL, *FAST, "-o", COSTS, "--force", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "memplan.profile/1"
    assert found["measured_nodes"] == found["model"]["nodes"] == 13
    assert found["output"] == COSTS
    rows = found["by_op"]
    assert sum(row["nodes"] for row in rows) == 13
    assert sum(row["measured_seconds"] for row in rows) == pytest.approx(found["measured_seconds"])
    gaps = [abs(row["measured_seconds"] - row["estimated_seconds"]) for row in rows]
    assert gaps == sorted(gaps, reverse=True)
    assert sum(costs_of(tmp_path / COSTS).values()) == pytest.approx(found["measured_seconds"])


def test_costs_go_to_stdout(inside: Memplan, model: Path, tmp_path: Path) -> None:
    done = inside("profile", MODEL, *FAST, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds"].keys() == names_of(model)
    assert list(tmp_path.iterdir()) == [model]
    done = inside("profile", MODEL, *FAST, "-o", "-", "--format", "json")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")


def test_inputs_from_a_file(inside: Memplan, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((odd.BATCH, odd.WIDTH), np.float32))
    done = inside("profile", MODEL, *FAST, "--inputs", "in.npz", "-o", COSTS, "-q")
    assert (done.returncode, done.stdout) == (0, f"{COSTS}\n")
    np.savez(tmp_path / "bad.npz", x=np.ones(3, np.float32))
    done = inside("profile", MODEL, *FAST, "--inputs", "bad.npz", "-o", "other.json")
    assert done.returncode == EXIT_USAGE


@pytest.mark.parametrize(
    "name",
    [
        "no_names",
        "doubled_names",
        "conditional",
        "loop",
        "scan",
        "local_function",
        "constant_nodes",
    ],
)
def test_odd_models_keep_the_names_of_the_other_commands(name: str, tmp_path: Path) -> None:
    proto = WORKING[name]()
    path = saved(proto, tmp_path)
    found = library.profile(path, ProfileOptions(runs=1))
    assert found.seconds.keys() == names_of(path)
    assert found.other_nodes == 0
    assert path.read_bytes() == proto.SerializeToString()


def test_names_that_are_no_json(tmp_path: Path) -> None:
    proto = odd.training()
    for index, node in enumerate(proto.graph.node):
        node.name = f'"{index}\\"\n_kernel_time'
    path = saved(proto, tmp_path)
    assert library.profile(path, ProfileOptions(runs=1)).seconds.keys() == names_of(path)


def test_external_weights_are_found(tmp_path: Path) -> None:
    path = odd.external(tmp_path / "deep", MODEL)
    found = library.profile(path, ProfileOptions(runs=1))
    assert found.seconds.keys() == names_of(path)


def test_a_profile_is_saved_like_any_output(model: Path, tmp_path: Path) -> None:
    found = library.profile(model, ProfileOptions(runs=1))
    found.save(tmp_path / COSTS)
    assert costs_of(tmp_path / COSTS) == dict(found.seconds)
    with pytest.raises(library.MemplanError, match="exists"):
        found.save(tmp_path / COSTS)
    found.save(tmp_path / COSTS, force=True)


# --- its costs in rewrite ------------------------------------------------------------------------


def test_rewrite_counts_with_the_costs(inside: Memplan, model: Path, tmp_path: Path) -> None:
    assert inside("profile", MODEL, *FAST, "-o", COSTS, "-q").returncode == 0
    done = inside(*PLAIN, "--costs", COSTS, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["costs"] == {"source": COSTS, "measured_nodes": 13, "estimated_nodes": 0}
    assert f"seconds of all 13 nodes measured (in {COSTS})" in found["assumptions"]


def test_fused_nodes_are_estimated_and_said_so(tmp_path: Path) -> None:
    text = """g (float[64,32] x, float[32,32] w, float[32,32] v) => (float loss)
        { t = Transpose<perm = [1, 0]>(w) h = Gemm(x, t) a = Tanh(h) b = Gemm(a, v) c = Tanh(b)
          loss = ReduceSum<keepdims = 0>(c) }"""
    path = tmp_path / MODEL
    onnx.save(library.gradients(parse(text), "loss", ["w", "v"]), path)
    library.profile(path, ProfileOptions(runs=1)).save(tmp_path / COSTS)
    options = RewriteOptions(
        parse_size("100%"), costs=tmp_path / COSTS, strategy="none", optimize="extended"
    )
    result = rewrite(path, options, dry_run=True)
    whole = len(result.planned.nodes)
    assert 0 < result.measured_nodes < whole
    (note,) = [note for note in result.assumptions if "nodes measured" in note]
    assert f"seconds of {result.measured_nodes} of {whole} nodes measured" in note
    assert f"of {whole - result.measured_nodes} estimated" in note


def test_costs_of_another_model_are_refused(inside: Memplan, model: Path, tmp_path: Path) -> None:
    assert inside("profile", MODEL, *FAST, "-o", COSTS, "-q").returncode == 0
    assert inside(*PLAIN, "--costs", COSTS).returncode == 0
    saved(odd.training(opset=19), tmp_path)
    done = inside(*PLAIN, "--costs", COSTS)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: {COSTS} was measured on another model")
    assert hint.startswith("hint: measure this one: memplan profile ")


def test_costs_by_hand_are_taken_as_they_are(inside: Memplan, model: Path, tmp_path: Path) -> None:
    name = sorted(names_of(model))[0]
    (tmp_path / COSTS).write_text(json.dumps({"seconds": {name: 1.5}}))
    found = json.loads(inside(*PLAIN, "--costs", COSTS, "--format", "json").stdout)
    assert found["costs"] == {"source": COSTS, "measured_nodes": 1, "estimated_nodes": 12}
    assert (
        f"seconds of 1 of 13 nodes measured (in {COSTS}), of 12 estimated" in (found["assumptions"])
    )
