"""``memplan rewrite`` as people and scripts use it: outputs, interruption, odd models."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import memplan as library
from helpers import odd_models as odd
from helpers.commands import succeeded
from helpers.effort import few_by_day
from helpers.odd_models import WORKING, feeds_of, info, saved
from helpers.processes import HANG_SECONDS, as_from_a_terminal, eventually
from helpers.running import Memplan
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.units import parse_size

MODEL, OUT = "model.onnx", "model.memplan.onnx"


def test_rewrite_writes_beside_the_model(inside: Memplan, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    text = succeeded(inside("rewrite", MODEL, "--budget", "95%", "--optimize", "none"))
    assert "peak 6.29 KiB" in text.splitlines()[0]
    assert "budget 95% = 6,482 B (6.33 KiB)" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [OUT, MODEL]
    assert model.read_bytes() == before
    onnx.checker.check_model(str(tmp_path / OUT), full_check=True)


def test_rewrite_as_json(inside: Memplan, model: Path, tmp_path: Path) -> None:
    arguments = ("--budget", "6500", "--optimize", "none", "--format", "json")
    found = json.loads(succeeded(inside("rewrite", MODEL, *arguments)))
    assert found["schema"] == "memplan.rewrite/1"
    assert found["budget_bytes"] == 6500
    assert found["baseline_peak_bytes"] == 6824
    assert found["predicted_peak_with_workspace_bytes"] <= 6500
    assert found["recomputed_nodes"] >= 0
    assert found["output"] == OUT
    again = json.loads(succeeded(inside("analyze", OUT, "--format", "json")))
    assert again["peak_bytes"] == found["predicted_peak_bytes"]


def test_a_dry_run_writes_nothing(inside: Memplan, model: Path, tmp_path: Path) -> None:
    (tmp_path / OUT).write_text("mine")
    for further in ((), ("-o", "-"), ("-o", "other.onnx"), ("-q",)):
        text = succeeded(inside("rewrite", MODEL, "--budget", "100%", "--dry-run", *further))
        assert ("nothing was written" in text) == (further != ("-q",))
    assert sorted(path.name for path in tmp_path.iterdir()) == [OUT, MODEL]
    assert (tmp_path / OUT).read_text() == "mine"


def test_the_model_goes_to_stdout(model: Path, tmp_path: Path, inside: Memplan) -> None:
    arguments = ("rewrite", MODEL, "--budget", "100%", "--optimize", "none", "-o")
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, *arguments, "-"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    assert list(tmp_path.iterdir()) == [model]
    assert succeeded(inside(*arguments, "out.onnx", "-q")) == "out.onnx\n"
    assert (tmp_path / "out.onnx").read_bytes() == done.stdout


def test_a_full_disk_leaves_the_old_file(
    inside: Memplan, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / OUT).write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = inside("rewrite", MODEL, "--budget", "100%", "--optimize", "none", "--force")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: {OUT} cannot be written: No space left on device\n"
    assert (tmp_path / OUT).read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [OUT, MODEL]


# The program itself, but for a file that takes its time to be read.
_WAITING = """
import sys, time
from pathlib import Path
from memplan.api.rewrite import rewriting
from memplan_cli.main import run

def read(path):
    Path("reading").touch()
    while True:  # a signal between two system calls does not end one long sleep
        time.sleep(0.1)

rewriting.read_model = read
run()
"""


def test_ctrl_c_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    (tmp_path / OUT).write_text("old")
    command = [sys.executable, "-c", _WAITING, "rewrite", MODEL, "--budget", "100%", "--force"]
    with subprocess.Popen(
        [*command, "--optimize", "none"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=as_from_a_terminal,
    ) as process:
        assert eventually(lambda: process.poll() is not None or (tmp_path / "reading").exists())
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert out == ""
    # The first, empty line ends the one on which the terminal shows ^C.
    assert err.splitlines() == ["", "error: interrupted", "hint: nothing was written"]
    assert (tmp_path / OUT).read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [OUT, MODEL, "reading"]


RUN = [name for name in WORKING if name != "unknown_operator"]


def _outputs(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(value) for value in session.run(None, feeds)]


def _same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "optimize"),
    [
        *((name, "none") for name in RUN),
        *(pytest.param(*each.values, "extended", marks=each.marks) for each in few_by_day(RUN)),
    ],
)
def test_odd_models_are_rewritten_and_run(name: str, optimize: str, tmp_path: Path) -> None:
    proto = WORKING[name]()
    path, out = saved(proto, tmp_path), tmp_path / OUT
    result = rewrite(path, RewriteOptions(parse_size("100%"), optimize=optimize), out)
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert path.read_bytes() == proto.SerializeToString()
    # ONNX Runtime refuses doubled names, which memplan repairs.
    plain = saved(odd.training(), tmp_path, "plain.onnx") if name == "doubled_names" else path
    feeds = feeds_of(proto)
    before = ort.InferenceSession(str(plain), library.session_options())
    after = library.load(out)
    assert [value.name for value in after.get_inputs()] == [v.name for v in before.get_inputs()]
    assert [value.name for value in after.get_outputs()] == [v.name for v in before.get_outputs()]
    assert _same(_outputs(before, feeds), _outputs(after, feeds))


def test_a_default_can_still_be_replaced(tmp_path: Path) -> None:
    path, out = saved(odd.default_input(), tmp_path), tmp_path / OUT
    rewrite(path, RewriteOptions(parse_size("95%"), optimize="none"), out)
    feeds = feeds_of(odd.default_input())
    feeds["w1"] = np.full((odd.WIDTH, odd.HIDDEN), 0.25, np.float32)
    before = ort.InferenceSession(str(path), library.session_options())
    assert _same(_outputs(before, feeds), _outputs(library.load(out), feeds))


@pytest.mark.parametrize("optimize", ["none", "extended"])
def test_a_model_with_an_unknown_operator_is_rewritten(optimize: str, tmp_path: Path) -> None:
    path, out = saved(odd.unknown_operator(), tmp_path), tmp_path / OUT
    result = rewrite(path, RewriteOptions(parse_size("100%"), optimize=optimize), out)
    assert result.optimize_level == "none"
    assert any("acme.ops:Swoosh" in note for note in result.assumptions)
    assert any("not optimized offline" in n for n in result.assumptions) == (optimize != "none")
    ops = [(node.domain, node.op_type) for node in onnx.load(out).graph.node]
    assert ops.count(("acme.ops", "Swoosh")) == 1


def test_an_unknown_operator_is_never_run_twice(tmp_path: Path) -> None:
    path = saved(odd.unknown_operator(), tmp_path)
    options = RewriteOptions(parse_size("100%"), optimize="none", recompute=("a",))
    result = rewrite(path, options, tmp_path / OUT)
    assert "act" in result.plan.refusals
    assert "act" not in result.plan.recomputed


def test_an_output_without_a_stated_shape(tmp_path: Path) -> None:
    proto = odd.training()
    proto.graph.output[1].CopyFrom(info("w1_grad", None))
    path = saved(proto, tmp_path)
    rewrite(path, RewriteOptions(parse_size("100%"), optimize="none"), tmp_path / OUT)
