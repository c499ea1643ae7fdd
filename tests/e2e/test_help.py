"""Help, versions, colours and defaults of the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from helpers import odd_models as odd
from helpers.commands import succeeded
from helpers.odd_models import saved
from helpers.running import Memplan

pytestmark = pytest.mark.e2e


MODEL, OUT = "model.onnx", "model.memplan.onnx"


ESCAPE = "\x1b["


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(flag: str, memplan: Memplan) -> None:
    text = succeeded(memplan(flag))
    assert text.startswith("Usage: memplan ")
    for command in ("analyze", "check", "profile", "rewrite", "strategies", "sweep", "validate"):
        assert f"\n  {command} " in text


def test_version(memplan: Memplan) -> None:
    assert succeeded(memplan("--version")) == f"memplan {version('memplan')}\n"


@pytest.mark.parametrize(
    "command", ["analyze", "check", "profile", "rewrite", "strategies", "sweep", "validate"]
)
def test_help_of_a_command(command: str, inside: Memplan) -> None:
    text = succeeded(inside(command, "--help"))
    assert text.startswith(f"Usage: memplan {command} ")
    assert "_configuration" not in text
    for option in ("--quiet", "--verbose", "--color", "--force", "--format"):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "environment", "colored"),
    [
        ((), {}, False),  # stdout is no terminal
        (("--color", "never"), {}, False),
        (("--color", "always"), {}, True),
        (("--color", "auto"), {"NO_COLOR": "1"}, False),
        pytest.param(
            ("--color", "never"),
            {"FORCE_COLOR": "1"},
            False,
        ),
    ],
)
def test_colors(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    colored: bool,
    memplan: Memplan,
    model: Path,
) -> None:
    text = succeeded(memplan("analyze", MODEL, *arguments, **environment))
    assert (ESCAPE in text) == colored


def test_defaults_from_pyproject(inside: Memplan, model: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.memplan]\nsession = "default"\nbudget = "100%"\nformat = "text"\n'
        '[tool.memplan.analyze]\nformat = "json"\n'
    )
    found = json.loads(succeeded(inside("analyze", MODEL)))
    assert found["session"] == "default"
    found = json.loads(succeeded(inside("analyze", MODEL, "--session", "tuned")))
    assert found["session"] == "tuned"
    assert "peak " in succeeded(inside("analyze", MODEL, "--format", "text"))


def test_defaults_from_a_folder_above(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "deeper"
    inner.mkdir(parents=True)
    saved(odd.symbolic(), inner)
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\ndim = ["N=5"]\nformat = "json"\n')
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run(
        [script, "analyze", MODEL], cwd=inner, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["dims"] == {"N": 5}


def test_a_pyproject_of_others_changes_nothing(
    inside: Memplan, model: Path, tmp_path: Path
) -> None:
    text = succeeded(inside("analyze", MODEL))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.other]\ntop = "z"\n')
    assert succeeded(inside("analyze", MODEL)) == text


def test_one_value_for_an_option_that_takes_many(
    inside: Memplan, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\nkeep = "act"\noptimize = "none"\n')
    done = inside("rewrite", MODEL, "--budget", "100%", "--dry-run", "--format", "json")
    assert json.loads(succeeded(done))["optimize"] == "none"
