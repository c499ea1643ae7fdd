"""The file of finished points: what it keeps, what it refuses, and what makes a point another."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest

from helpers.sweeps import NO_PLAN, footprint, planned, task
from memplan.api.sweep.point import Failure, answer_from, answer_json
from memplan.api.sweep.store import SCHEMA, Store
from memplan.errors import EXIT_BUG, EXIT_ENVIRONMENT, EXIT_MODEL, UsageError
from memplan.units import parse_size

ANSWERS = [
    replace(footprint(10, 2), assumptions=("one", "two")),
    planned(10, 0.1234567890123456),
    NO_PLAN,
    Failure("bad", "", EXIT_MODEL),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: type(a).__name__)
def test_an_answer_comes_back_as_it_was(answer: object, tmp_path: Path) -> None:
    assert answer_from(json.loads(json.dumps(answer_json(answer)))) == answer  # type: ignore[arg-type]
    path = tmp_path / "points.json"
    Store(path).put(task(1), answer)  # type: ignore[arg-type]
    assert Store(path).get(task(1)) == answer
    assert Store(path).get(task(2)) is None


def test_every_answer_is_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    store = Store(path)
    for value in range(1, 5):
        store.put(task(value), footprint(value))
        assert len(Store(path)) == value
    assert [p.name for p in tmp_path.iterdir()] == ["points.json"]
    assert json.loads(path.read_text())["schema"] == SCHEMA


def test_two_sweeps_on_one_file_lose_no_point(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    (tmp_path / "link.json").symlink_to(path)
    path.write_text(f'{{"schema": "{SCHEMA}", "points": {{}}}}')
    one, other = Store(path), Store(tmp_path / "link.json")
    for value in range(1, 5):
        one.put(task(value), footprint(value))
        other.put(task(10 + value), footprint(10 + value))
    assert len(Store(path)) == 8
    assert other.get(task(4)) == footprint(4)
    path.unlink()
    one.put(task(5), footprint(5))
    assert len(Store(path)) == 8  # what this one knew, not the last of the other


def test_sweeps_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "points.json"

    def keep(first: int) -> None:
        store = Store(path)
        for value in range(first, first + 8):
            store.put(task(value), footprint(value))

    Store(path).put(task(1), footprint(1))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(keep, (100, 200, 300, 400)))
    assert len(Store(path)) == 33


@pytest.mark.parametrize("code", [EXIT_ENVIRONMENT, EXIT_BUG])
def test_what_may_go_away_is_asked_again(code: int, tmp_path: Path) -> None:
    store = Store(tmp_path / "points.json")
    store.put(task(1), Failure("lost", "", code))
    store.put(task(2), footprint(1))
    assert store.get(task(1)) is not None
    assert Store(tmp_path / "points.json").get(task(1)) is None


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    store.put(task(1), footprint(1))
    assert store.get(task(1)) == footprint(1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema": "memplan.analysis/1", "points": {}}',
        f'{{"schema": "{SCHEMA}"}}',
        f'{{"schema": "{SCHEMA}", "points": []}}',
        f'{{"schema": "{SCHEMA}", "points": {{"a": 1}}}}',
        f'{{"schema": "{SCHEMA}", "points": {{"a": {{"kind": "planned"}}}}}}',
        f'{{"schema": "{SCHEMA}", "points": {{"a": {{"kind": "failure", "message": "", "hint": "",'
        '"exit_code": 4, "more": 1}}}',
        "\x00\xff",
        "[" * 100_000,
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="does not hold points of a sweep"):
        Store(path)
    assert path.read_text() == content


def test_sizes_in_the_file_are_whole_numbers(tmp_path: Path) -> None:
    kept = answer_json(footprint(10))
    for wrong in ("10", 1.5, None, True):
        with pytest.raises(ValueError, match="peak_bytes"):
            answer_from({**kept, "assumptions": [], "peak_bytes": wrong})


def test_a_key_is_of_all_that_the_answer_depends_on() -> None:
    first = task(1, plan=True)
    assert first.plan is not None
    plan = first.plan
    others = [
        replace(first, file=replace(first.file, digest="other")),
        replace(first, dims=(("N", 2),)),
        replace(first, dims=(("M", 1),)),
        replace(first, session="default"),
        replace(first, provider="cuda"),
        replace(first, loss="l"),
        replace(first, versions="later"),
        replace(first, plan=None),
        replace(first, plan=replace(plan, budget=parse_size("2GB"))),
        replace(first, plan=replace(plan, budget=parse_size("60%"))),
    ]
    different = {"strategy": "none", "time_limit": 1.0, "keep": ("x",), "reserve": parse_size("1B")}
    others += [replace(first, plan=replace(plan, **{k: v})) for k, v in different.items()]  # type: ignore[arg-type]
    keys = {each.key for each in (first, *others)}
    assert len(keys) == 1 + len(others)
    assert {f.name for f in fields(plan)} >= set(different)


def test_a_key_is_not_of_the_name_of_the_file_or_the_order_of_dimensions() -> None:
    first = task(1)
    assert replace(first, file=replace(first.file, path=Path("elsewhere.onnx"))).key == first.key
    two = replace(first, dims=(("N", 1), ("M", 2)))
    assert replace(two, dims=(("M", 2), ("N", 1))).key == two.key
