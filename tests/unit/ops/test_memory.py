"""What the tables of operators say, held against the standard."""

from __future__ import annotations

import onnx.defs
import pytest

from memplan.ops.memory import OVERWRITES


@pytest.mark.parametrize("key", OVERWRITES)
def test_what_may_be_written_over_while_it_is_read_has_one_output(key: str) -> None:
    """A second output could be written before the old value is read for it."""
    domain, _, name = key.partition(":")
    assert onnx.defs.get_schema(name, domain=domain).max_output == 1
