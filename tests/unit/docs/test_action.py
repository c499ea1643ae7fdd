"""``action.yml`` and the hook of docs/ci.md: their steps are run as GitHub runs them, in a scratch
repository."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from helpers.branches import OF_A_HOOK, commit, git, repository, step

yaml: Any = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def run_check(folder: Path, **given: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The step ``check`` with some inputs, in ``folder``; and the folder of what it wrote."""
    temp = folder.parent / "temp"
    (temp / "memplan-venv/bin").mkdir(parents=True, exist_ok=True)
    for name, text in {
        "memplan": "from memplan_cli.main import run\nrun()\n",
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }.items():
        (temp / "memplan-venv/bin" / name).write_text(text, encoding="utf-8")
        (temp / "memplan-venv/bin" / name).chmod(0o755)
    (check,) = (s for s in ACTION["runs"]["steps"] if s.get("id") == "check")
    inputs = {name: value["default"] for name, value in ACTION["inputs"].items()} | given
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    asked = {name: values[EXPRESSION.fullmatch(v)[1]] for name, v in check["env"].items()}  # type: ignore[index]
    asked |= {name: value for name, value in given.items() if name.isupper()}
    return run_step(check, folder, temp, asked), temp


def run_step(
    step: Mapping[str, Any], folder: Path, temp: Path, asked: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A step as GitHub runs it, in ``folder``."""
    environment = {
        **{name: value for name, value in os.environ.items() if name not in OF_A_HOOK},
        "RUNNER_TEMP": str(temp),
        "GITHUB_STEP_SUMMARY": str(temp / "summary.md"),
        "GITHUB_OUTPUT": str(temp / "output"),
        "GITHUB_ACTIONS": "true",
        **asked,
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def outputs(temp: Path) -> Mapping[str, str]:
    """What a step gives to those behind it."""
    lines = (temp / "output").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    """A repository in which a branch makes the model larger than ``origin/main`` has it."""
    folder = tmp_path / "work"
    folder.mkdir()
    repository(folder)
    onnx.save(step(), folder / "step.onnx")
    commit(folder)
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "checkout", "-q", "-b", "topic")
    onnx.save(step(layers=4), folder / "step.onnx")
    commit(folder)
    return folder


@pytest.mark.slow
def test_a_regression_fails_the_step_where_a_reviewer_looks(topic: Path) -> None:
    done, temp = run_check(topic, models="step.onnx", GITHUB_BASE_REF="main")
    assert done.returncode == 1, done.stderr
    (properties, message) = re.findall(r"^::error (.*?)::(.*)$", done.stdout, re.MULTILINE)[0]
    assert dict(each.split("=", 1) for each in properties.split(","))["file"]
    assert "%0A" in message
    assert "FAIL  step.onnx" in done.stdout
    summary = (temp / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("**memplan: 1 of 1 model needs more memory**")
    written = outputs(temp)
    assert (written["exit-code"], written["failed"], written["regressed"]) == ("1", "true", "1")
    assert Path(outputs(temp)["report"]).read_text(encoding="utf-8") == summary


@pytest.mark.slow
def test_what_does_not_grow_passes(topic: Path) -> None:
    git(topic, "checkout", "-q", "-f", "-B", "topic", "origin/main")
    done, temp = run_check(topic, models="step.onnx", GITHUB_BASE_REF="main")
    assert done.returncode == 0, done.stderr
    assert "::error" not in done.stdout
    written = outputs(temp)
    assert (written["exit-code"], written["failed"], written["regressed"]) == ("0", "false", "0")


@pytest.mark.slow
def test_a_check_that_cannot_be_made_says_why(topic: Path) -> None:
    done, temp = run_check(topic, lock="gone%.lock", base="none")
    assert done.returncode == 3
    assert "error: lock gone%.lock does not exist\nhint: " in done.stderr
    assert "::error title=memplan::error: lock gone%25.lock does not exist%0Ahint: " in done.stdout
    summary = (temp / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("**memplan could not compare**\n\n    error: lock gone%.lock")
    written = outputs(temp)
    assert (written["exit-code"], written["failed"], written["regressed"]) == ("3", "true", "")


@pytest.mark.slow
def test_inputs_are_values_and_never_text_of_a_script(topic: Path) -> None:
    """By construction, and tried."""
    for each in ACTION["runs"]["steps"]:
        assert not EXPRESSION.search(each["run"])
    hostile = "$(touch owned)`touch owned`;touch owned"
    for name in ("models", "lock", "base", "args"):
        done, _ = run_check(topic, **{"models": "step.onnx", "base": "none", name: hostile})
        assert done.returncode in (2, 3, 5), done.stdout + done.stderr
    assert not list(topic.rglob("owned"))
    done, _ = run_check(topic, models="--update")
    assert done.returncode != 0
    assert not (topic / "memplan.lock").exists(), "a model's name was taken for an option"


@pytest.mark.slow
def test_further_options_come_one_per_line(topic: Path) -> None:
    done, _ = run_check(topic, models="step.onnx", base="main\n", args="--max-peak\n1kB\n")
    assert done.returncode == 2, "a base is one line"
    done, _ = run_check(topic, models="step.onnx", base="HEAD", args="--max-peak\n1kB\n")
    assert done.returncode == 1
    assert "(--max-peak)" in done.stdout


OF_A_CHECKOUT = ("json", "logging", "venv", "ensurepip", "pip", "memplan", "onnx", "numpy")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["module", "package"])
def test_no_module_of_the_checkout_is_run(topic: Path, kind: str, tmp_path: Path) -> None:
    """Not by the steps, nor by the children of memplan; whatever the workflow sets."""
    for name in (*OF_A_CHECKOUT, "sitecustomize", "usercustomize"):
        file = topic / (f"{name}.py" if kind == "module" else f"{name}/__init__.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(tmp_path / 'owned')!r}, 'a').write('{name} ')\n")
    wheel = package(tmp_path)
    variables = {"PYTHONPATH": ".", "PYTHONSTARTUP": "json.py"}
    install, _ = ACTION["runs"]["steps"]
    source = {"MEMPLAN_SOURCE": str(wheel), **variables}
    done = run_step(install, topic, tmp_path / "install", source)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "install").rglob("memplan_of_a_test.py"))
    done, temp = run_check(topic, models="step.onnx", GITHUB_BASE_REF="main", **variables)
    assert done.returncode == 1, done.stderr
    assert outputs(temp)["regressed"] == "1"
    assert not (tmp_path / "owned").exists(), (tmp_path / "owned").read_text()


def package(folder: Path) -> Path:
    """A wheel that needs nothing, to stand for memplan."""
    file, about = folder / "memplan_of_a_test-1-py3-none-any.whl", "memplan_of_a_test-1.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("memplan_of_a_test.py", "")
        named = "Metadata-Version: 2.1\nName: memplan-of-a-test\nVersion: 1\n"
        wheel.writestr(f"{about}/METADATA", named)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return file


def test_the_hook_is_a_command_that_exists() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"] == "memplan check"
    wanted = re.compile(hook["files"])
    assert wanted.search("a/step.onnx")
    assert wanted.search("memplan.lock")
    assert not wanted.search("step.py")
