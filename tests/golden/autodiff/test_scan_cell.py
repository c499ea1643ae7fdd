"""The backward of a recurrent cell, text in and text out: ``scan_cell.onnxtxt`` and what ``grad``
makes of it, ``scan_cell.none.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected file anew; read the diff.
"""

import os
from pathlib import Path

import onnx
import onnx.parser
import onnx.printer

import memplan
from helpers.loops import pairs_of, reopened

FOLDER = Path(__file__).parent


def test_expected_text() -> None:
    forward = onnx.parser.parse_model((FOLDER / "scan_cell.onnxtxt").read_text())
    model = memplan.gradients(forward, ["all"], ["w", "b", "h0"])
    text = "\n".join(line.rstrip() for line in onnx.printer.to_text(model).splitlines()) + "\n"
    path = FOLDER / "scan_cell.none.onnxtxt"
    if os.environ.get("MEMPLAN_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), "set MEMPLAN_UPDATE_GOLDEN=1 to accept it"
    (pair,) = pairs_of(reopened(model))
    assert [item.tensor for item in pair.stored] == ["m", "g", "n"]
