"""Locks and the runtime: another version is told, and figures that rest on it do not compare."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.graphs import parse
from helpers.locks import an_entry, held, today
from helpers.odd_models import saved
from memplan.api import versions
from memplan.api.check.checking import CheckResult
from memplan.api.check.differences import changed_fields
from memplan.api.check.finding import Kind
from memplan.api.check.lock import lock_text, read_lock, write_lock
from memplan.api.check.measure import measure
from memplan.api.check.peak import Binding, Peak
from memplan.api.check.text import check_lines

# Acos has no CUDA kernel, Shape and what is computed from it stays on the host.
ON_THE_HOST = {
    "acos": "g (float[60] x) => (float[60] y) { y = Acos(x) }",
    "between": "g (float[60] x) => (float[60] y) { a = Exp(x) b = Acos(a) y = Sin(b) }",
    "shape": """g (float[6,10] x) => (int64[2] s, float[6,10] y) {
        t = Shape(x) s = Add(t, t) y = Exp(x) }""",
    "host input": "g (float[60] x, int64[60] n) => (int64[60] m, float[60] y) "
    "{ m = BitwiseNot(n) y = Exp(x) }",
}


LOCKED = an_entry(
    path="m.onnx", session="default", runtime="onnxruntime 1.31.1", as_loaded=True, peak_bytes=1000
)


def found(locked: Peak, **changes: Any) -> Kind:
    return held(locked, today(locked, **changes)).kind


def test_another_runtime_is_no_regression_where_figures_rest_on_it() -> None:
    finding = held(LOCKED, today(LOCKED, peak_bytes=2000, runtime="onnxruntime 1.32.0"))
    assert finding.kind is Kind.ACCOUNTING
    line = check_lines(CheckResult(Path("memplan.lock"), (finding,)))[0]
    assert "onnxruntime 1.31.1 -> as loaded by onnxruntime 1.32.0" in line
    assert found(LOCKED, peak_bytes=2000, as_loaded=False) is Kind.ACCOUNTING


def test_a_regression_stays_one_with_the_same_runtime_and_in_tuned_sessions() -> None:
    assert found(LOCKED, peak_bytes=2000) is Kind.REGRESSED
    tuned = replace(LOCKED, session="tuned", as_loaded=None)
    assert found(tuned, peak_bytes=2000, runtime="onnxruntime 1.32.0") is Kind.REGRESSED


def test_equal_peaks_are_ok_and_the_version_is_told() -> None:
    assert found(LOCKED, runtime="onnxruntime 1.32.0") is Kind.OK
    other = today(LOCKED, runtime="onnxruntime 1.32.0")
    assert changed_fields(LOCKED, other) == ("runtime",)
    assert changed_fields(replace(LOCKED, runtime=None), LOCKED) == ()


def test_another_installed_version_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.version_notes() == ()
    monkeypatch.setattr(versions, "installed_runtime", lambda: "onnxruntime 1.99.0")
    (note,) = versions.version_notes()
    assert "1.31.1" in note
    assert "1.99.0" in note
    assert "tools/probe_ort" in note
    # Its kernels on the CPU were measured and are the same; nobody measured those on CUDA.
    monkeypatch.setattr(versions, "installed_runtime", lambda: "onnxruntime 1.32.0")
    assert versions.version_notes() == ()
    assert "1.32.0" in versions.version_notes("cuda")[0]
    monkeypatch.setattr(versions, "installed_runtime", lambda: "onnxruntime 1.99.0")
    planned = {"runtime": {"installed": "onnxruntime 1.31.1"}}
    assert "1.31.1" in versions.recorded_version_notes(planned)[0]
    monkeypatch.setattr(versions, "installed_runtime", lambda: "")
    assert versions.version_notes() == versions.recorded_version_notes(planned) == ()


def reads_back(file: Path, dims: dict[str, int], folder: Path) -> None:
    """Classes of the entry are whole numbers that sum to the peak, and the lock reads back."""
    found, _ = measure(file, "m.onnx", Binding(dims, "tuned", "cuda"))
    classes = found.classes
    assert min(classes.values(), default=0) >= 0
    assert sum(classes.values()) == found.peak_bytes
    assert found.floor_bytes <= (found.peak_with_workspace_bytes or 0)
    lock = folder / "memplan.lock"
    write_lock(lock, [found])
    assert lock_text(read_lock(lock).entries.values()) == lock_text([found])


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_cuda_locks_of_graphs_with_host_tensors(name: str, tmp_path: Path) -> None:
    reads_back(saved(parse(ON_THE_HOST[name]), tmp_path), {}, tmp_path)
