"""``memplan capture`` where it cannot work: exit codes, and two lines."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("target", "code"), [("nowhere.py:f", 2), ("train.py:absent", 2), ("train.py:number", 2)]
)
def test_a_bad_target_is_told_in_two_lines(
    target: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def number():\n    return 3\n")
    assert main(["capture", target, "-o", "step.onnx"]) == code
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["error", "hint"]
    assert not Path("step.onnx").exists()


def test_what_the_users_code_prints_is_not_the_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    source = tmp_path / "train.py"
    source.write_text("print('loading')\ndef f():\n    print('making')\n    raise SystemExit(0)\n")
    assert main(["capture", f"{source}:f", "-o", str(tmp_path / "step.onnx")]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("loading\nmaking\nerror: f() in ")


def test_there_is_no_capture_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "train.py:f", "-o", "-"]) == 2
    assert "capture cannot write to stdout" in capsys.readouterr().err


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
