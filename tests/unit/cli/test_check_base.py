"""``check --base``: two branches of a scratch repository, every kind of change, every format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from helpers.branches import OF_A_HOOK, commit, git, repository, step, two_heads
from helpers.renaming import renamed
from helpers.running import Memplan, runner
from memplan_cli.check import FORMATS

STEP = "models/step.onnx"
FIRST_LINES = 12
# What the branches have, by arguments of `step`; a flag for `two_heads`.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "stash": ({"layers": 4}, "more tensors stay live into backward"),
    "dtype": ({"dtype": "double"}, "wider element type: float32 -> float64"),
    "fusion": ({"fused": False}, "fusion lost: 3 LayerNormalization became"),
    "order": ({}, "another order: the same nodes"),
    "batch": ({"batch": 128}, "larger batch: 64 -> 128 in x"),
}


def both(change: str) -> tuple[onnx.ModelProto, onnx.ModelProto, str]:
    """The model on either branch, and the cause that is to be named."""
    options, cause = CHANGES[change]
    if change == "order":
        return two_heads(together=False), two_heads(together=True), cause
    return step(), step(**options), cause


@pytest.fixture
def memplan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    for name in OF_A_HOOK:
        monkeypatch.delenv(name, raising=False)
    return runner(repository(tmp_path), monkeypatch, capfd)


def branch(folder: Path, before: onnx.ModelProto, after: onnx.ModelProto | None) -> None:
    """``main`` has one model, the branch that is checked out another."""
    (folder / "models").mkdir(exist_ok=True)
    onnx.save(before, folder / STEP)
    commit(folder)
    git(folder, "checkout", "-q", "-b", "topic")
    if after is not None:
        onnx.save(after, folder / STEP)
        commit(folder)


def first_lines(text: str) -> str:
    """The head of an output, as people read it."""
    head = "\n".join(text.splitlines()[:FIRST_LINES])
    for escaped, plain in (("→", "->"), ("&gt;", ">"), ("\\u2192", "->")):
        head = head.replace(escaped, plain)
    return head


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_named_in_every_format(
    tmp_path: Path, memplan: Memplan, change: str
) -> None:
    before, after, cause = both(change)
    branch(tmp_path, before, after)
    reports = [f"--report={form}={form}.out" for form in FORMATS]
    done = memplan("check", "--base", "main", STEP, *reports)
    assert (done.returncode, done.stderr) == (1, "")
    for form in FORMATS:
        head = first_lines((tmp_path / f"{form}.out").read_text())
        assert cause in head, f"{form}: {head}"
        assert "step" in head
    assert done.stdout == (tmp_path / "text.out").read_text()


def test_another_exporter_is_no_regression(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(), renamed(step()))
    for form in FORMATS:
        assert memplan("check", "--base", "main", STEP, "--format", form).returncode == 0
    assert memplan("check", "--base", "main", STEP).stdout.startswith(f"ok  {STEP}  peak 178 KiB")
    assert "1 model unchanged" in memplan("check", "--base=main", STEP, "--format=markdown").stdout


def test_a_renamed_model_that_grew_blames_what_came(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(), renamed(step(layers=4)))
    assert "4 more tensors stay live" in memplan("check", "--base", "main", STEP).stdout


def test_locked_base_and_now_stand_in_one_table(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(layers=4), None)
    onnx.save(step(), tmp_path / STEP)
    memplan("check", "--update", STEP)
    commit(tmp_path)
    onnx.save(step(layers=5), tmp_path / STEP)
    done = memplan("check", "--base", "main")
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["class", "locked", "base", "now", "delta"] in rows
    (peak,) = [row for row in rows if row[:1] == ["peak"]]
    assert peak == ["peak", *["178", "KiB", "227", "KiB", "275", "KiB", "+97.0", "KiB"]]
    found = json.loads(memplan("check", "--base", "main", "--format", "json").stdout)
    assert found["base"] == {"ref": "main", "commit": git(tmp_path, "rev-parse", "main")}
    (entry,) = found["entries"]
    assert entry["locked_peak_bytes"] < entry["base_peak_bytes"] < entry["peak_bytes"]


def test_what_the_lock_accepts_passes_and_is_told(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(), step(layers=4))
    memplan("check", "--update", STEP)
    done = memplan("check", "--base", "main")
    assert done.returncode == 0
    assert "+48.5 KiB since the base (178 KiB), as in the lock" in done.stdout
    table = memplan("check", "--base", "main", "--format", "markdown").stdout
    assert table.startswith(
        "**memplan: 1 of 1 model needs more memory, as the lock allows** · step +48.5 KiB (+27.2%)"
    )
    assert "+48.5 KiB (+27.2%) since the base, as locked" in table


def test_a_lock_of_another_memory_model_leaves_it_to_the_base(
    tmp_path: Path, memplan: Memplan
) -> None:
    branch(tmp_path, step(), step(layers=4))
    git(tmp_path, "checkout", "-q", "main")
    memplan("check", "--update", STEP)
    lock = tmp_path / "memplan.lock"
    lock.write_text(lock.read_text().replace("\naccounting = ", "\naccounting = 9"))
    git(tmp_path, "checkout", "-q", "topic")
    assert memplan("check").returncode == 0
    done = memplan("check", "--base", "main")
    assert done.returncode == 1
    assert "limit 178 KiB (at the merge-base with main" in done.stdout
    assert "another memory model or runtime: not compared" in done.stdout


def test_models_that_one_side_has(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(), None)
    memplan("check", "--update", STEP)
    commit(tmp_path)
    git(tmp_path, "branch", "-f", "main")
    git(tmp_path, "mv", STEP, "models/other.onnx")
    (tmp_path / "memplan.lock").unlink()
    done = memplan("check", "--base", "main", STEP, "models/other.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("new  models/other.onnx  peak 178 KiB")
    assert done.stdout.splitlines()[1].startswith(f"removed  {STEP}  it was there at the merge")
    # Without names, the lock of the base says which models there are.
    assert memplan("check", "--base", "main").stdout.startswith(f"removed  {STEP}")


def test_what_others_did_since_is_not_counted(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(layers=4), None)
    git(tmp_path, "checkout", "-q", "main")
    onnx.save(step(), tmp_path / STEP)
    commit(tmp_path, "an improvement on main")
    git(tmp_path, "checkout", "-q", "topic")
    assert memplan("check", "--base", "main", STEP).returncode == 0


def test_sizes_of_the_lock_on_each_side(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(batch="N"), None)
    memplan("check", "--update", STEP, "--dim", "N=64")
    commit(tmp_path)
    git(tmp_path, "branch", "-f", "main")
    memplan("check", "--update", STEP, "--dim", "N=128")
    found = json.loads(memplan("check", "--base", "main", "--format", "json").stdout)["entries"][0]
    assert (found["status"], found["base_peak_bytes"], found["peak_bytes"]) == (
        "ok",
        182312,
        315176,
    )


def test_the_cap_holds_for_new_models_too(tmp_path: Path, memplan: Memplan) -> None:
    branch(tmp_path, step(), None)
    onnx.save(step(), tmp_path / "new.onnx")
    done = memplan("check", "--base", "main", "new.onnx", "--max-peak", "100KiB")
    assert done.returncode == 1
    assert "limit 100 KiB (--max-peak), exceeded by 78.1 KiB" in done.stdout
    options = ("check", "--base", "main", "new.onnx", "--max-peak", "100KiB")
    text = memplan(*options, "--format", "markdown").stdout
    assert text.startswith("**memplan: 1 of 1 model above --max-peak**\n")
    assert "**78.1 KiB above --max-peak**" in text


@pytest.mark.slow
def test_a_plain_session_gets_the_weights_of_the_base(tmp_path: Path, memplan: Memplan) -> None:
    model = step()
    names = [value.name for value in model.graph.input if value.name.startswith("w")]
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name in names:
        ones = np.ones((64, 64), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(ones, name))
    (tmp_path / "models").mkdir()
    onnx.save_model(
        model, tmp_path / STEP, save_as_external_data=True, location="step.data", size_threshold=0
    )
    commit(tmp_path)
    onnx.save(step(layers=4), tmp_path / STEP)
    (tmp_path / "models/step.data").unlink()
    done = memplan("check", "--base", "HEAD", STEP, "--session", "default")
    assert (done.returncode, done.stderr) == (1, "")
    assert "--session default" in done.stdout
