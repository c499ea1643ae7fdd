"""The backward of a recurrent cell, text in and text out: ``scan_cell.onnxtxt`` and what ``grad``
makes of it, ``scan_cell.SETTING.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected files anew; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import pytest

import memplan
from helpers.gradients import runtime
from helpers.loops import pairs_of, reopened
from memplan.errors import UsageError

FOLDER = Path(__file__).parent
SETTINGS = {"none": "none", "names": "left+right+g+n", "all": "all", "auto": "auto"}
STORED = {
    "none": ["m", "g", "n"],
    "names": ["m", "p"],
    "all": ["h"],
    "auto": ["m", "p"],
}


def trained(recompute: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model((FOLDER / "scan_cell.onnxtxt").read_text())
    return memplan.gradients(model, ["all"], ["w", "b", "h0"], scan_recompute=recompute)


@pytest.mark.parametrize("name", SETTINGS)
def test_expected_text(name: str) -> None:
    model = trained(SETTINGS[name])
    text = "\n".join(line.rstrip() for line in onnx.printer.to_text(model).splitlines()) + "\n"
    path = FOLDER / f"scan_cell.{name}.onnxtxt"
    if os.environ.get("MEMPLAN_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), "set MEMPLAN_UPDATE_GOLDEN=1 to accept it"
    (pair,) = pairs_of(reopened(model))
    assert [item.tensor for item in pair.stored] == STORED[name]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "none"])
def test_same_bits(name: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"x": (5, 3, 4), "h0": (3, 4), "w": (4, 8), "b": (8,)}
    feeds = {key: random.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    before, after = runtime(trained("none"), feeds), runtime(trained(SETTINGS[name]), feeds)
    for key, array in before.items():
        assert array.tobytes() == after[key].tobytes(), key


def test_a_partly_listed_operator_is_an_error() -> None:
    """Caffe2's rule, which names what is missing."""
    with pytest.raises(UsageError) as caught:
        trained("left+g")
    assert str(caught.value) == (
        "--scan-recompute: Split 'cut' can be recomputed only with all its outputs; "
        "not named: right"
    )
    assert caught.value.hint == "add them: --scan-recompute 'left+g+right'"
