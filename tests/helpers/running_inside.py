"""Runs what a child process would run in the test's own process, which saves its start."""

from typing import Any

import pytest

from memplan.runtime import measure, run_child


def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, no question to the runtime starts a process."""

    def call(function: str, *arguments: object, **_: object) -> Any:
        return getattr(run_child, function.rpartition(":")[2])(*arguments)

    monkeypatch.setattr(measure, "call", call)
