"""The published schemas: every JSON of a command has one, and real output is as it says.

All JSON that a test's command prints is held against its schema (``helpers/running.py``); here are
those that no other fast test prints, and that the reference names them all.
"""

import json
import re
from pathlib import Path

import pytest

from helpers.running import Memplan
from helpers.schemas import FOLDER, faults, schemas

ROOT = Path(__file__).parents[3]
STEP = ROOT / "sample_models/mlp_adamw.onnx"
NOT_PRINTED = {"memplan.costs/1", "memplan.torch_plan/1"}
"""Files that memplan writes and reads itself, and the report of a Python object."""
READ_ELSEWHERE = {"memplan.probe/1", "memplan.float-types/1", "memplan.kernels/1"}


def test_every_json_has_a_schema_and_the_reference_links_it() -> None:
    named: set[str] = set()
    for folder in ("memplan", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r'SCHEMA = "(memplan\.[\w/-]+)"', path.read_text()))
    assert named - NOT_PRINTED - READ_ELSEWHERE == set(schemas())
    reference = (ROOT / "docs/reference.md").read_text()
    for path in FOLDER.glob("*.json"):
        assert f"(schemas/{path.name})" in reference, path.name


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", STEP, "--state", "in-place"),
        ("analyze", STEP, "--session", "default", "--provider", "cuda"),
        ("check", "--update", STEP),
        ("diff", STEP, ROOT / "sample_models/cnn_bn.onnx"),
        ("strategies",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_a_command_prints_is_as_its_schema_says(
    inside: Memplan, arguments: tuple[str]
) -> None:
    done = inside(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert faults(json.loads(done.stdout)) == []


def test_a_field_that_is_missing_wrong_or_new_is_found() -> None:
    policy = {"schema": "memplan.policy/1", "target": "torch", "text": "", "notes": []}
    assert faults(policy) == []
    assert faults({**policy, "target": "abacus"})
    assert faults({**policy, "text": None})
    assert faults({**policy, "notes": [1]})
    assert faults({**policy, "more": 1})
    del policy["notes"]
    assert faults(policy)
