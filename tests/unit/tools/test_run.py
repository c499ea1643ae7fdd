"""The other tools, each run once on something small."""

import ast
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from helpers.models import ROOT

TABLES = ROOT / "memplan" / "ops" / "tables"
MOST_BYTES, MOST_OF_ALL = 150_000, 1_000_000


def load(file: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of ``tools/``."""
    path = ROOT / "tools" / file
    spec = importlib.util.spec_from_file_location(f"tool_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module


# --- Mutants --------------------------------------------------------------------------------------

SOURCE = '''"""Text."""
def f(a: int, b: int = 1) -> int:
    # a < b
    if not a < b and b != 2:
        return a + 1
    return f"{a + b}"
'''


def test_operators_are_changed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.py"
    path.write_text(SOURCE)
    tool = load("mutants/__main__.py", monkeypatch)
    made = tool.sample(["x.py"], 100, 0, tmp_path)
    changed = {m.name.rpartition(" ")[2]: m.text for m in made}
    assert "a <= b and" in changed["comparison"] or "b == 2" in changed["comparison"]
    assert "if not not a < b and b" in changed["not"]
    assert "a < b or b" in changed["logic"]
    assert "a - 1" in changed["arithmetic"]
    assert "if False:" in changed["condition"]
    assert sum("return None" in m.text for m in made) == 2
    assert len({m.text for m in made}) == len(made) == 11
    for one in made:
        ast.parse(one.text)
        # Annotations and f-strings stay.
        assert "a: int, b: int" in one.text
        assert "a + b" in one.text or "return None" in one.text


@pytest.mark.nightly
def test_what_is_killed_and_what_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load("mutants/__main__.py", monkeypatch)
    package, tests = tmp_path / "memplan" / "room", tmp_path / "tests" / "unit" / "room"
    for folder in (package, tests):
        folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow: s']\n")
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "sign.py").write_text("def sign(x):\n    return x > 0\n")
    head = "from memplan.room.sign import sign\n\n\n"
    (tests / "test_sign.py").write_text(f"{head}def test_above():\n    assert sign(2)\n")
    trial, file = tool.Trial(tmp_path, 60), "memplan/room/sign.py"
    mutants = {
        text: tool.Mutant("m", file, f"def sign(x):\n    return x {text} 0\n", "a promise")
        for text in ("<", ">=")
    }
    assert trial.try_out(mutants["<"])[0] == "killed"
    assert trial.try_out(mutants[">="]) == ("survived", "a promise")
    assert (package / "sign.py").read_text().endswith("x > 0\n")
    (tests / "test_zero.py").write_text(f"{head}def test_zero():\n    assert not sign(0)\n")
    named = tool.Trial(tmp_path, 60, ["tests/unit/room/test_sign.py"])
    assert named.try_out(mutants[">="])[0] == "survived"
    trial.passes.clear()
    state, by = trial.try_out(mutants[">="])
    assert (state, "test_zero" in by) == ("killed", True)
    (tests / "test_sign.py").write_text("def test_bad():\n    assert sum([0])\n")
    trial.passes.clear()
    assert trial.try_out(mutants["<"])[0] == "untried"


# --- The probe ------------------------------------------------------------------------------------


def test_what_is_the_same_on_a_new_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "probe_ort"))
    tool = load("probe_ort/table.py", monkeypatch)
    text = (TABLES / "cpu.json").read_text()
    before = json.loads(text)
    after = {key: value for key, value in before.items() if key != "same_on"}
    assert tool.render(tool.kept(before, after)) == text
    after["runtime"] = "onnxruntime 9.9"
    found = tool.kept(before, after)
    assert found.pop("same_on") == [*before.pop("same_on"), "onnxruntime 9.9"]
    assert list(found.items()) == list(before.items())
    after["alias"] = {**after["alias"], ":Relu": [[0, 0]]}
    assert tool.kept(before, after) is after


def test_a_case_that_ends_its_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load("probe_ort/children.py", monkeypatch)
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys; from children import tell\n"
        "look = lambda case: os._exit(7) if case == 'b' else case if case != 'd' else None\n"
        "tell([(k, c) for k, c in enumerate('abcde') if k >= int(sys.argv[1])], look)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "probe_ort")}
    found = tool.told([str(script)], environment)
    assert found == {0: "a", 1: {"died": 7}, 2: "c", 4: "e"}


# --- Pictures -------------------------------------------------------------------------------------


def test_every_picture_is_there_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load("screenshots.py", monkeypatch)
    found = {path.name: path.read_bytes() for path in tool.IMAGES.glob("*.png")}
    assert set(found) == {name for each in tool.PICTURES for name in each.files}
    assert max(map(len, found.values())) < MOST_BYTES
    assert sum(map(len, found.values())) < MOST_OF_ALL


@pytest.mark.nightly
def test_pictures_are_of_the_pages_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("markdown_it")
    tool = load("screenshots.py", monkeypatch)
    recorded = json.loads((tool.IMAGES / tool.SOURCES).read_text(encoding="utf-8"))
    assert tool.digests(tool.pages(tmp_path)) == recorded, "run: python tools/screenshots.py"
