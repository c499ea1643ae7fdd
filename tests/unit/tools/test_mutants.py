"""Mutants are made by rule, and the runner tells killed from survived."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tools" / "mutants"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the tool, which is a folder of scripts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def mutant(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("mutant", monkeypatch)


@pytest.fixture
def operators(mutant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    assert mutant
    return load("operators", monkeypatch)


@pytest.fixture
def trial(mutant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    assert mutant
    return load("trial", monkeypatch)


SOURCE = '''"""Text."""
def f(a: int, b: int = 1) -> int:
    # a < b
    if not a < b and b != 2:
        return a + 1
    return f"{a + b}"
'''


def test_operators_are_changed_one_at_a_time(operators: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "memplan" / "x.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    made = operators.mutants_of(path, tmp_path)
    changed = {m.name.rpartition(" ")[2]: m.new for m in made}
    assert "a <= b and" in changed["comparison"] or "b == 2" in changed["comparison"]
    assert "if a < b and b" in changed["not"]
    assert "a < b or b" in changed["logic"]
    assert "a - 1" in changed["arithmetic"]
    assert "if False:" in changed["condition"]
    assert sum("return None" in m.new for m in made) == 2
    assert len({m.new for m in made}) == len(made) == 11
    for one in made:
        ast.parse(one.new)
        # Comments, annotations and f-strings stay.
        assert "# a < b" in one.new
        assert "a: int, b: int" in one.new
        assert 'f"{a + b}"' in one.new or "return None" in one.new


def test_a_sample_is_the_same_for_a_seed(operators: ModuleType) -> None:
    area = ["memplan/runtime/compare_outputs.py"]
    names = [m.name for m in operators.sample(area, 5, 3)]
    assert names == [m.name for m in operators.sample(area, 5, 3)]
    assert names != [m.name for m in operators.sample(area, 5, 4)]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A tree as small as the runner takes."""
    for name in ("memplan", "cli", "tests", "tools", "benchmarks", "docs", "sample_models"):
        (tmp_path / name).mkdir()
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow: s']\n")
    (tmp_path / "memplan" / "room").mkdir()
    (tmp_path / "memplan" / "room" / "__init__.py").write_text("")
    (tmp_path / "memplan" / "__init__.py").write_text("")
    (tmp_path / "memplan" / "room" / "sign.py").write_text("def sign(x):\n    return x > 0\n")
    return tmp_path


@pytest.mark.slow
def test_what_is_killed_and_what_survives(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, mutant: ModuleType, trial: ModuleType
) -> None:
    folder = tree / "tests" / "unit" / "room"
    folder.mkdir(parents=True)
    head = "from memplan.room.sign import sign\n\n\n"
    (folder / "test_sign.py").write_text(f"{head}def test_above():\n    assert sign(2)\n")
    (folder / "test_zero.py").write_text(f"{head}def test_zero():\n    assert not sign(0)\n")
    (folder / "test_bad.py").write_text("def test_bad():\n    assert sum([0])\n")
    bench = trial.Trial(tree, tmp_path_factory.mktemp("copy"), 60)

    def state(old: str, new: str, *tests: str) -> str:
        paths = tuple(f"tests/unit/room/{test}" for test in tests)
        made = mutant.Mutant("m", "memplan/room/sign.py", old, new, "a promise", paths)
        return bench.try_out(made, wide=False).state

    assert state("x > 0", "x < 0", "test_sign.py") == "killed"
    assert state("x > 0", "x >= 0", "test_sign.py") == "survived"
    assert state("x > 0", "x >= 0", "test_sign.py", "test_zero.py") == "killed"
    assert state("x > 1", "x >= 0", "test_sign.py") == "stale"
    assert state("x > 0", "x >= 0", "test_bad.py") == "untried"
    assert (tree / "memplan" / "room" / "sign.py").read_text().endswith("x > 0\n")
    (bench.root / "tests" / "unit" / "room" / "test_bad.py").unlink()
    path = ("tests/unit/room/test_sign.py",)
    made = mutant.Mutant("m", "memplan/room/sign.py", "x > 0", "x >= 0", "a promise", path)
    verdict = bench.try_out(made, wide=True)
    assert (verdict.state, "test_zero" in verdict.by) == ("killed", True)
