"""``memplan check`` as a CI job runs it: real models, a lock, exit codes and exact commands."""

import json
import os
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from helpers.models import SAMPLES
from helpers.running import Memplan
from memplan.units import parse_size
from memplan_cli.main import main

MLP, GPT = "models/mlp_adamw.onnx", "models/gpt_dynamic.onnx"
STASH_BYTES = 8192 * 512 * 4  # what one of the 512-wide activations of the MLP takes


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one of them with a symbolic batch, and their lock: made once."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "models").mkdir()
    for name in (MLP, GPT):
        shutil.copy(SAMPLES / Path(name).name, folder / name)
    with chdir(folder):
        assert main(["check", "--update", MLP, GPT, "--dim", "N=8", "-q"]) == 0
    return folder


@pytest.fixture
def project(recorded: Path, tmp_path: Path) -> Path:
    """A folder with the two models."""
    shutil.copytree(recorded / "models", tmp_path / "models")
    return tmp_path


@pytest.fixture
def locked(recorded: Path, project: Path) -> Path:
    """The same with the lock."""
    shutil.copy(recorded / "memplan.lock", project)
    return project


def stash_more(file: Path, activation: str = "gelu", count: int = 3) -> None:
    """Make the model keep ``count`` more tensors from forward for the end of backward."""
    model = onnx.load(file)
    graph = model.graph
    place = next(k for k, node in enumerate(graph.node) if activation in node.output)
    for k in range(count):
        kept = helper.make_node("Exp", [activation], [f"extra_{k}"], name=f"extra_exp_{k}")
        graph.node.insert(place + 1, kept)
        graph.node.append(helper.make_node("Mul", [f"extra_{k}", "loss"], [f"probe_scaled_{k}"]))
        graph.node.append(
            helper.make_node("ReduceSum", [f"probe_scaled_{k}"], [f"probe_sum_{k}"], keepdims=0)
        )
        graph.output.append(
            helper.make_tensor_value_info(f"probe_sum_{k}", onnx.TensorProto.FLOAT, [])
        )
    # Without a seal, as what an edited file says under one is not believed.
    kept = {p.key: p.value for p in model.metadata_props if p.key != "memplan.seal"}
    helper.set_model_props(model, kept)
    onnx.save(model, file)


def entry_of(inside: Memplan, path: str, *options: str | Path) -> dict[str, Any]:
    found = json.loads(inside("check", "--format", "json", *options).stdout)
    assert found["schema"] == "memplan.check/1"
    return next(entry for entry in found["entries"] if entry["path"] == path)


def command_in(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{label}:"))
    words = shlex.split(line.split(":", 1)[1].split("   (")[0])
    assert words[0] == "memplan"
    return words[1:]


def test_update_records_and_check_agrees(project: Path, program: Memplan, inside: Memplan) -> None:
    done = program("check", "--update", MLP, GPT, "--dim", "N=8")
    assert done.returncode == 0, done.stderr
    assert f"added  {MLP}" in done.stdout
    assert "N=8" in next(line for line in done.stdout.splitlines() if GPT in line)
    text = (project / "memplan.lock").read_text()
    assert text.index(GPT) < text.index(MLP)
    assert str(project) not in text

    done = program("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\nok  ") + done.stdout.startswith("ok  ") == 2
    analysis = json.loads(inside("analyze", MLP, "--format", "json").stdout)
    entry = entry_of(inside, MLP)
    assert entry["status"] == "ok"
    assert entry["locked_peak_bytes"] == entry["peak_bytes"] == analysis["peak_bytes"]
    assert entry["delta_bytes"] == 0


def test_lock_is_deterministic_and_left_alone(locked: Path, inside: Memplan) -> None:
    lock = locked / "memplan.lock"
    first, stamp = lock.read_bytes(), lock.stat().st_mtime_ns
    done = inside("check", "--update")
    assert done.returncode == 0
    assert done.stdout.count("unchanged  ") == 2
    assert (lock.read_bytes(), lock.stat().st_mtime_ns) == (first, stamp)
    lock.unlink()
    inside("check", "--update", GPT, "--dim", "N=8")
    inside("check", "--update", MLP)
    assert lock.read_bytes() == first


def test_regression_is_explained_and_its_commands_work(
    locked: Path, program: Memplan, inside: Memplan
) -> None:
    before = entry_of(inside, MLP)["peak_bytes"]
    stash_more(locked / MLP)
    done = program("check")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    after = before + 3 * STASH_BYTES
    header = (locked / "memplan.lock").read_text().split("\n").index(f'[models."{MLP}"]') + 1
    fail = next(line for line in lines if line.startswith("FAIL"))
    assert fail.startswith(f"FAIL  {MLP}  peak +48.0 MiB (+19.3%)   249 MiB -> 297 MiB")
    assert fail.endswith(f"limit 249 MiB (memplan.lock:{header})")
    assert any(line.split()[:1] == ["stash"] and line.endswith("+48.0 MiB") for line in lines)
    assert "why: 3 more tensors stay live into backward" in done.stdout
    assert any(line.split()[:4] == ["+", "extra*", "3", "x"] for line in lines)
    assert lines[-1] == "1 of 2 models regressed"
    assert lines[0] == fail
    assert lines[-2].startswith(f"ok  {GPT}")

    entry = entry_of(inside, MLP)
    assert entry["status"] == "regressed"
    assert (entry["locked_peak_bytes"], entry["peak_bytes"]) == (before, after)
    assert (entry["delta_bytes"], entry["line"]) == (3 * STASH_BYTES, header)

    fit = command_in(done.stdout, "fit")
    assert fit[:2] == ["rewrite", MLP]
    assert parse_size(fit[fit.index("--budget") + 1]).nbytes == before
    assert inside(*command_in(done.stdout, "accept")).returncode == 0
    assert inside("check").returncode == 0
    assert entry_of(inside, MLP)["locked_peak_bytes"] == after


def test_improvement_passes_and_proposes_the_update(locked: Path, inside: Memplan) -> None:
    stash_more(locked / MLP)
    inside("check", "--update", MLP)
    shutil.copy(SAMPLES / "mlp_adamw.onnx", locked / MLP)
    done = inside("check", MLP)
    assert done.returncode == 0
    assert done.stdout.startswith(f"improved  {MLP}  peak -48.0 MiB")
    assert f"memplan check --update {MLP}" in done.stdout
    assert entry_of(inside, MLP)["status"] == "improved"


def test_tolerance_is_kept_and_honoured(locked: Path, inside: Memplan) -> None:
    lock = locked / "memplan.lock"
    stash_more(locked / MLP)
    for tolerance, code in (("48MiB", 0), ("19%", 1)):
        text = lock.read_text()
        lock.write_text(text + f'tolerance = "{tolerance}"\n')  # the last table is the MLP's
        done = inside("check")
        assert done.returncode == code, tolerance
        assert ("within the tolerance" in done.stdout) == (code == 0)
        lock.write_text(text)
    lock.write_text(lock.read_text() + 'tolerance = "1%"\n')
    assert inside("check", "--update").returncode == 0
    assert lock.read_text().endswith('tolerance = "1%"\n')
    assert inside("check").returncode == 0


def test_orphan_and_missing_fail_with_their_commands(locked: Path, inside: Memplan) -> None:
    shutil.copy(SAMPLES / "unet.onnx", locked / "models/unet.onnx")
    done = inside("check", "models/unet.onnx")
    assert done.returncode == 1
    assert "is not in memplan.lock" in done.stdout
    orphan = entry_of(inside, "models/unet.onnx", "models/unet.onnx")
    assert (orphan["status"], orphan["locked_peak_bytes"]) == ("orphan", None)
    assert orphan["peak_bytes"] > 0
    assert inside(*command_in(done.stdout, "accept")).returncode == 0
    assert inside("check", "models/unet.onnx").returncode == 0

    (locked / "models/unet.onnx").unlink()
    done = inside("check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 of 3 models missing"
    missing = entry_of(inside, "models/unet.onnx")
    assert (missing["status"], missing["peak_bytes"]) == ("missing", None)
    assert inside(*command_in(done.stdout, "accept")).returncode == 0
    assert "unet" not in (locked / "memplan.lock").read_text()
    assert inside("check").returncode == 0


def test_an_orphan_without_its_batch_size_says_how_to_add_it(
    project: Path, inside: Memplan
) -> None:
    assert inside("check", "--update", MLP).returncode == 0
    done = inside("check", GPT)
    assert done.returncode == 1
    assert command_in(done.stdout, "accept")[-2:] == ["--dim", "N=..."]
    refused = inside("check", "--update", GPT)
    assert refused.returncode == 3
    assert "dimension 'N'" in refused.stderr
    assert "--dim N=..." in refused.stderr


def test_update_never_drops_all_models_unasked(locked: Path, inside: Memplan) -> None:
    before = (locked / "memplan.lock").read_bytes()
    shutil.rmtree(locked / "models")
    done = inside("check", "--update")
    assert done.returncode == 3
    assert "none of the models" in done.stderr
    assert (locked / "memplan.lock").read_bytes() == before


def test_another_memory_model_is_no_regression(locked: Path, inside: Memplan) -> None:
    lock = locked / "memplan.lock"
    lock.write_text(lock.read_text().replace("\naccounting = ", "\naccounting = 9"))
    stash_more(locked / MLP)
    done = inside("check")
    assert done.returncode == 0
    assert done.stdout.count("accounting-changed") == 2
    assert f"memplan check --update {MLP}" in done.stdout
    assert entry_of(inside, MLP)["status"] == "accounting-changed"
    assert inside("check", "--update").returncode == 0
    assert "accounting-changed" not in inside("check").stdout


def test_max_peak_is_a_cap_for_all(locked: Path, inside: Memplan) -> None:
    peak = entry_of(inside, MLP)["peak_bytes"]
    assert inside("check", "--max-peak", str(peak)).returncode == 0
    done = inside("check", "--max-peak", str(peak - 1))
    assert done.returncode == 1
    assert f"max peak {peak - 1} = {peak - 1:,} B" in done.stdout
    assert "(--max-peak), exceeded by 1 B" in done.stdout
    assert f"--budget {peak - 1}" in done.stdout
    assert "accept:" not in done.stdout  # recording it would not help
    lock = (locked / "memplan.lock").read_bytes()
    refused = inside("check", "--update", "--max-peak", "100MB", "--session", "default")
    assert refused.returncode == 1
    assert (locked / "memplan.lock").read_bytes() == lock
    for size in ("80%", "4G", "0", "x"):
        assert inside("check", "--max-peak", size).returncode == 2


def test_recorded_session_and_dims_are_used(project: Path, inside: Memplan) -> None:
    inside("check", "--update", GPT, "--dim", "N=8", "--session", "default")
    entry = entry_of(inside, GPT)
    expected = json.loads(
        inside("analyze", GPT, "--dim", "N=8", "--session", "default", "--format", "json").stdout
    )
    assert entry["peak_bytes"] == expected["peak_bytes"]
    assert (entry["session"], entry["dims"]) == ("default", {"N": 8})
    assert inside("check").returncode == 0
    for options in (("--session", "tuned"), ("--dim", "N=16"), ("--dim", "M=1")):
        refused = inside("check", *options)
        assert refused.returncode == 2, refused.stderr
        assert refused.stdout == ""
    hint = inside("check", "--session", "tuned").stderr.split("record the model with it: ")[1]
    assert inside(*shlex.split(hint)[1:]).returncode == 0
    assert inside("check", "--session", "tuned").returncode == 0


def test_no_lock(project: Path, inside: Memplan) -> None:
    for arguments in ((), (MLP,), ("--update",)):
        done = inside("check", *arguments)
        assert done.returncode == 3
        assert "hint: record models: memplan check --update MODEL..." in done.stderr
    assert os.listdir(project) == ["models"]
    (project / "memplan.lock").write_text("version = 1\n")
    assert "holds no models" in inside("check").stderr


def test_unreadable_models_come_after_the_others(locked: Path, inside: Memplan) -> None:
    lock = (locked / "memplan.lock").read_bytes()
    stash_more(locked / MLP)
    (locked / GPT).write_bytes(b"\x08\x09garbage")
    done = inside("check")
    assert done.returncode == 3
    assert f"FAIL  {MLP}" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 of 2 models regressed, 1 could not be read"
    assert f"error: {GPT} is not an ONNX model" in done.stderr
    found = json.loads(inside("check", "--format", "json").stdout)
    assert [entry["path"] for entry in found["entries"]] == [MLP]
    assert [error["path"] for error in found["errors"]] == [GPT]
    done = inside("check", "--update")
    assert done.returncode == 3
    assert "memplan.lock was not changed" in done.stdout
    assert (locked / "memplan.lock").read_bytes() == lock


def test_a_lock_elsewhere_and_odd_names(project: Path, inside: Memplan) -> None:
    odd = 'models/my "odd" \\ 模型\'.onnx'
    shutil.copy(SAMPLES / "mlp_adamw.onnx", project / odd)
    (project / "ci").mkdir()
    assert inside("check", "--lock", "ci/peaks.lock", "--update", odd).returncode == 0
    assert inside("check", "--lock", "ci/peaks.lock", project / odd).returncode == 0
    entry = entry_of(inside, f"../{odd}", "--lock", "ci/peaks.lock")
    assert entry["status"] == "ok"
    stash_more(project / odd)
    done = inside("check", "--lock", project / "ci/peaks.lock")
    assert done.returncode == 1
    assert str(project) not in done.stdout
    assert "(ci/peaks.lock:5)" in done.stdout
    assert inside(*command_in(done.stdout, "accept")).returncode == 0
    assert inside("check", "--lock", "ci/peaks.lock").returncode == 0


def test_output_options(locked: Path, inside: Memplan) -> None:
    assert inside("check", "-q").stdout == ""
    assert "weights" in inside("check", "-v").stdout
    assert "\x1b[" not in inside("check").stdout
    colored = inside("check", "--color", "always").stdout
    assert "\x1b[32m" in colored
    assert inside("check", "-o", "report.txt").stdout == ""
    assert inside("check", "-o", "report.txt").returncode == 2
    assert inside("check", "-o", "report.txt", "--format", "json", "--force").returncode == 0
    assert json.loads((locked / "report.txt").read_text())["entries"]
    stash_more(locked / MLP)
    quiet = inside("check", "-q")
    assert quiet.returncode == 1
    assert quiet.stdout.startswith(f"FAIL  {MLP}")
    updated = json.loads(inside("check", "--update", "--format", "json").stdout)
    changes = {entry["path"]: (entry["change"], entry["status"]) for entry in updated["entries"]}
    assert changes == {MLP: ("changed", "ok"), GPT: ("unchanged", "ok")}
    assert updated["updated"] is True
