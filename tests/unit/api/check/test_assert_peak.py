"""A limit in a test of the user's own: what it says, gives and refuses."""

from pathlib import Path
from typing import Any

import onnx
import pytest

import memplan
from helpers import odd_models as odd
from helpers.graphs import parse
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.checking import CheckRequest, run_update
from memplan.errors import MemplanError

OPEN = "open (float[N,256] x) => (float[N,256] y) { y = Relu(x) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: two models, and a lock that holds the first."""
    monkeypatch.chdir(tmp_path)
    onnx.save(odd.training(), "step.onnx")
    onnx.save(parse(OPEN), "open.onnx")
    run_update(CheckRequest(Path("memplan.lock"), (Path("step.onnx"),)))
    return tmp_path


def lower_the_lock(field: str, before: int, after: int) -> None:
    lock = Path("memplan.lock")
    text = lock.read_text()
    assert text.count(f"\n{field} = {before}\n") == 1
    lock.write_text(text.replace(f"\n{field} = {before}\n", f"\n{field} = {after}\n"))


def test_a_peak_above_the_limit_fails_with_cause_and_cure(folder: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        memplan.assert_peak(folder / "step.onnx", 6400)
    text = str(caught.value)
    assert text.startswith("FAIL  step.onnx  peak")
    assert "limit 6.25 KiB (max_peak), exceeded by" in text
    assert "backward: a_t" in text
    assert "why: the largest tensors at this step" in text
    assert "fit:     memplan rewrite step.onnx --budget 6400" in text
    assert str(folder) not in text


def test_a_peak_within_the_limit_is_given() -> None:
    peak = memplan.analyze("step.onnx").timeline.peak_bytes
    for limit in ("4GB", "100KiB", 10**9, peak):
        assert memplan.assert_peak("step.onnx", limit) == peak
    assert memplan.assert_peak("open.onnx", "1MB", dims={"N": 8}) == 16384


def test_a_lock_says_what_changed() -> None:
    peak = memplan.assert_peak("step.onnx", lock="memplan.lock")
    lower_the_lock("peak_bytes", peak, peak - 96)
    with pytest.raises(AssertionError) as caught:
        memplan.assert_peak("step.onnx", lock="memplan.lock")
    text = str(caught.value)
    assert "FAIL  step.onnx  peak +96 B" in text
    assert "accept:  memplan check --update step.onnx" in text
    assert f"fit:     memplan rewrite step.onnx --budget {peak - 96}" in text
    assert "1 of 1 model" not in text


def test_a_lock_and_a_size_are_both_held() -> None:
    with pytest.raises(AssertionError, match=r"limit 6\.25 KiB \(max_peak\), exceeded by"):
        memplan.assert_peak("step.onnx", 6400, lock="memplan.lock")
    with pytest.raises(AssertionError, match=r"open\.onnx  orphan: it is not in memplan\.lock"):
        memplan.assert_peak("open.onnx", lock="memplan.lock")


def test_a_lock_that_cannot_be_compared_is_a_warning() -> None:
    lower_the_lock("accounting", ACCOUNTING_VERSION, ACCOUNTING_VERSION - 1)
    with pytest.warns(UserWarning, match=r"accounting-changed  step\.onnx"):
        memplan.assert_peak("step.onnx", lock="memplan.lock")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("step.onnx", {}, "step.onnx has no limit"),
        ("step.onnx", {"max_peak": "4G"}, "'4G' is ambiguous"),
        ("step.onnx", {"max_peak": "80%"}, "max_peak 80%: expected a size, got a percentage"),
        ("step.onnx", {"max_peak": 1, "dims": {"M": 8}}, "step.onnx has no dimension 'M'"),
        ("open.onnx", {"max_peak": "1MB"}, "dimension"),
        ("step.onnx", {"max_peak": "1MB", "session": "fast"}, "session 'fast'"),
        ("step.onnx", {"lock": "gone.lock"}, "gone.lock"),
        ("gone.onnx", {"max_peak": "1MB"}, "gone.onnx"),
        (7, {"max_peak": "1MB"}, "a model is a path"),
    ],
)
def test_what_cannot_be_held_is_an_error(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MemplanError) as caught:
        memplan.assert_peak(model, **options)
    assert message in caught.value.message
