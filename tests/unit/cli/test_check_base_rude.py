"""``check --base`` where git, the clone, the lock or the files are not as one would wish."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from helpers.branches import OF_A_HOOK, commit, git, repository, step
from helpers.running import Memplan, runner

STEP = "step.onnx"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one model on ``main``, and a branch on which it needs more."""
    folder = repository(tmp_path / "project")
    onnx.save(step(), folder / STEP)
    commit(folder)
    git(folder, "checkout", "-q", "-b", "topic")
    onnx.save(step(layers=4), folder / STEP)
    commit(folder)
    return folder


@pytest.fixture
def memplan(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name in OF_A_HOOK:
        monkeypatch.delenv(name, raising=False)
    return runner(project, monkeypatch, capfd)


def error_of(memplan: Memplan, code: int, *arguments: str) -> str:
    """The two lines of a command that fails with ``code``."""
    done = memplan("check", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    return done.stderr


def external(folder: Path, pointer: bool) -> None:
    """``step.onnx`` with its weights in another file, or a Git LFS pointer to that."""
    model = step()
    for k in range(3):
        weight = model.graph.initializer.add(name=f"w{k}", data_type=1, dims=[64, 64])
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", str(16384 * k))):
            weight.external_data.add(key=key, value=value)
    inputs = [value for value in model.graph.input if not value.name.startswith("w")]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, folder / STEP)
    data = bytes(3 * 16384)
    (folder / "weights.bin").write_bytes(pointer_to(data) if pointer else data)


def pointer_to(data: bytes) -> bytes:
    digest = hashlib.sha256(data).hexdigest()
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n"
    return text.encode()


@pytest.mark.parametrize("ref", ["-", "--output=x", "-x", "", "no-such", "main..topic", "a\nb:c"])
def test_no_such_commit(memplan: Memplan, project: Path, ref: str) -> None:
    before = sorted(os.listdir(project))
    said = error_of(memplan, 2, f"--base={ref}", STEP)
    assert "--base" in said
    assert ("is not a commit" in said) == (not ref or ref.startswith("-"))
    assert sorted(os.listdir(project)) == before


def test_a_branch_that_only_the_remote_has(memplan: Memplan, project: Path) -> None:
    git(project, "update-ref", "refs/remotes/origin/release", "main")
    assert "hint: --base origin/release" in error_of(memplan, 2, "--base", "release", STEP)


def test_no_git(memplan: Memplan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "git is not installed" in error_of(memplan, 5, "--base", "main", STEP)


def test_no_repository(memplan: Memplan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "git repository" in error_of(memplan, 2, "--base", "main", STEP)
    git(outside, "init", "-q")
    assert "no commit yet" in error_of(memplan, 2, "--base", "main", STEP)


def test_a_shallow_clone(memplan: Memplan, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        commit(project, f"more {number}")
    shallow = project.parent / "shallow"
    git(project, "clone", "-q", "--depth=1", f"file://{project}", shallow)
    monkeypatch.chdir(shallow)
    assert "fetch-depth: 0" in error_of(memplan, 5, "--base", "origin/main", STEP)
    git(shallow, "fetch", "-q", "--depth=1", "origin", "main:refs/remotes/origin/main")
    assert "fetch-depth: 0" in error_of(memplan, 5, "--base", "origin/main", STEP)


def test_no_common_history(memplan: Memplan, project: Path) -> None:
    git(project, "checkout", "-q", "--orphan", "apart")
    commit(project)
    assert "no commit in common" in error_of(memplan, 2, "--base", "main", STEP)


def test_a_dirty_tree_is_what_is_compared(memplan: Memplan, project: Path) -> None:
    onnx.save(step(layers=5), project / STEP)
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == 1
    assert "227 KiB -> 275 KiB" in done.stdout
    assert git(project, "status", "--porcelain") == f"M {STEP}"
    assert git(project, "worktree", "list").count("\n") == 0


def test_in_a_linked_worktree_and_a_subfolder(
    memplan: Memplan, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project, "worktree", "add", "-q", "../linked", "-b", "linked")
    sub = project.parent / "linked" / "sub"
    sub.mkdir()
    monkeypatch.chdir(sub)
    assert "FAIL  ../step.onnx" in memplan("check", "--base", "main", "../step.onnx").stdout


def test_locks_that_cannot_be_read(memplan: Memplan, project: Path) -> None:
    lock = project / "memplan.lock"
    memplan("check", "--update", STEP)
    good = lock.read_text()
    lock.write_text(good.replace("version = 1", "version = 2"))
    assert "hint: upgrade memplan" in error_of(memplan, 3, "--base", "main")
    lock.write_text(f"<<<<<<< HEAD\n{good}")
    commit(project)
    assert "merge conflict" in error_of(memplan, 3, "--base", "main")
    # At the base it says nothing about today.
    lock.write_text(good)
    done = memplan("check", "--base", "HEAD")
    assert done.returncode == 0
    assert "note: the lock of the base is not used: memplan.lock:1" in done.stdout


def test_no_lock_and_no_names(memplan: Memplan) -> None:
    assert "memplan check --base main MODEL..." in error_of(memplan, 3, "--base", "main")


def test_a_submodule_is_said(memplan: Memplan, project: Path) -> None:
    inner = repository(project.parent / "inner")
    onnx.save(step(), inner / STEP)
    commit(inner)
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", inner, "sub")
    commit(project)
    done = memplan("check", "--base", "HEAD", f"sub/{STEP}")
    assert done.returncode == 3
    assert "lies in the submodule sub" in done.stderr
    assert "submodule" not in memplan("check", "--base", "HEAD", STEP).stdout
    # What a lock says of it still counts, and the report says what is missing.
    memplan("check", "--update", f"sub/{STEP}")
    done = memplan("check", "--base", "HEAD")
    assert done.returncode == 0
    assert f"not compared with the base: sub/{STEP}: it lies in the submodule" in done.stdout


def test_a_broken_model_at_the_base_lets_nothing_pass(memplan: Memplan, project: Path) -> None:
    (project / STEP).write_bytes(b"\x08\x09garbage")
    commit(project)
    onnx.save(step(), project / STEP)
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == 3
    assert f"{STEP} at the base" in done.stderr
    assert "scratch" not in done.stderr
    assert str(project.parent.parent) not in done.stderr
    found = json.loads(memplan("check", "--base", "HEAD", STEP, "--format", "json").stdout)
    assert found["verdict"]["failed"] is True


def test_what_git_lost_is_no_new_model(memplan: Memplan, project: Path) -> None:
    """As in a partial clone that cannot fetch: the name is there, the content is not."""
    oid = git(project, "rev-parse", f"main:{STEP}")
    (project / ".git/objects" / oid[:2] / oid[2:]).unlink()
    done = memplan("check", "--base", "main", STEP)
    assert done.returncode == 5
    assert f"git cannot read a file of the base: the content of {STEP} is missing" in done.stderr
    # What a lock says of it still counts, and the report says what is missing.
    memplan("check", "--update", STEP)
    done = memplan("check", "--base", "main")
    assert done.returncode == 0
    assert f"not compared with the base: {STEP}: git cannot read" in done.stdout


def test_a_size_that_only_the_base_needs(memplan: Memplan, project: Path) -> None:
    onnx.save(step(batch="N"), project / STEP)
    commit(project)
    onnx.save(step(), project / STEP)
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == 3
    assert "hint: --dim N=..." in done.stderr


def test_links_are_followed_inside_the_repository(memplan: Memplan, project: Path) -> None:
    (project / "link.onnx").symlink_to(STEP)
    (project / "astray.onnx").symlink_to("../elsewhere.onnx")
    shutil.copy(project / STEP, project.parent / "elsewhere.onnx")
    commit(project)
    done = memplan("check", "--base", "HEAD", "link.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    done = memplan("check", "--base", "HEAD", "astray.onnx")
    assert done.returncode == 3
    assert "leads out of what is committed" in done.stderr


LARGER = "227 KiB -> 275 KiB"


def test_links_of_the_base_are_its_own(memplan: Memplan, project: Path) -> None:
    """What a folder or a file leads to today says nothing about where it led."""
    for name, layers in (("v1", 4), ("v2", 5)):
        (project / name).mkdir()
        onnx.save(step(layers=layers), project / name / "x.onnx")
    (project / "models").symlink_to("v1")
    (project / "deep").mkdir()
    (project / "deep/chain").symlink_to("../models/../models")
    (project / "..dots.onnx").symlink_to("v1/x.onnx")
    shutil.copy(project / "v1/x.onnx", project / "v1/..dots.onnx")
    commit(project)
    (project / "models").unlink()
    (project / "models").symlink_to("v2")
    for path in ("models/x.onnx", "deep/chain/x.onnx", "deep/../models/x.onnx"):
        done = memplan("check", "--base", "HEAD", path)
        assert (done.returncode, LARGER in done.stdout) == (1, True), done.stdout + done.stderr
    done = memplan("check", "--base", "HEAD", "..dots.onnx", "v1/..dots.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    # A folder in place of the link, at a path that leads to the repository from outside.
    (project / "models").unlink()
    (project / "models").mkdir()
    onnx.save(step(layers=5), project / "models/x.onnx")
    (project.parent / "outside").symlink_to(project)
    for path in ("models/x.onnx", project.parent / "outside/models/x.onnx"):
        done = memplan("check", "--base", "HEAD", path)
        assert (done.returncode, LARGER in done.stdout) == (1, True), done.stdout + done.stderr


def test_git_is_asked_for_many_names_at_once(memplan: Memplan, project: Path) -> None:
    """Each is answered for itself, whatever it is called and whatever stands there."""
    names = ["a b.onnx", "line\nend.onnx", "line\nend.onnx missing", "new\n.onnx", STEP, "zz.onnx"]
    for name in names[:3]:
        onnx.save(step(), project / name)
    (project / "link").symlink_to("nothing here")
    commit(project)
    for name in names:
        onnx.save(step(layers=4), project / name)
    found = json.loads(memplan("check", "--base", "HEAD", *names, "--format", "json").stdout)
    statuses = [entry["status"] for entry in found["entries"]]
    assert statuses == ["regressed", "regressed", "regressed", "new", "ok", "new"]
    (project / "link").unlink()
    shutil.copy(project / STEP, project / "link")
    done = memplan("check", "--base", "HEAD", "link", *names)
    assert done.returncode == 3
    assert "error: link at the base" in done.stderr
    assert done.stdout.count("regressed") == 1


@pytest.mark.parametrize("target", ["/", "..", "../..", "models", "a/../../x", "/etc", "round"])
def test_a_folder_of_the_base_that_leads_nowhere_is_refused(
    memplan: Memplan, project: Path, target: str
) -> None:
    (project / "models").symlink_to(target)
    (project / "round").symlink_to("models")
    commit(project)
    (project / "models").unlink()
    (project / "models").mkdir()
    onnx.save(step(), project / "models/x.onnx")
    done = memplan("check", "--base", "HEAD", "models/x.onnx")
    assert done.returncode == 3
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: models/x.onnx at the base, ")
    assert said.endswith("a link that leads out of what is committed, or in a circle")


@pytest.mark.parametrize("pointer", [False, True])
def test_weights_in_other_files_need_not_be_fetched(
    memplan: Memplan, project: Path, pointer: bool
) -> None:
    external(project, pointer)
    commit(project)
    git(project, "branch", "-f", "main")
    external(project, pointer=False)
    onnx_file = onnx.load(project / STEP, load_external_data=False)
    onnx_file.doc_string = "another file, the same step"
    onnx.save(onnx_file, project / STEP)
    done = memplan("check", "--base", "main", STEP)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ok  {STEP}")


@pytest.mark.parametrize("fetched", [True, False])
def test_git_lfs_is_asked(
    memplan: Memplan,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fetched: bool,
) -> None:
    data = (project / STEP).read_bytes()
    (tmp_path / "large").write_bytes(data if fetched else b"")
    (project / STEP).write_bytes(pointer_to(data))
    (project / ".gitattributes").write_text("*.onnx filter=lfs\n")
    commit(project)
    onnx.save(step(layers=5), project / STEP)
    tool = tmp_path / "bin" / "git-lfs"
    tool.parent.mkdir()
    answer = f"cat {tmp_path / 'large'}" if fetched else "echo no network >&2; exit 2"
    tool.write_text(f"#!/bin/sh\n[ $1 = smudge ] && {answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    # As ``git lfs install --local`` sets it up.
    git(project, "config", "filter.lfs.smudge", "git-lfs smudge -- %f")
    git(project, "config", "filter.lfs.required", "true")
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == (1 if fetched else 3)
    assert ("227 KiB -> 275 KiB" in done.stdout) == fetched
    # Of a model that is gone, nothing has to be known.
    (project / STEP).unlink()
    done = memplan("check", "--base", "HEAD", STEP)
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["removed", STEP])


def test_a_model_in_git_lfs(memplan: Memplan, project: Path) -> None:
    data = (project / STEP).read_bytes()
    (project / STEP).write_bytes(pointer_to(data))
    commit(project)
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == 3
    assert "hint: fetch it: git lfs pull" in done.stderr
    onnx.save(step(layers=5), project / STEP)
    done = memplan("check", "--base", "HEAD", STEP)
    assert done.returncode == 3
    assert "is kept in Git LFS and was not fetched" in done.stderr
    assert "hint: git lfs install; git lfs fetch origin" in done.stderr


PLACES = ("../../gone", "/tmp/gone", "a/../../gone", "memplan-base.onnx", "x/../memplan-base.onnx")


@pytest.mark.parametrize(
    ("location", "offset"),
    [
        *((place, "0") for place in (*PLACES, "a\0b")),
        *((PLACES[0], offset) for offset in ("-1", "9" * 30, "x")),
    ],
)
def test_a_base_writes_nothing_outside_its_folder(
    memplan: Memplan, project: Path, location: str, offset: str
) -> None:
    good = (project / STEP).read_bytes()
    external(project, pointer=False)
    model = onnx.load(project / STEP, load_external_data=False)
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            item.value = location if item.key == "location" else offset
    onnx.save(model, project / STEP)
    commit(project)
    (project / STEP).write_bytes(good)
    before = sorted(project.parent.rglob("*"))
    done = memplan("check", "--base", "HEAD", STEP)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert f"error: {STEP} at the base" in done.stderr
    assert sorted(project.parent.rglob("*")) == before
