"""What the trial of a release asks of wheel, sdist and README; and that one version stands
everywhere. The trial itself takes minutes: ``python tools/try_release.py``."""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import memplan
from helpers.tools import load_tool
from memplan.api.versions import measured_runtime

trial = load_tool("try_release")
ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = ["README.md", "cli/memplan_cli/main.py", "memplan/units.py", "tests/conftest.py"]
IN_WHEEL = ["memplan/units.py", "memplan_cli/main.py", "memplan-0.1.0.dist-info/RECORD"]


def packed(folder: Path, wheel: Iterable[str], sdist: Iterable[str]) -> object:
    """A release of empty files."""
    release = trial.Release(folder / "memplan.whl", folder / "memplan.tar.gz")
    with zipfile.ZipFile(release.wheel, "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    with tarfile.open(release.sdist, "w:gz") as archive:
        for name in sdist:
            archive.addfile(tarfile.TarInfo(f"memplan-0.1.0/{name}"), io.BytesIO())
    return release


@pytest.mark.parametrize(
    ("wheel", "sdist", "wrong"),
    [
        (IN_WHEEL, SOURCES, None),
        ([*IN_WHEEL, "tests/conftest.py"], SOURCES, "wheel differs.*tests/conftest.py"),
        (IN_WHEEL[1:], SOURCES, "wheel differs.*memplan/units.py"),
        (IN_WHEEL, SOURCES[:-1], "sdist lacks tests/conftest.py"),
        (IN_WHEEL, SOURCES[1:], "sdist lacks README.md"),
        (IN_WHEEL, [*SOURCES, "notes.txt"], "not committed: notes.txt"),
    ],
)
def test_the_wheel_is_the_packages_and_the_sdist_has_what_tests_need(
    wheel: list[str],
    sdist: list[str],
    wrong: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_sources", lambda: SOURCES)
    release = packed(tmp_path, wheel, sdist)
    if wrong is None:
        trial.check_contents(release)
        return
    with pytest.raises(trial.FailedError, match=wrong):
        trial.check_contents(release)


def test_the_readme_has_commands_to_try() -> None:
    commands = [call[0] for call in trial.readme_commands()]
    assert "rewrite" in commands
    assert "validate" in commands


def test_the_pythons_that_are_tried_are_those_that_are_promised() -> None:
    classified = {
        found[1]
        for text in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text))
    }
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert set(trial.PYTHONS) == classified
    assert set(re.findall(r'"(3\.\d+)"', workflow)) == classified
    assert PROJECT["project"]["requires-python"] == f">={trial.PYTHONS[0]}"


def test_a_python_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "check_contents", lambda release: None)
    packed(tmp_path, IN_WHEEL, SOURCES)
    assert trial.main(["--dist", str(tmp_path), "--python", "3.99"]) == 1
    assert "python 3.99: FAIL not found" in capsys.readouterr().out


def test_a_record_keeps_what_it_says_of_other_pythons(tmp_path: Path) -> None:
    path = tmp_path / "release.json"
    for wanted, failed in (("3.12", "x"), ("3.11", None), ("3.12", None)):
        trial.write_record(path, {"wanted": wanted, "failed": failed})
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert [(row["wanted"], row["failed"]) for row in rows] == [("3.11", None), ("3.12", None)]


def test_what_fails_is_told_with_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(trial.FailedError, match=r"^it ended with 3: last$"):
        trial._run([sys.executable, "-c", "print('first\\nlast'); raise SystemExit(3)"], "it")
    assert "first" in capsys.readouterr().out


def test_one_version_stands_everywhere() -> None:
    version = PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert memplan.__version__ == version
    assert f'\nversion: "{version}"\n' in citation
    assert re.search(rf"^## \[.*\b{re.escape(version)}\b", changelog, re.MULTILINE)


def test_what_is_installed_as_measured_is_what_the_tables_were_measured_on() -> None:
    minor = measured_runtime().removeprefix("onnxruntime ").rpartition(".")[0]
    pins = PROJECT["project"]["optional-dependencies"]["measured"]
    wanted = [each for each in PROJECT["project"]["dependencies"] if "onnxruntime" in each]
    assert [pin.replace(f"=={minor}.*", f">={minor}") for pin in pins] == wanted
