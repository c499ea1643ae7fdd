"""The commands as people and scripts use them: outputs, formats, defaults, interruption."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import memplan as library
from helpers import odd_models as odd
from helpers.models import SAMPLES
from helpers.odd_models import WORKING, feeds_of, info, saved
from helpers.running import Memplan, runner
from memplan.api.rewrite.run import RewriteOptions, rewrite
from memplan.units import parse_size

pytestmark = pytest.mark.e2e

MODEL, OUT = "model.onnx", "model.memplan.onnx"
ESCAPE = "\x1b["
ANALYSIS_KEYS = {
    "schema",
    "model",
    "session",
    "provider",
    "dims",
    "peak_bytes",
    "peak_with_workspace_bytes",
    "resident_bytes",
    "dynamic_peak_bytes",
    "peak_step",
    "peak_node",
    "steps",
    "floor_bytes",
    "by_class",
    "at_peak",
    "assumptions",
}
LIVE_KEYS = {"name", "nbytes", "class", "producer", "birth", "death", "held_by"}
CLASSES = {
    "weights",
    "inputs",
    "optimizer_state",
    "constants",
    "stash",
    "activation",
    "gradient",
    "output",
}
REWRITE_KEYS = {
    "schema",
    "strategy",
    "session",
    "budget_bytes",
    "baseline_peak_bytes",
    "predicted_peak_bytes",
    "predicted_peak_with_workspace_bytes",
    "extra_cost_fraction",
    "bound_fraction",
    "bound_kind",
    "recomputed_nodes",
    "planning_seconds",
    "output",
    "assumptions",
}
VALIDATION_KEYS = {
    "schema",
    "provider",
    "session",
    "equality",
    "max_abs_diff",
    "original",
    "rewritten",
    "budget_bytes",
    "within_budget",
    "clones",
    "surviving_clones",
}
RUN_KEYS = {"predicted_peak_bytes", "measured_peak_bytes", "seconds_median"}


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Stdout of a run that must have worked without a word on stderr."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def integers_end_in_bytes(found: dict[str, Any]) -> bool:
    """Whether every size is an integer (sizes end in ``_bytes``)."""
    return all(
        isinstance(value, int) or value is None
        for key, value in found.items()
        if key.endswith("_bytes")
    )


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """Like the ``memplan`` fixture, in this process."""
    return runner(tmp_path, monkeypatch, capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small training step in the current folder of the ``memplan`` fixture."""
    return saved(odd.training(), tmp_path)


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(flag: str, memplan: Memplan) -> None:
    text = succeeded(memplan(flag))
    assert text.startswith("Usage: memplan ")
    for command in ("analyze", "check", "profile", "rewrite", "strategies", "validate"):
        assert f"\n  {command} " in text


def test_version(memplan: Memplan) -> None:
    assert succeeded(memplan("--version")) == f"memplan {version('memplan')}\n"


@pytest.mark.parametrize(
    "command", ["analyze", "check", "profile", "rewrite", "strategies", "validate"]
)
def test_help_of_a_command(command: str, inside: Memplan) -> None:
    text = succeeded(inside(command, "--help"))
    assert text.startswith(f"Usage: memplan {command} ")
    assert "_configuration" not in text
    for option in ("--quiet", "--verbose", "--color", "--force", "--format"):
        assert option in text


# --- analyze -------------------------------------------------------------------------------------


def test_the_first_line_is_the_answer(memplan: Memplan, model: Path) -> None:
    lines = succeeded(memplan("analyze", MODEL)).splitlines()
    assert re.fullmatch(r"peak 6\.66 KiB at step \d+/13 \((backward|forward): \w+\)", lines[0])
    assert len(lines) > 10
    assert succeeded(memplan("analyze", MODEL, "-q")).splitlines() == lines[:1]


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_analysis_as_json(session: str, inside: Memplan, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "gpt_dynamic.onnx", tmp_path / MODEL)
    arguments = ("--dim", "N=3", "--format", "json", "--session", session)
    found = json.loads(succeeded(inside("analyze", MODEL, *arguments)))
    assert found.keys() >= ANALYSIS_KEYS
    assert found["schema"] == "memplan.analysis/1"
    assert {"path", "nodes", "tensors", "fingerprint"} <= found["model"].keys()
    assert found["dims"] == {"N": 3}
    assert found["session"] == session
    assert integers_end_in_bytes(found)
    assert found["peak_bytes"] == found["resident_bytes"] + found["dynamic_peak_bytes"]
    assert found["peak_bytes"] <= found["peak_with_workspace_bytes"]
    assert found["floor_bytes"] <= found["peak_bytes"]
    assert found["by_class"].keys() <= CLASSES
    assert sum(found["by_class"].values()) == found["peak_bytes"]
    assert found["at_peak"]
    for live in found["at_peak"]:
        assert live.keys() >= LIVE_KEYS
        assert live["class"] in CLASSES
        assert live["birth"] <= found["peak_step"] < live["death"] <= found["steps"]


def test_a_placement_is_one_line_and_one_field(inside: Memplan, model: Path) -> None:
    lines = succeeded(inside("analyze", MODEL, "--placement")).splitlines()
    (line,) = [line for line in lines if line.startswith("placement: ")]
    size = r"[\d.]+ KiB"
    assert re.fullmatch(
        rf"placement: {size} of arena would hold the dynamic peak of {size} \(\+\d\.\d%\), "
        r"best of (1 order|\d+ orders and policies)( and a search)?",
        line,
    )
    found = json.loads(succeeded(inside("analyze", MODEL, "--placement", "--format", "json")))
    assert integers_end_in_bytes(found["placement"])
    assert found["placement"]["max_live_bytes"] == found["dynamic_peak_bytes"]
    assert 1 <= found["placement"]["best_height_bytes"] / found["dynamic_peak_bytes"] <= 1.01


def test_analysis_goes_to_a_file_or_to_stdout(inside: Memplan, model: Path, tmp_path: Path) -> None:
    text = succeeded(inside("analyze", MODEL, "--format", "json"))
    assert succeeded(inside("analyze", MODEL, "--format", "json", "-o", "-")) == text
    assert succeeded(inside("analyze", MODEL, "--format", "json", "-o", "a.json")) == ""
    assert (tmp_path / "a.json").read_text() == text
    (tmp_path / "a.json").write_text("old")
    assert inside("analyze", MODEL, "--format", "json", "-o", "a.json").returncode == 2
    assert (tmp_path / "a.json").read_text() == "old"
    succeeded(inside("analyze", MODEL, "--format", "json", "-o", "a.json", "--force"))
    assert (tmp_path / "a.json").read_text() == text


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_reader_that_goes_away(form: str, model: Path, tmp_path: Path) -> None:
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    with subprocess.Popen(
        [script, "analyze", MODEL, "--format", form],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141  # neither a finding nor a pass


@pytest.mark.parametrize("name", ["a b.onnx", "-x.onnx", "[bold]x[i].onnx", "\N{SNOWMAN}.onnx"])
def test_odd_file_names(name: str, inside: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path, name)
    assert f"{name}: 13 nodes" in succeeded(inside("analyze", "--", name))


def test_file_names_that_are_no_text(memplan: Memplan, tmp_path: Path) -> None:
    name = os.fsdecode(b"n\xff.onnx")
    saved(odd.training(), tmp_path, name)
    assert json.loads(succeeded(memplan("analyze", name, "--format", "json")))
    succeeded(memplan("analyze", name, "-o", "out.txt"))
    assert "13 nodes" in (tmp_path / "out.txt").read_text()


def test_a_terminal_that_knows_only_ascii(memplan: Memplan, model: Path) -> None:
    assert "peak 6.66 KiB" in succeeded(memplan("analyze", MODEL, PYTHONIOENCODING="ascii"))


# --- colours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "environment", "colored"),
    [
        ((), {}, False),  # stdout is no terminal
        (("--color", "never"), {}, False),
        (("--color", "always"), {}, True),
        (("--color", "auto"), {"NO_COLOR": "1"}, False),
        pytest.param(
            ("--color", "never"),
            {"FORCE_COLOR": "1"},
            False,
        ),
    ],
)
def test_colors(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    colored: bool,
    memplan: Memplan,
    model: Path,
) -> None:
    text = succeeded(memplan("analyze", MODEL, *arguments, **environment))
    assert (ESCAPE in text) == colored


# --- pyproject.toml ------------------------------------------------------------------------------


def test_defaults_from_pyproject(inside: Memplan, model: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.memplan]\nsession = "default"\nbudget = "100%"\nformat = "text"\n'
        '[tool.memplan.analyze]\nformat = "json"\n'
    )
    found = json.loads(succeeded(inside("analyze", MODEL)))
    assert found["session"] == "default"
    found = json.loads(succeeded(inside("analyze", MODEL, "--session", "tuned")))
    assert found["session"] == "tuned"
    assert "peak " in succeeded(inside("analyze", MODEL, "--format", "text"))


def test_defaults_from_a_folder_above(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "deeper"
    inner.mkdir(parents=True)
    saved(odd.symbolic(), inner)
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\ndim = ["N=5"]\nformat = "json"\n')
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run(
        [script, "analyze", MODEL], cwd=inner, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["dims"] == {"N": 5}


def test_a_pyproject_of_others_changes_nothing(
    inside: Memplan, model: Path, tmp_path: Path
) -> None:
    text = succeeded(inside("analyze", MODEL))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.other]\ntop = "z"\n')
    assert succeeded(inside("analyze", MODEL)) == text


def test_one_value_for_an_option_that_takes_many(
    inside: Memplan, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\nkeep = "act"\noptimize = "none"\n')
    done = inside("rewrite", MODEL, "--budget", "100%", "--dry-run", "--format", "json")
    assert json.loads(succeeded(done))["optimize"] == "none"


# --- rewrite -------------------------------------------------------------------------------------


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
    assert found.keys() >= REWRITE_KEYS
    assert found["schema"] == "memplan.rewrite/1"
    assert integers_end_in_bytes(found)
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


def test_the_model_goes_to_stdout(model: Path, tmp_path: Path, memplan: Memplan) -> None:
    arguments = ("rewrite", MODEL, "--budget", "100%", "--optimize", "none", "-o")
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, *arguments, "-"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    assert list(tmp_path.iterdir()) == [model]
    assert succeeded(memplan(*arguments, "out.onnx", "-q")) == "out.onnx\n"
    assert (tmp_path / "out.onnx").read_bytes() == done.stdout


def test_force_replaces_an_output(inside: Memplan, model: Path, tmp_path: Path) -> None:
    (tmp_path / OUT).write_text("old")
    assert inside("rewrite", MODEL, "--budget", "100%", "-q").returncode == 2
    assert (tmp_path / OUT).read_text() == "old"
    succeeded(inside("rewrite", MODEL, "--budget", "100%", "-q", "--force"))
    onnx.checker.check_model(str(tmp_path / OUT))


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


def test_ctrl_c_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    (tmp_path / OUT).write_text("old")
    os.mkfifo(tmp_path / "costs.json")  # reading it blocks until somebody writes
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    command = [script, "rewrite", MODEL, "--budget", "100%", "--optimize", "none", "--force"]
    with subprocess.Popen(
        [*command, "--costs", "costs.json"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run in the background of a shell hands on that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        writer = _writer_of(tmp_path / "costs.json", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        os.close(writer)
    assert process.returncode == 130
    assert out == ""
    # The first, empty line ends the one on which the terminal shows ^C.
    assert err.splitlines() == ["", "error: interrupted", "hint: nothing was written"]
    assert (tmp_path / OUT).read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["costs.json", OUT, MODEL]


def _writer_of(fifo: Path, process: subprocess.Popen[str]) -> int:
    """Open the writing end, which works as soon as the program reads."""
    for _ in range(600):
        assert process.poll() is None, process.communicate()
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the program never read the costs")


# --- rewritten models on ONNX Runtime ------------------------------------------------------------


def _outputs(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(value) for value in session.run(None, feeds)]


def _same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.ort
@pytest.mark.parametrize("optimize", ["none", "extended"])
@pytest.mark.parametrize("name", [name for name in WORKING if name != "unknown_operator"])
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


@pytest.mark.ort
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


@pytest.mark.ort
def test_external_weights_stay_where_they_are(memplan: Memplan, tmp_path: Path) -> None:
    path = odd.external(tmp_path, MODEL)
    weights = (tmp_path / "weights.bin").read_bytes()
    succeeded(memplan("rewrite", MODEL, "--budget", "95%", "-o", "out.onnx"))
    assert (tmp_path / "weights.bin").read_bytes() == weights
    written = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert any(tensor.external_data for tensor in written.graph.initializer)
    feeds = feeds_of(odd.training())
    before = ort.InferenceSession(str(path), library.session_options())
    assert _same(_outputs(before, feeds), _outputs(library.load(tmp_path / "out.onnx"), feeds))


@pytest.mark.ort
def test_external_weights_in_a_folder_below(inside: Memplan, tmp_path: Path) -> None:
    odd.external(tmp_path / "model", MODEL)
    succeeded(inside("rewrite", f"model/{MODEL}", "--budget", "95%", "-o", "out.onnx", "-q"))
    feeds = feeds_of(odd.training())
    before = ort.InferenceSession(str(tmp_path / "model" / MODEL), library.session_options())
    assert _same(_outputs(before, feeds), _outputs(library.load(tmp_path / "out.onnx"), feeds))


# --- validate ------------------------------------------------------------------------------------


@pytest.mark.ort
def test_validation_as_json_and_in_words(inside: Memplan, model: Path, tmp_path: Path) -> None:
    arguments = ("rewrite", MODEL, "--budget", "6500", "--optimize", "none", "-q")
    succeeded(inside(*arguments))
    validate = ("validate", MODEL, OUT, "--runs", "1", "--no-plain")
    found = json.loads(succeeded(inside(*validate, "--format", "json")))
    assert found.keys() >= VALIDATION_KEYS
    assert found["schema"] == "memplan.validation/1"
    assert found["equality"] == "bitwise"
    assert found["max_abs_diff"] == 0
    assert found["budget_bytes"] == 6500
    assert found["within_budget"] is True
    assert found["surviving_clones"] == found["clones"]
    for which in ("original", "rewritten"):
        run = found[which]
        assert run.keys() >= RUN_KEYS
        assert integers_end_in_bytes(run)
        assert run["measured_peak_bytes"] == run["predicted_peak_bytes"]
    assert succeeded(inside(*validate, "-q", "-o", "verdict.txt")) == ""
    verdict = (tmp_path / "verdict.txt").read_text()
    assert verdict.startswith("measured peak 6,824 B -> ")
    assert verdict.count("\n") == 1


@pytest.mark.ort
def test_outputs_that_differ_are_a_finding(inside: Memplan, model: Path, tmp_path: Path) -> None:
    proto = odd.training()
    share = next(t for t in proto.graph.initializer if t.name == "share")
    share.CopyFrom(odd.constant("share", np.full((odd.BATCH, 1), 0.5)))
    saved(proto, tmp_path, "other.onnx")
    done = inside("validate", MODEL, "other.onnx", "--runs", "1", "--no-plain", "--format", "json")
    assert done.returncode == 1
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["equality"] == "different"
    assert found["max_abs_diff"] > 0
    assert any("outputs differ" in finding for finding in found["findings"])


@pytest.mark.ort
def test_inputs_from_a_file(memplan: Memplan, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((odd.BATCH, odd.WIDTH), np.float32))
    done = memplan(
        "validate", MODEL, MODEL, "--inputs", "inputs.npz", "--runs", "1", "--no-plain", "-q"
    )
    assert succeeded(done) == "measured peak 6,824 B -> 6,824 B (+0.0%), outputs bitwise\n"
