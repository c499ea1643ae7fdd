"""What differs from the lock, and whether that fails."""

import time
from pathlib import Path

import pytest

from helpers.locks import MIB, an_entry, held, today
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check import checking as gate
from memplan.api.check.differences import changed_fields, new_tensors
from memplan.api.check.finding import Kind
from memplan.api.check.lock import write_lock
from memplan.api.check.measure import family_of
from memplan.api.check.peak import Peak, TopTensors
from memplan.api.check.text import title
from memplan.errors import RuntimeUnavailableError


@pytest.mark.parametrize(
    ("peak", "tolerance", "cap", "kind"),
    [
        (100 * MIB, None, None, Kind.OK),
        (100 * MIB + 1, None, None, Kind.REGRESSED),
        (100 * MIB - 1, None, None, Kind.IMPROVED),
        (101 * MIB, "1%", None, Kind.OK),
        (101 * MIB + 1, "1%", None, Kind.REGRESSED),
        (102 * MIB, "2MiB", None, Kind.OK),
        (102 * MIB + 1, "2MiB", None, Kind.REGRESSED),
        (100 * MIB, None, 100 * MIB, Kind.OK),
        (100 * MIB, None, 100 * MIB - 1, Kind.OVER_CAP),
        (90 * MIB, None, 80 * MIB, Kind.OVER_CAP),
        (101 * MIB, "1%", 100 * MIB, Kind.OVER_CAP),
        (102 * MIB, None, 100 * MIB, Kind.REGRESSED),
    ],
)
def test_peak_against_limits(peak: int, tolerance: str | None, cap: int | None, kind: Kind) -> None:
    locked = an_entry(tolerance=tolerance)
    found = held(locked, today(locked, peak_bytes=peak), cap_bytes=cap)
    failed = kind in (Kind.REGRESSED, Kind.OVER_CAP)
    assert (found.kind, found.failed) == (kind, failed)
    assert found.status == ("regressed" if failed else kind)


def test_what_was_counted_otherwise_is_no_regression_and_no_saving() -> None:
    locked, now = (
        an_entry(accounting=ACCOUNTING_VERSION + 1),
        today(an_entry(), peak_bytes=900 * MIB),
    )
    found = held(locked, now)
    assert (found.kind, found.failed, found.limit_bytes) == (Kind.ACCOUNTING, False, None)
    assert held(locked, now, cap_bytes=899 * MIB).failed
    # A lock of when state was not in place by itself does not say where it lies.
    for more, kind in ((-1, Kind.ACCOUNTING), (0, Kind.OK), (1, Kind.REGRESSED)):
        now = today(an_entry(), state="in-place", peak_bytes=100 * MIB + more)
        found = held(an_entry(), now)
        assert (found.kind, "state not recorded" in title(found)) == (kind, more < 0)


@pytest.mark.parametrize(
    ("locked", "newer", "base", "now", "kind", "limit", "source"),
    [
        (100, 0, 90, 100, Kind.OK, 100, "memplan.lock:9"),
        (100, 0, 120, 110, Kind.REGRESSED, 100, "memplan.lock:9"),
        (100, 0, 80, 90, Kind.IMPROVED, 100, "memplan.lock:9"),
        (None, 0, 90, 91, Kind.REGRESSED, 90, "the base"),
        (None, 0, 90, 89, Kind.IMPROVED, 90, "the base"),
        (None, 0, None, 90, Kind.NEW, None, "the base"),
        (100, 1, 90, 91, Kind.REGRESSED, 90, "the base"),
        (100, 1, 90, 90, Kind.ACCOUNTING, 90, "the base"),
        (100, 1, None, 99, Kind.ACCOUNTING, None, "the base"),
    ],
)
def test_a_model_is_held_against_one_thing(
    locked: int | None,
    newer: int,
    base: int | None,
    now: int,
    kind: Kind,
    limit: int | None,
    source: str,
) -> None:
    """The lock, unless it is of a newer memory model, else the base."""
    entry, there = None, None
    if locked is not None:
        entry = an_entry(peak_bytes=locked, accounting=ACCOUNTING_VERSION + newer)
    if base is not None:
        there = today(an_entry(), peak_bytes=base)
    found = held(entry, today(an_entry(), peak_bytes=now), base=there, base_at="the base")
    assert (found.kind, found.limit_bytes, found.source) == (kind, limit, source)
    # Why it has grown is told best by the base, unless that needs as much.
    if base is not None:
        assert (found.explained is there) == (base < now)


def test_a_base_gets_the_tolerance_of_the_lock() -> None:
    locked = an_entry(accounting=ACCOUNTING_VERSION + 1, tolerance="2%")
    found = held(locked, today(an_entry()), base=today(an_entry(), peak_bytes=99 * MIB))
    assert found.limit_bytes == 99 * MIB + 99 * MIB // 50
    assert found.kind is Kind.ACCOUNTING


def test_same_peak_in_another_graph_is_ok() -> None:
    locked = an_entry()
    now = today(locked, fingerprint="0" * 32)
    assert held(locked, now).kind is Kind.OK
    assert changed_fields(locked, now) == ("fingerprint",)


def test_a_bug_met_in_one_model_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    locked = [an_entry(path="a.onnx", dims={}), an_entry(path="b.onnx", dims={})]
    write_lock(Path("memplan.lock"), locked)
    for entry in locked:
        Path(entry.path).touch()

    def measure(file: Path, path: str, *_: object) -> tuple[Peak, frozenset[str]]:
        if path == "a.onnx":
            raise ZeroDivisionError("in a")
        return today(an_entry(path=path), peak_bytes=200 * MIB), frozenset()

    monkeypatch.setattr(gate, "measure", measure)
    seen: list[tuple[int, int, str]] = []
    request = gate.CheckRequest(Path("memplan.lock"))
    result = gate.run_check(request, lambda *step: seen.append(step))
    assert seen == [(0, 2, "a.onnx"), (1, 2, "b.onnx")]
    assert [(each.path, each.kind) for each in result.entries] == [("b.onnx", Kind.REGRESSED)]
    (error,) = result.errors.values()
    assert error.exit_code == 70
    assert "ZeroDivisionError: in a" in error.message
    before = Path("memplan.lock").read_bytes()
    assert gate.run_update(request).updated is False
    assert Path("memplan.lock").read_bytes() == before


def test_what_the_environment_lacks_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise RuntimeUnavailableError("it does not start", "install it")

    monkeypatch.chdir(tmp_path)
    Path("a.onnx").touch()
    monkeypatch.setattr(gate, "measure", measure)
    write_lock(Path("memplan.lock"), [an_entry(path="a.onnx")])
    (error,) = gate.run_check(gate.CheckRequest(Path("memplan.lock"))).errors.values()
    assert (error.exit_code, error.message) == (5, "a.onnx: it does not start")


def tensors(name: str, count: int, size: int, tensor_class: str = "stash") -> TopTensors:
    return TopTensors(name, tensor_class, count, size)


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
        (found,) = new_tensors(locked, today(locked, top=(tensors("act*", 11, 10 * MIB),)))
        assert (found.count, found.exact, found.grew_from_bytes) == (3, True, None)

    def test_same_family_larger(self) -> None:
        locked = an_entry()
        (found,) = new_tensors(locked, today(locked, top=(tensors("act*", 8, 12 * MIB),)))
        assert (found.count, found.grew_from_bytes) == (8, 10 * MIB)

    def test_renumbered_tensors_are_not_new(self) -> None:
        locked = an_entry(top=(TopTensors("act_1", "stash", 1, 80 * MIB),))
        assert not new_tensors(locked, today(locked, top=(tensors("act_7", 1, 80 * MIB),)))

    def test_a_complete_list_makes_everything_else_new(self) -> None:
        locked = an_entry()
        now = today(locked, top=(*locked.top, tensors("tiny", 1, 8)))
        (found,) = new_tensors(locked, now)
        assert (found.tensors.name, found.exact) == ("tiny", True)

    def test_what_may_have_been_unlisted_is_not_called_new(self) -> None:
        # 30 MiB of the locked peak are not in the list, and a family there has at most 10.
        top = (TopTensors("a", "stash", 1, 40 * MIB), TopTensors("b", "stash", 1, 10 * MIB))
        locked = an_entry(top=top)
        now = today(locked, top=(tensors("x", 1, 10 * MIB), tensors("y*", 2, 8 * MIB)))
        (found,) = new_tensors(locked, now)
        assert (found.tensors.name, found.exact) == ("y*", False)
