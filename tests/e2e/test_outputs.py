"""What a command may write, and what it never writes over; who chooses that."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.odd_models import saved
from helpers.processes import HANG_SECONDS
from helpers.refusals import assert_harmless, snapshot
from helpers.running import Memplan
from memplan.api.check.lock import read_lock
from memplan.errors import EXIT_USAGE, RuntimeUnavailableError
from memplan.processes.locks import updating

MODEL = "model.onnx"
REWRITE = ("rewrite", MODEL, "--budget", "100%", "--optimize", "none")

# --- Inputs ---------------------------------------------------------------------------------------

WRITERS = (
    ("analyze", MODEL),
    ("check", MODEL),
    REWRITE,
    ("grad", MODEL, "--loss", "loss"),
    ("lower", MODEL),
    ("profile", MODEL),
    ("sweep", MODEL),
    ("validate", MODEL, MODEL),
)


@pytest.mark.parametrize("arguments", WRITERS, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("name", [MODEL, "weights.bin", "hard.bin", "soft.bin"])
def test_weights_are_never_written_over(
    inside: Memplan, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    odd.external(tmp_path, MODEL)
    os.link(tmp_path / "weights.bin", tmp_path / "hard.bin")
    (tmp_path / "soft.bin").symlink_to("weights.bin")
    if arguments[0] == "check":
        assert inside("check", "--update", MODEL).returncode == 0
    words = (name, "inputs are never overwritten")
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *arguments, "-o", name, "--force")


def test_a_report_of_check_is_not_written_over_the_lock_or_what_it_names(
    inside: Memplan, tmp_path: Path
) -> None:
    odd.external(tmp_path, MODEL)
    assert inside("check", "--update", MODEL).returncode == 0
    for name in ("memplan.lock", MODEL, "weights.bin"):
        words = (name, "never overwritten")
        assert_harmless(inside, tmp_path, EXIT_USAGE, words, "check", "-o", name, "--force")


# --- Links ----------------------------------------------------------------------------------------


def test_an_output_that_is_a_link_is_followed(inside: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "real.onnx").write_bytes(b"old")
    link = tmp_path / "out.onnx"
    link.symlink_to("store/real.onnx")
    assert inside(*REWRITE, "-o", "out.onnx").returncode == EXIT_USAGE
    done = inside(*REWRITE, "-o", "out.onnx", "--force")
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert len(onnx.load(tmp_path / "store" / "real.onnx").graph.node) > 0
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_a_lock_that_is_a_link_is_updated_where_it_is(inside: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    saved(odd.training(), tmp_path, "second.onnx")
    assert inside("check", "--update", MODEL).returncode == 0
    (tmp_path / "ci").mkdir()
    (tmp_path / "memplan.lock").rename(tmp_path / "ci" / "memplan.lock")
    (tmp_path / "memplan.lock").symlink_to("ci/memplan.lock")
    assert inside("check", "--update", "second.onnx").returncode == 0
    assert (tmp_path / "memplan.lock").is_symlink()
    assert set(read_lock(tmp_path / "ci" / "memplan.lock").entries) == {MODEL, "second.onnx"}


@pytest.mark.parametrize(
    "arguments",
    [(*REWRITE, "-o", "out"), ("analyze", MODEL, "-o", "out"), ("check", "--update", MODEL)],
    ids=lambda arguments: arguments[0],
)
def test_a_link_to_nothing_is_refused_before_any_work(
    inside: Memplan, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / MODEL).write_text("not a model: nothing has been read when the link is refused")
    for name in ("out", "memplan.lock"):
        (tmp_path / name).symlink_to("gone")
    words = ("a link to", "does not exist") if arguments[0] != "check" else ("does not exist",)
    done = inside(*arguments)
    assert done.returncode in (EXIT_USAGE, 3)
    for word in words:
        assert word in done.stderr
    assert "not an ONNX model" not in done.stderr


# --- Two at once ----------------------------------------------------------------------------------


def test_two_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    names = [f"m{k}.onnx" for k in range(2)]
    for name in names:
        saved(odd.training(), tmp_path, name)
    code = "import sys; from memplan_cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "check", "--update"]
    running = [subprocess.Popen([*command, name], cwd=tmp_path) for name in names]
    assert [process.wait(timeout=HANG_SECONDS) for process in running] == [0] * len(names)
    assert set(read_lock(tmp_path / "memplan.lock").entries) == set(names)
    assert set(snapshot(tmp_path)) == {*names, "memplan.lock"}


def test_an_update_takes_the_lock_as_it_is_when_it_writes(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan.api.check import checking

    for name in ("a.onnx", "b.onnx"):
        saved(odd.training(), tmp_path, name)
    measure = checking.measure

    def slow(*arguments: object) -> object:
        monkeypatch.setattr(checking, "measure", measure)
        assert inside("check", "--update", "b.onnx").returncode == 0
        return measure(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checking, "measure", slow)
    assert inside("check", "--update", "a.onnx").returncode == 0
    assert set(read_lock(tmp_path / "memplan.lock").entries) == {"a.onnx", "b.onnx"}


def test_an_update_that_waits_too_long_says_so(tmp_path: Path) -> None:
    lock = tmp_path / "memplan.lock"
    late = pytest.raises(RuntimeUnavailableError, match="being updated by another process")
    with updating(lock), late, updating(lock, 0.0):
        pass
    with updating(lock, 0.0):
        pass
