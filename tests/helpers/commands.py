"""What every command's output is held against."""

from __future__ import annotations

import subprocess
from typing import Any


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Stdout of a run that must have worked without a word on stderr."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def integers_end_in_bytes(found: dict[str, Any]) -> bool:
    """Whether every size is an integer (sizes end in ``_bytes``)."""
    return all(
        isinstance(value, int) or value is None
        for key, value in found.items()
        if key.endswith("_bytes")
    )
