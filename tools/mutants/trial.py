"""A copy of the tree in which mutants are tried, one at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutant import Mutant, wide_tests

_COPIED = ("memplan", "cli", "tests", "tools", "benchmarks", "docs", "sample_models")
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_PYTEST = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-n", "0")
_FAILED, _INTERRUPTED = 1, 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: killed, survived, or why it was not tried."""

    mutant: Mutant
    state: str
    seconds: float
    by: str = ""


class Trial:
    """Runs tests in a copy of the tree at ``source``; ``folder`` is an empty one for it."""

    def __init__(self, source: Path, folder: Path, limit_seconds: float) -> None:
        self.root, self.limit = folder, limit_seconds
        for name in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source / name, folder / name, ignore=ignored)
        for name in _FILES:
            shutil.copy(source / name, folder / name)
        self.passes: dict[tuple[str, ...], bool] = {}

    def try_out(self, mutant: Mutant, wide: bool) -> Verdict:
        """Apply a mutant, run its tests (then those of its room, if ``wide``), take it back."""
        begin = time.monotonic()
        stale = mutant.stale(self.root)
        if stale:
            return Verdict(mutant, "stale", 0.0, stale)
        more = wide_tests(mutant.file, self.root) if wide else ()
        for tests in (mutant.tests, more):
            if not tests:
                continue
            if not self._passes_unchanged(tests):
                return Verdict(mutant, "untried", time.monotonic() - begin, "its tests fail as is")
            by = self._killed_by(mutant, tests)
            if by:
                return Verdict(mutant, "killed", time.monotonic() - begin, by)
        return Verdict(mutant, "survived", time.monotonic() - begin)

    def _passes_unchanged(self, tests: tuple[str, ...]) -> bool:
        """Whether the tests pass without a mutant; else their failure would say nothing."""
        if tests not in self.passes:
            code, _ = self._run(tests, self.limit * 4)
            self.passes[tests] = code == 0
        return self.passes[tests]

    def _killed_by(self, mutant: Mutant, tests: tuple[str, ...]) -> str:
        path = self.root / mutant.file
        kept = path.read_text()
        mutant.apply(self.root)
        try:
            code, output = self._run(tests, self.limit)
        finally:
            path.write_text(kept)
        if code is None:
            return "time limit"
        if code in (_FAILED, _INTERRUPTED):
            failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0].split(" - ")[0] if failed else "an error"
        return "" if code == 0 else f"pytest ended with {code}"

    def _run(self, tests: tuple[str, ...], limit: float) -> tuple[int | None, str]:
        """Exit code (None: out of time) and output of pytest."""
        slow = any("::" in test or test.startswith("tests/ort") for test in tests)
        chosen = [] if slow else ["-m", "not slow"]
        # No byte code: two mutants of one file may have the same size within one second.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'cli'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", *_PYTEST, *chosen, *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout
