"""Plan files: what is written is read again, in the same bytes, and nothing else is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.plan_files import SMALL
from memplan.errors import PlanError
from memplan.planning.plan_file import parse_plan, read_plan

Edit = Callable[[dict[str, Any]], object]


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
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    names = [line.strip() for line in before if line.startswith('  "')]
    assert '"fc1",' in names
    assert SMALL.text().endswith("}\n")


def set_to(value: object, *path: str | int) -> Edit:
    """An edit that puts ``value`` under the last key of ``path``."""

    def edit(plan: dict[str, Any]) -> None:
        place: Any = plan
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


WRONG: list[tuple[Edit, str]] = [
    (lambda plan: plan.pop("sequence"), "sequence is missing"),
    (lambda plan: plan["tensors"][1].pop("nbytes"), "tensors[1].nbytes is missing"),
    (
        set_to("x", "tensors", 0, "nbytes"),
        'tensors[0].nbytes: expected a whole number from 0 on, got "x"',
    ),
    (set_to(-1, "budget_bytes"), "budget_bytes: expected a whole number from 0 on, got -1"),
    (set_to(True, "budget_bytes"), "budget_bytes: expected a whole number from 0 on, got true"),
    (set_to(2**64, "budget_bytes"), "budget_bytes: expected a whole number"),
    (set_to(7, "sequence", 3), "sequence[3]: expected an object, got 7"),
    (set_to({}, "sequence", 3), "sequence[3].form is missing"),
    (set_to([], "model"), "model: expected an object, got a list"),
    (set_to("a", "order"), 'order: expected a list, got "a"'),
    (set_to([1], "order"), "order[0]: expected a text, got 1"),
    (set_to("x", "dims", "N"), 'dims.N: expected a whole number from 0 on, got "x"'),
    (set_to("no", "passes", 0, "changed"), 'passes[0].changed: expected true or false, got "no"'),
    (set_to("\x1b[2J", "extra_cost_fraction"), 'finite number, got "\\u001b[2J"'),
    (set_to("eaten", "tensors", 0, "decision"), "tensors[0].decision: expected one of kept, "),
    (set_to("proved by hand", "bound_kind"), "bound_kind: expected one of order-free, "),
    (set_to(["banana"], "settings", "forms"), "settings.forms[0]: expected one of packed, "),
    (set_to(-1.0, "extra_cost_fraction"), "expected a number from 0 on, got -1.0"),
    (set_to("memplan.costs/1", "schema"), 'schema: expected memplan.plan/1, got "memplan.costs/1"'),
]


@pytest.mark.parametrize(("edit", "message"), WRONG)
def test_a_wrong_entry_is_named(edit: Edit, message: str) -> None:
    data = json.loads(SMALL.text())
    edit(data)
    with pytest.raises(PlanError) as caught:
        parse_plan(data, "plan.json")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


CONTRADICTIONS: list[tuple[Edit, str]] = [
    (set_to(0.3, "bound_fraction"), "bound_fraction: expected a number from 0 to extra_cost"),
    (
        lambda plan: plan["tensors"][1].update(decision="kept", times=0),
        "tensors[1], 'p': is kept, but recomputed (1 time) by the sequence",
    ),
    (set_to(5, "tensors", 1, "times"), "is recomputed (5 times), but recomputed (1 time)"),
    (set_to("h", "tensors", 1, "tensor"), "tensors[1], 'h': has an entry already"),
    (set_to("fc9", "tensors", 0, "node"), "the sequence does not run node 'fc9'"),
    (lambda plan: plan["tensors"].pop(), "2 times, and no entry of tensors says so"),
    (lambda plan: plan["tensors"].pop(0), "form of 'h', and no entry of tensors says so"),
]


@pytest.mark.parametrize(("edit", "message"), CONTRADICTIONS)
def test_decisions_and_figures_do_not_contradict_each_other(edit: Edit, message: str) -> None:
    """Also where no model is at hand, as for ``plan-as``."""
    data = json.loads(SMALL.text())
    edit(data)
    with pytest.raises(PlanError) as caught:
        parse_plan(data)
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


SCHEMA = Path(__file__).parents[3] / "docs/schemas/plan.schema.json"


def test_the_schema_has_the_fields_of_the_file() -> None:
    schema, data = json.loads(SCHEMA.read_text()), json.loads(SMALL.text())
    places = schema["properties"]
    assert list(places) == list(data) == schema["required"]
    for name in ("model", "settings", "plain"):
        assert list(places[name]["properties"]) == list(data[name])
    for name in ("chunks", "loops", "passes"):
        assert list(places[name]["items"]["properties"]) == list(data[name][0])
    assert list(places["tensors"]["items"]["properties"]) == [*data["tensors"][0], "chunks", "call"]
    assert list(places["sequence"]["items"]["oneOf"][1]["properties"]) == list(data["sequence"][2])


def test_the_schema_holds_for_the_file() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    data = json.loads(SMALL.text())
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    for edit, _ in WRONG:
        wrong = json.loads(SMALL.text())
        edit(wrong)
        if wrong["budget_bytes"] != 2**64:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, json.loads(SCHEMA.read_text()))
