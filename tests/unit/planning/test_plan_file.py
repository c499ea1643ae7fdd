"""Plan files: what is written is read again, in the same bytes, and nothing else is believed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.plan_files import SMALL
from helpers.schemas import faults, schemas
from memplan.errors import PlanError
from memplan.planning import plan_file
from memplan.planning.plan_file import parse_plan, read_plan


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == SMALL
    assert read_plan(tmp_path / "plan.json").text() == SMALL.text()


def test_every_tensor_and_node_has_a_line_of_its_own() -> None:
    """So that a diff shows the decisions that changed, and no others."""
    before = SMALL.text().splitlines()
    first, second = SMALL.tensors
    changed = replace(SMALL, tensors=(replace(first, decision="kept"), second))
    after = changed.text().splitlines()
    changes = [a for a, b in zip(before, after, strict=True) if a != b]
    assert len(changes) == 2
    assert '"digest"' in changes[1]
    names = [line.strip() for line in before if line.startswith('  "')]
    assert '"fc1",' in names
    assert SMALL.text().endswith("}\n")


def test_lines_may_be_broken_otherwise(tmp_path: Path) -> None:
    """A formatter may have gone over the file: that says nothing else."""
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(SMALL.text()), sort_keys=True))
    assert read_plan(tmp_path / "plan.json") == SMALL


def edited(data: Any) -> Iterator[Any]:
    """The JSON value with each of its texts, numbers and words in turn another one, and with each
    of its entries in turn left out."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            for other in edited(value):
                copy = data.copy()
                copy[key] = other
                yield copy
            copy = data.copy()
            del copy[key]
            yield copy
    else:
        yield "7" if data == 7 else 7


def test_whatever_is_edited_is_refused() -> None:
    """Also where no model is at hand, as for ``plan-as``."""
    every = [data for data in edited(json.loads(SMALL.text())) if isinstance(data, dict)]
    assert len(every) > 100
    for data in every:
        with pytest.raises(PlanError) as caught:
            parse_plan(data, "plan.json")
        assert "\n" not in caught.value.message
    assert caught.value.message == "plan.json is not as memplan wrote it"
    assert caught.value.hint.startswith("the file was edited: take it back from version control")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["tensors", 0, "nbytes"], "x", "tensors[0].nbytes: expected a whole number from 0 on, go"),
        (["budget_bytes"], -1, "budget_bytes: expected a whole number from 0 on, got -1"),
        (["budget_bytes"], True, "budget_bytes: expected a whole number from 0 on, got true"),
        (["sequence", 3], 7, "sequence[3]: expected an object, got 7"),
        (["sequence", 3], {}, "sequence[3].form is missing"),
        (["model"], [], "model: expected an object, got []"),
        (["order"], "a", 'order: expected a list, got "a"'),
        (["dims", "N"], "x", 'dims.N: expected a whole number from 0 on, got "x"'),
        (["passes", 0, "changed"], "no", 'passes[0].changed: expected true or false, got "no"'),
        (["extra_cost_fraction"], "\x1b[2J", 'a number, got "\\u001b[2J"'),
    ],
)
def test_what_is_no_plan_under_a_digest_of_its_own_is_named(
    path: list[Any], value: object, message: str
) -> None:
    data = json.loads(SMALL.text())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    del data["digest"]
    with pytest.raises(PlanError) as caught:
        parse_plan({**data, "digest": plan_file._digest(data)}, "plan.json")
    assert message in caught.value.message


def test_a_newer_version_says_so() -> None:
    data = json.loads(SMALL.text()) | {"schema": "memplan.plan/2"}
    with pytest.raises(PlanError, match=r"newer memplan: its schema is memplan.plan/2"):
        parse_plan(data)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"accounting": NaN}'])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="is not a plan"):
        read_plan(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="it does not exist"):
        read_plan(tmp_path / "plan.json")


def test_the_schema_holds_for_the_file() -> None:
    data = json.loads(SMALL.text())
    assert faults(data) == []
    assert sum(bool(faults(other, schemas()[data["schema"]])) for other in edited(data)) > 50
