"""What differs from the lock, and whether that fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from helpers.locks import MIB, an_entry, today
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check import checking as gate
from memplan.api.check.compare_locks import Status, compare, diff
from memplan.api.check.current import Current, Family, family_of
from memplan.api.check.lock import (
    TopTensors,
)
from memplan.api.check.lock_writer import write_lock


class TestStatus:
    @pytest.mark.parametrize(
        ("peak", "tolerance", "cap", "status"),
        [
            (100 * MIB, None, None, Status.OK),
            (100 * MIB + 1, None, None, Status.REGRESSED),
            (100 * MIB - 1, None, None, Status.IMPROVED),
            (101 * MIB, "1%", None, Status.OK),
            (101 * MIB + 1, "1%", None, Status.REGRESSED),
            (102 * MIB, "2MiB", None, Status.OK),
            (102 * MIB + 1, "2MiB", None, Status.REGRESSED),
            (100 * MIB, None, 100 * MIB, Status.OK),
            (100 * MIB, None, 100 * MIB - 1, Status.REGRESSED),
            (90 * MIB, None, 80 * MIB, Status.REGRESSED),
            (101 * MIB, "1%", 100 * MIB, Status.REGRESSED),
        ],
    )
    def test_peak_against_limits(
        self, peak: int, tolerance: str | None, cap: int | None, status: Status
    ) -> None:
        locked = an_entry(tolerance=tolerance)
        entry = compare(locked, today(locked, peak_bytes=peak), Path("m.onnx"), 5, cap)
        assert entry.status is status
        assert entry.failed == (status is Status.REGRESSED)
        assert entry.delta_bytes == peak - 100 * MIB

    def test_another_memory_model_is_no_regression(self) -> None:
        locked = an_entry(accounting=ACCOUNTING_VERSION + 1)
        now = today(an_entry(), peak_bytes=900 * MIB)
        entry = compare(locked, now, Path("m.onnx"))
        assert entry.status is Status.ACCOUNTING
        assert not entry.failed
        assert entry.limit_bytes is None
        assert compare(locked, now, Path("m.onnx"), 0, 899 * MIB).failed

    def test_same_peak_in_another_graph_is_ok(self) -> None:
        locked = an_entry()
        entry = compare(locked, today(locked, fingerprint="0" * 32), Path("m.onnx"))
        assert entry.status is Status.OK
        assert diff(locked, today(locked, fingerprint="0" * 32)).fields == ("fingerprint",)


def test_a_bug_met_in_one_model_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    locked = [an_entry(path="a.onnx", dims={}), an_entry(path="b.onnx", dims={})]
    write_lock(Path("memplan.lock"), locked)
    for entry in locked:
        Path(entry.path).touch()

    def measure(file: Path, path: str, *_: object) -> tuple[Current, frozenset[str]]:
        if path == "a.onnx":
            raise ZeroDivisionError("in a")
        return today(an_entry(path=path), peak_bytes=200 * MIB), frozenset()

    monkeypatch.setattr(gate, "measure", measure)
    seen: list[tuple[int, int, str]] = []
    request = gate.CheckRequest(Path("memplan.lock"))
    result = gate.run_check(request, lambda *step: seen.append(step))
    assert seen == [(0, 2, "a.onnx"), (1, 2, "b.onnx")]
    assert [(entry.path, entry.status) for entry in result.entries] == [
        ("b.onnx", Status.REGRESSED)
    ]
    (failure,) = result.failures
    assert failure.error.exit_code == 70
    assert "ZeroDivisionError: in a" in failure.error.message
    before = Path("memplan.lock").read_bytes()
    assert not gate.run_update(request).accepted
    assert Path("memplan.lock").read_bytes() == before


def family(name: str, count: int, size: int, tensor_class: str = "stash") -> Family:
    return Family(TopTensors(name, tensor_class, count, size), "MatMul mm (backward)")


class TestFamilies:
    def test_a_name_of_many_numbers_takes_no_time(self) -> None:
        started = time.process_time()
        assert family_of("1_" * 20_000 + "x").endswith("_*_x")
        assert family_of("x" + "_1" * 20_000) == "x"
        assert time.process_time() - started < 2

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("gelu", "gelu"),
            ("gelu_3", "gelu"),
            ("gelu*", "gelu"),
            ("blk12/attn/probs", "blk*/attn/probs"),
            ("unsafe_split_1_split_2", "unsafe_split_*_split"),
            ("7", ""),
        ],
    )
    def test_numbers_do_not_count(self, name: str, expected: str) -> None:
        assert family_of(name) == expected
        assert family_of(f"{expected}*") == expected

    def test_more_of_a_family(self) -> None:
        locked = an_entry()
        (found,) = diff(locked, today(locked, (family("act*", 11, 10 * MIB),))).families
        assert (found.count, found.exact, found.grew_from_bytes) == (3, True, None)

    def test_same_family_larger(self) -> None:
        locked = an_entry()
        (found,) = diff(locked, today(locked, (family("act*", 8, 12 * MIB),))).families
        assert (found.count, found.grew_from_bytes) == (8, 10 * MIB)

    def test_renumbered_tensors_are_not_new(self) -> None:
        locked = an_entry(top=(TopTensors("act_1", "stash", 1, 80 * MIB),))
        assert not diff(locked, today(locked, (family("act_7", 1, 80 * MIB),))).families

    def test_a_complete_list_makes_everything_else_new(self) -> None:
        locked = an_entry()
        now = today(locked, (*today(locked).families, family("tiny", 1, 8)))
        (found,) = diff(locked, now).families
        assert (found.family.tensors.name, found.exact) == ("tiny", True)

    def test_what_may_have_been_unlisted_is_not_called_new(self) -> None:
        # 30 MiB of the locked peak are not in the list, and a family there has at most 10.
        top = (TopTensors("a", "stash", 1, 40 * MIB), TopTensors("b", "stash", 1, 10 * MIB))
        locked = an_entry(top=top)
        now = today(locked, (family("x", 1, 10 * MIB), family("y*", 2, 8 * MIB)))
        (found,) = diff(locked, now).families
        assert (found.family.tensors.name, found.exact) == ("y*", False)
