"""Runs the command line in the test's own process, which saves the start of an interpreter."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.schemas import assert_published
from memplan_cli.main import main

Memplan = Callable[..., subprocess.CompletedProcess[str]]


def runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """Like the ``memplan`` fixture: runs in ``folder`` and returns exit code and output."""
    monkeypatch.chdir(folder)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert_published(out)
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run
