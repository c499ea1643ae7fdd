"""What the rewritten file no longer has, as validation reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memplan.api.validate.same_interface import (
    removed_names,
    removed_notes,
    some_names,
    without_inputs,
)


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
