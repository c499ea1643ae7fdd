"""A temporary folder that cannot be used ends a run in one line."""

from __future__ import annotations

import os

import pytest

from memplan.errors import RuntimeUnavailableError
from memplan.processes.scratch import scratch_folder


def test_a_full_temporary_folder_is_one_line() -> None:
    full = pytest.raises(RuntimeUnavailableError, match="No space left on device")
    with full as found, scratch_folder():
        raise OSError(28, os.strerror(28))
    assert "TMPDIR" in found.value.hint
