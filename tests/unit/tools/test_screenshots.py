"""The pictures of the documentation: all there, small, and made of the pages of today."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES, MOST_OF_ALL = 150_000, 1_000_000


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", ROOT / "tools" / "screenshots.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "screenshots", module)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_there_and_small(tool: ModuleType) -> None:
    wanted = {name for each in tool.PICTURES for name in each.files}
    found = {path.name: path.read_bytes() for path in tool.IMAGES.glob("*.png")}
    assert set(found) == wanted
    assert all(content.startswith(b"\x89PNG\r\n\x1a\n") for content in found.values())
    assert max(map(len, found.values())) < MOST_BYTES
    assert sum(map(len, found.values())) < MOST_OF_ALL
    recorded = json.loads((tool.IMAGES / tool.SOURCES).read_text(encoding="utf-8"))
    assert set(recorded) == {each.page for each in tool.PICTURES}


@pytest.mark.slow
def test_they_are_of_the_pages_of_today(tool: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("markdown_it")
    recorded = json.loads((tool.IMAGES / tool.SOURCES).read_text(encoding="utf-8"))
    made = tool.digests(tool.pages(tmp_path))
    changed = [page for page, digest in made.items() if recorded[page] != digest]
    assert not changed, "run: python tools/screenshots.py"
