"""What the project says of itself in several places: its version, its Pythons, what it was measured
on."""

import re
import tomllib
from pathlib import Path

import memplan
from memplan.ops.memory import semantics

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_pythons_that_are_tried_are_those_that_are_promised() -> None:
    classified = {
        found[1]
        for text in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text))
    }
    for name in ("ci", "release"):
        workflow = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
        tried = re.search(r"python: (\[.*\])", workflow)
        assert set(re.findall(r'"(3\.\d+)"', tried[1])) == classified
    assert PROJECT["project"]["requires-python"] == f">={min(classified, key=lambda v: int(v[2:]))}"


def test_one_version_stands_everywhere() -> None:
    version = PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert memplan.__version__ == version
    assert f'\nversion: "{version}"\n' in citation
    assert re.search(rf"^## \[.*\b{re.escape(version)}\b", changelog, re.MULTILINE)


def test_what_is_installed_as_measured_is_what_the_tables_were_measured_on() -> None:
    minor = semantics("cpu").runtime.removeprefix("onnxruntime ").rpartition(".")[0]
    pins = PROJECT["project"]["optional-dependencies"]["measured"]
    wanted = [each for each in PROJECT["project"]["dependencies"] if "onnxruntime" in each]
    assert [pin.replace(f"=={minor}.*", f">={minor}") for pin in pins] == wanted
