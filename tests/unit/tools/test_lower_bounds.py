"""The lowest versions that are tried are those of pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from helpers.tools import load_tool

ROOT = Path(__file__).resolve().parents[3]
lowest = load_tool("lower_bounds").lowest


def test_every_dependency_has_a_lower_bound_that_is_tried() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = lowest(wanted)
    assert len(pinned) == len(wanted)
    assert all("==" in requirement for requirement in pinned)


def test_conditions_are_kept_and_a_missing_bound_is_an_error() -> None:
    assert lowest(["a>=1.2; sys_platform == 'linux'"]) == ["a==1.2.*; sys_platform == 'linux'"]
    with pytest.raises(ValueError, match="no lower bound"):
        lowest(["numpy"])
