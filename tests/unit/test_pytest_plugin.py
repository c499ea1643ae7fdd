"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.graphs import parse
from memplan.api.analysis import ACCOUNTING_VERSION, analyze
from memplan.api.check.checking import CheckRequest, run_update
from memplan.api.check.peak_limit import PeakLimit, hold

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "memplan.pytest_plugin", "--strict-markers")
OPEN = "open (float[N,256] x) => (float[N,256] y) { y = Relu(x) }"


@pytest.fixture(autouse=True)
def by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other plugin is loaded, and this one not a second time by its entry point."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # On CI the summary repeats each failure's whole text.
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("BUILD_NUMBER", raising=False)


@pytest.fixture
def root(pytester: pytest.Pytester) -> Path:
    """The root folder of a run: two models, and a lock that holds the first."""
    root = pytester.path
    onnx.save(odd.training(), root / "step.onnx")
    onnx.save(parse(OPEN), root / "open.onnx")
    run_update(CheckRequest(root / "memplan.lock", (root / "step.onnx",)))
    return root


def ran(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    """A run over one file of tests, in a folder below the root."""
    folder = pytester.path / "tests"
    folder.mkdir(exist_ok=True)
    head = "import pytest\nlimit = pytest.mark.memplan\n"
    (folder / "test_models.py").write_text(head + body)
    return pytester.runpytest_inprocess(*PLUGIN, *options)


def peak_of(root: Path) -> int:
    return hold(root / "step.onnx", PeakLimit()).peak_bytes


def told(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_a_peak_above_the_limit_fails_the_test_with_cause_and_cure(
    root: Path, pytester: pytest.Pytester
) -> None:
    result = ran(pytester, '@limit("step.onnx", max_peak=6400)\ndef test_fits(): pass\n')
    result.assert_outcomes(failed=1)
    assert analyze(root / "step.onnx").timeline.peak_bytes == peak_of(root) > 6400
    text = told(result)
    assert "FAIL  step.onnx  peak" in text
    assert "limit 6.25 KiB (max_peak), exceeded by" in text
    assert "backward: a_t" in text
    assert "why: the largest tensors at this step" in text
    assert "fit:     memplan rewrite step.onnx --budget 6400" in text
    assert "Traceback" not in text
    assert str(root) not in text.split("FAILURES")[1]


def test_a_peak_within_the_limit_passes(pytester: pytest.Pytester, root: Path) -> None:
    body = "".join(
        f'@limit("step.onnx", max_peak={size})\ndef test_fits_{number}(): pass\n'
        for number, size in enumerate(('"4GB"', '"100KiB"', "10**9", '"6824"'))
    )
    ran(pytester, body).assert_outcomes(passed=4)


def test_all_marks_of_a_test_are_held_and_all_failures_told(
    pytester: pytest.Pytester, root: Path
) -> None:
    body = """
pytestmark = limit("open.onnx", max_peak="1kB", dims={"N": 8})
@limit("step.onnx", max_peak="1kB")
@limit("step.onnx", max_peak="1GB")
class TestAll:
    @pytest.mark.parametrize("n", [1, pytest.param(2, marks=limit("gone.onnx", max_peak="1GB"))])
    def test_fits(self, n): pass
"""
    result = ran(pytester, body)
    result.assert_outcomes(failed=2)
    text = told(result)
    assert text.count("FAIL  open.onnx  peak 16.0 KiB") == 2
    assert text.count("FAIL  step.onnx  peak") >= 2
    assert text.count("error: gone.onnx does not exist in the test's folder or") == 1


def test_the_body_runs_first_and_its_failure_is_the_one_that_is_told(
    pytester: pytest.Pytester, root: Path
) -> None:
    body = """
import shutil
@limit("made.onnx", max_peak="1kB")
def test_makes_it(): shutil.copy("step.onnx", "tests/made.onnx")
@limit("step.onnx", max_peak="1kB")
def test_fails_itself(): assert "ours" == "theirs"
@limit("step.onnx", max_peak="1kB")
def test_skips(): pytest.skip("not here")
@pytest.mark.xfail(strict=True)
@limit("step.onnx", max_peak="1kB")
def test_is_known(): pass
"""
    result = ran(pytester, body)
    result.assert_outcomes(failed=2, skipped=1, xfailed=1)
    text = told(result)
    assert "FAIL  tests/made.onnx  peak" in text
    assert "FAIL  step.onnx" not in text


def test_a_unittest_case_is_held_too(pytester: pytest.Pytester, root: Path) -> None:
    body = """
import unittest
class Step(unittest.TestCase):
    @limit("step.onnx", max_peak="1kB")
    def test_fits(self): pass
"""
    ran(pytester, body).assert_outcomes(failed=1)


def test_a_lock_says_what_changed(pytester: pytest.Pytester, root: Path) -> None:
    body = '@limit("step.onnx", lock="memplan.lock")\ndef test_locked(): pass\n'
    ran(pytester, body).assert_outcomes(passed=1)
    peak = peak_of(root)
    lower_the_lock(root, "peak_bytes", peak, peak - 96)
    result = ran(pytester, body)
    result.assert_outcomes(failed=1)
    text = told(result)
    assert "FAIL  step.onnx  peak +96 B" in text
    assert "accept:  memplan check --update step.onnx" in text
    assert f"fit:     memplan rewrite step.onnx --budget {peak - 96}" in text
    assert "1 of 1 model" not in text


def test_a_lock_and_a_size_are_both_held(pytester: pytest.Pytester, root: Path) -> None:
    body = """
@limit("step.onnx", lock="memplan.lock", max_peak=6400)
def test_locked(): pass
@limit("open.onnx", lock="memplan.lock")
def test_not_in_it(): pass
"""
    result = ran(pytester, body)
    result.assert_outcomes(failed=2)
    text = told(result)
    assert "limit 6.25 KiB (max_peak), exceeded by" in text
    assert "FAIL  open.onnx  orphan: it is not in memplan.lock" in text
    assert "accept:  memplan check --update open.onnx --dim N=..." in text


def test_a_lock_that_cannot_be_compared_is_a_warning(pytester: pytest.Pytester, root: Path) -> None:
    lower_the_lock(root, "accounting", ACCOUNTING_VERSION, ACCOUNTING_VERSION - 1)
    body = '@limit("step.onnx", lock="memplan.lock")\ndef test_locked(): pass\n'
    result = ran(pytester, body)
    result.assert_outcomes(passed=1, warnings=result.parseoutcomes()["warnings"])
    text = told(result).split("warnings summary")[1]
    assert "accounting-changed  step.onnx" in text
    assert "record it:  memplan check --update step.onnx" in text


def lower_the_lock(root: Path, field: str, before: int, after: int) -> None:
    lock = root / "memplan.lock"
    text = lock.read_text()
    assert text.count(f"\n{field} = {before}\n") == 1
    lock.write_text(text.replace(f"\n{field} = {before}\n", f"\n{field} = {after}\n"))


def test_the_fixture_gives_the_peak_and_fails_at_the_line_that_asked(
    pytester: pytest.Pytester, root: Path
) -> None:
    body = """
def test_grows(memplan_peak, tmp_path):
    assert memplan_peak("open.onnx", dims={"N": 8}, max_peak="1MB") == 16384
    assert memplan_peak("open.onnx", dims={"N": 16}) == 32768
    memplan_peak("open.onnx", dims={"N": 16}, max_peak=20000)  # this line
def test_misspells(memplan_peak):
    memplan_peak("open.onnx", max_peek=1)
"""
    result = ran(pytester, body)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["> * # this line", "E * FAIL  open.onnx  peak 32.0 KiB *"])
    assert "hint: did you mean 'max_peak'?" in told(result)


WRONG_MARKS = [
    ("'step.onnx'", "error: the mark memplan of step.onnx has no limit"),
    ("max_peak='1MB'", "error: the mark memplan takes one model, not 0"),
    ("'step.onnx', '1MB'", "error: the mark memplan takes one model, not 2"),
    ("'step.onnx', max_peek='1MB'", "error: unknown option 'max_peek' of memplan"),
    ("'step.onnx', max_peak='4G'", "error: '4G' is ambiguous"),
    ("'step.onnx', max_peak='80%'", "error: max_peak 80%: expected a size, got a percentage"),
    ("'step.onnx', max_peak='1MB', dims='N=8'", "error: dims is not a dictionary: 'N=8'"),
    ("'step.onnx', max_peak='1MB', dims={'M': 8}", "dims: step.onnx has no dimension 'M'"),
    ("'open.onnx', max_peak='1MB'", 'hint: give it one: dims={"N": 32}'),
    ("'step.onnx', max_peak='1MB', session='fast'", "session 'fast'"),
    ("'step.onnx', lock='gone.lock'", "error: gone.lock does not exist in the test's folder"),
    ("7, max_peak='1MB'", "error: a model is a path"),
]


def test_a_mark_that_cannot_be_held_fails_its_test(pytester: pytest.Pytester, root: Path) -> None:
    body = "".join(
        f"@limit({arguments})\ndef test_{number}(): pass\n"
        for number, (arguments, _) in enumerate(WRONG_MARKS)
    )
    result = ran(pytester, body)
    result.assert_outcomes(failed=len(WRONG_MARKS))
    failures = re.split(r"_+ test_\d+ _+", told(result))[1:]
    for (_, message), failure in zip(WRONG_MARKS, failures, strict=True):
        assert message in failure
        assert "Traceback" not in failure


@pytest.mark.slow
def test_workers_of_xdist_tell_the_same(pytester: pytest.Pytester, root: Path) -> None:
    body = '@limit("step.onnx", max_peak=6400)\ndef test_fits(): pass\n'
    result = ran(pytester, body, "-p", "xdist", "-n", "1")
    result.assert_outcomes(failed=1)
    assert "FAIL  step.onnx  peak" in told(result)


def test_a_run_without_marks_loads_nothing_of_memplan(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_alone(): pass")
    code = f"""
import sys, pytest
ended = pytest.main({["-q", *PLUGIN]!r})
loaded = [m for m in sys.modules if m.startswith(("memplan", "onnx", "numpy"))]
sys.exit(ended or loaded != ["memplan", "memplan.pytest_plugin"] and str(loaded))
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_it_is_installed_as_a_plugin() -> None:
    (found,) = entry_points(group="pytest11", name="memplan")
    assert found.value == "memplan.pytest_plugin"
