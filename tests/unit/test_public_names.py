"""The public names: complete, loaded on first use, and nothing heavy before that."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import memplan
from helpers.processes import HANG_SECONDS

HEAVY = ("numpy", "onnx", "onnxruntime", "numba", "rich", "click", "highspy", "joblib")
HEAVY += ("ml_dtypes", "flatbuffers", "safetensors")
PACKAGE = Path(memplan.__file__).parent


def loaded(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after ``code``."""
    program = (
        f"{code}\nimport sys\nsys.stderr.write(' '.join(m for m in {HEAVY} if m in sys.modules))"
    )
    # Coverage and other site hooks must not load anything first.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def names_imported_for_type_checkers() -> set[str]:
    """What ``memplan/__init__.py`` imports under ``TYPE_CHECKING``."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    return {a.name for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}


def test_all_is_complete_and_sorted() -> None:
    assert sorted(memplan.__all__) == memplan.__all__
    assert set(memplan.__all__) == names_imported_for_type_checkers()
    assert set(memplan.__all__) | {"__version__"} == set(dir(memplan))


@pytest.mark.parametrize("name", memplan.__all__)
def test_every_public_name_is_what_its_module_defines(name: str) -> None:
    found = getattr(memplan, name)
    assert found.__name__ == name
    assert found.__doc__
    home = found.__module__
    assert home.startswith("memplan.")
    assert getattr(import_module(home), name) is found


def test_public_functions_stay_the_same_on_second_use() -> None:
    """In an interpreter that has loaded none: a package of the same name may not take its place."""
    names = [n for n in memplan.__all__ if n.islower() and n not in ("parse_size", "torch_solver")]
    code = f"import memplan\nfirst = {{n: getattr(memplan, n) for n in {names}}}\n"
    code += "assert all(getattr(memplan, n) is found for n, found in first.items())"
    assert "onnx" in loaded(code)


def test_functions_and_their_answers_are_public_together() -> None:
    """What a public function returns can be named by its caller."""
    for function in ("analyze", "lower", "profile", "rewrite", "sweep", "validate"):
        annotation = getattr(memplan, function).__annotations__["return"]
        assert annotation in memplan.__all__


def test_functions_and_their_options_are_public_together() -> None:
    """What a public function takes can be made from public names."""
    for function in ("grad", "lower", "profile", "rewrite", "sweep", "validate"):
        hints = getattr(memplan, function).__annotations__
        assert any(f"{function.title()}Options" in str(hint) for hint in hints.values())
        assert f"{function.title()}Options" in memplan.__all__
    options = memplan.RewriteOptions(memplan.parse_size("60%"))
    assert options.budget == memplan.parse_size("60%")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'memplan' has no attribute 'nothing'"):
        memplan.nothing  # noqa: B018


MAIN = "from memplan_cli.main import main\n"


@pytest.mark.parametrize(
    ("code", "packages"),
    [
        ("import memplan; dir(memplan); memplan.__version__; memplan.__all__", set()),
        ("from memplan import MemplanError; import memplan.units", set()),
        ("from memplan import analyze", {"numpy", "onnx", "ml_dtypes"}),
        (f"{MAIN}assert main(['--help']) == 0", {"click"}),
        (f"{MAIN}assert main(['-h']) == 0", {"click"}),
        (f"{MAIN}assert main(['--version']) == 0", {"click"}),
        (f"{MAIN}assert main(['strategies', '-q']) == 0", {"click", "numpy"}),
    ],
)
def test_nothing_is_loaded_before_it_is_used(code: str, packages: set[str]) -> None:
    assert loaded(code) == packages


def test_help_of_a_command_loads_no_runtime() -> None:
    found = loaded(f"{MAIN}assert main(['rewrite', '--help']) == 0")
    assert not found & {"onnxruntime", "numba", "highspy"}


def test_the_version_is_the_distribution_s() -> None:
    assert memplan.__version__ == version("memplan")


def test_the_program_is_installed() -> None:
    (script,) = (e for e in entry_points(group="console_scripts") if e.name == "memplan")
    assert script.value == "memplan_cli.main:run"


def test_the_package_is_typed() -> None:
    """Type checkers look for the marker file."""
    assert (PACKAGE / "py.typed").is_file()
