"""Runs what a child process would run in the test's own process, which saves its start."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.runtime import measure, optimize, run_child


def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, no task starts a process."""

    def run(task: Any, answer: type, what: str, *_: object, **__: object) -> Any:
        return run_child.carry_out(task)

    for module in (measure, optimize):
        monkeypatch.setattr(module, "run_child", run)
