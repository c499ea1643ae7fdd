"""What validate finds, and which of its parts."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers import fooling, wrong_files
from helpers.running_inside import without_children
from memplan.api.validate.result import Validation
from memplan.api.validate.run import ValidateOptions, validate

pytestmark = pytest.mark.ort


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    without_children(monkeypatch)


def validated(
    folder: Path, first: onnx.ModelProto, second: onnx.ModelProto, **options: object
) -> Validation:
    paths = folder / "original.onnx", folder / "rewritten.onnx"
    for path, model in zip(paths, (first, second), strict=True):
        onnx.save(model, path)
    settings = {"runs": 1, "plain": False, "threads": 1, **options}
    return validate(*paths, ValidateOptions(**settings))  # type: ignore[arg-type]


def parts(found: Validation) -> set[str]:
    return {finding.part for finding in found.findings}


@pytest.mark.parametrize("name", fooling.PAIRS)
def test_what_once_fooled_it_is_found(name: str, tmp_path: Path) -> None:
    case = fooling.PAIRS[name]()
    found = validated(tmp_path, case.original, case.rewritten)
    assert parts(found) == case.parts, [str(f) for f in found.findings]
    assert not found.proved
    same = validated(tmp_path, case.original, case.original)
    assert same.findings == (), [str(f) for f in same.findings]
