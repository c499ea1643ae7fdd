"""The lowest versions that are tried are those of pyproject.toml."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def lower_bounds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lower_bounds", ROOT / "tools/lower_bounds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_dependency_has_a_lower_bound_that_is_tried() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = lower_bounds().lowest(wanted)
    assert len(pinned) == len(wanted)
    assert all("==" in requirement for requirement in pinned)


def test_conditions_are_kept_and_a_missing_bound_is_an_error() -> None:
    lowest = lower_bounds().lowest
    assert lowest(["a>=1.2; sys_platform == 'linux'"]) == ["a==1.2.*; sys_platform == 'linux'"]
    with pytest.raises(ValueError, match="no lower bound"):
        lowest(["numpy"])
