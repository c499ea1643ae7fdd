"""What the rewritten file no longer has, as validation reads it."""

from pathlib import Path

import numpy as np
import pytest

import memplan
from helpers import odd_models as odd
from memplan.api.validate.same_interface import (
    removed_names,
    removed_notes,
    some_names,
    without_inputs,
)
from memplan.errors import ModelError
from memplan.proto.metadata import set_metadata


def test_names_that_are_gone_in_a_file(tmp_path: Path) -> None:
    gone = removed_names({"removed_outputs": ["a", "b"], "removed_inputs": "none"})
    assert gone == {"input": (), "output": ("a", "b")}
    assert removed_notes(gone) == [
        "2 outputs were removed from the rewritten model (--wrt), and not compared: a, b"
    ]
    assert some_names([str(k) for k in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    feeds = {"x": np.zeros(2), "m": np.ones(3)}
    archive = tmp_path / "inputs.npz"
    assert without_inputs(archive, feeds, ()) == archive
    with np.load(without_inputs(archive, feeds, ("m",))) as fewer:
        assert list(fewer) == ["x"]


def test_fusions_of_a_level_that_is_gone_are_refused() -> None:
    """Of a file that an earlier version made with ``rewrite --optimize basic``."""
    rewritten = odd.training()
    set_metadata(rewritten, {"optimize": "basic"})
    with pytest.raises(ModelError, match="fusions of level 'basic', which is gone") as caught:
        memplan.validate(odd.training(), rewritten)
    assert caught.value.hint == "rewrite the original again"
