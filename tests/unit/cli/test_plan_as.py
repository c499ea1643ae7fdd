"""``memplan plan-as``: what it prints where, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.plan_files import SMALL
from helpers.planned_calls import block, plan_of
from helpers.running import Memplan
from memplan.errors import EXIT_MODEL, EXIT_USAGE


@pytest.fixture
def memplan(inside: Memplan, tmp_path: Path) -> Memplan:
    kept = ("attn/qkv linear 0", "mlp/0 linear 0")
    plan_of(*block("blocks.0", kept), *block("blocks.1", kept)).save(tmp_path / "plan.json")
    return inside


def test_a_policy_goes_to_stdout_and_what_is_lost_to_stderr(memplan: Memplan) -> None:
    done = memplan("plan-as", "torch", "plan.json")
    assert done.returncode == 0
    assert done.stderr.startswith("not in the policy: the order of the operators")
    assert memplan("plan-as", "torch", "plan.json", "-q").stderr == ""
    data = json.loads(memplan("plan-as", "torch", "plan.json", "--format", "json").stdout)
    assert data["schema"] == "memplan.policy/1"
    assert data["target"] == "torch"
    assert data["text"] == done.stdout
    assert len(data["notes"]) == len(done.stderr.splitlines())


def test_a_file_is_written_and_not_overwritten(memplan: Memplan, tmp_path: Path) -> None:
    assert memplan("plan-as", "torch", "plan.json", "-o", "policy.py").returncode == 0
    assert "def checkpoint_as_planned" in (tmp_path / "policy.py").read_text()
    assert memplan("plan-as", "torch", "plan.json", "-o", "policy.py").returncode == EXIT_USAGE
    assert memplan("plan-as", "torch", "plan.json", "-o", "plan.json").returncode == EXIT_USAGE


def test_what_is_no_plan_is_refused(memplan: Memplan, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    done = memplan("plan-as", "torch", "list.json")
    assert done.returncode == EXIT_MODEL
    assert done.stderr.count("\n") == 2
    assert memplan("plan-as", "torch", "missing.json").returncode == EXIT_MODEL


def test_a_plan_of_no_pytorch_model_is_refused(memplan: Memplan, tmp_path: Path) -> None:
    uncalled = tuple(replace(row, call=None) for row in SMALL.tensors)
    replace(SMALL, tensors=uncalled).save(tmp_path / "none.json")
    done = memplan("plan-as", "torch", "none.json")
    assert done.returncode == EXIT_USAGE
    assert "memplan capture" in done.stderr
