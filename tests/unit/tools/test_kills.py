"""A few kills of tools/kills: every output is old or new, and whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_command_that_is_killed_while_it_writes_damages_nothing() -> None:
    command = [sys.executable, str(ROOT / "tools" / "kills"), "--command", "lower", "--kills", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lower: 4 kills" in done.stdout
    assert "0 faults" in done.stdout
