"""``memplan capture`` where it cannot work: exit codes, and two lines."""

from pathlib import Path

import pytest

from memplan_cli.capture import _dynamic
from memplan_cli.main import main


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from memplan.pytorch import installed_torch

    monkeypatch.setattr(installed_torch, "find_spec", lambda name: None)
    source = tmp_path / "train.py"
    source.write_text("raise SystemExit")
    assert main(["capture", f"{source}:f", "-o", str(tmp_path / "step.onnx")]) == 5
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "error: capture needs torch and onnxscript, which this environment does not have",
        "hint: pip install 'memplan[torch]'",
    ]


def test_forms_of_dynamic() -> None:
    assert _dynamic(()) is None
    assert _dynamic(("batch",)) == "batch"
    several = _dynamic(("x:0=batch", "x:1=length", "y:0=batch"))
    assert several == {"x": {0: "batch", 1: "length"}, "y": {0: "batch"}}


@pytest.mark.parametrize("text", ["x:0", "x:a=n", "x=n", "x:0=a b", "a b"])
def test_bad_forms_of_dynamic(text: str) -> None:
    from memplan.errors import UsageError

    with pytest.raises(UsageError, match="--dynamic"):
        _dynamic((text, "y:0=n"))
