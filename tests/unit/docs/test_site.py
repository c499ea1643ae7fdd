"""The site of documents: every page has a place of its own and stands in the menu."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.tools import load_tool

site = load_tool("site_pages")
ROOT = Path(__file__).resolve().parents[3]


def test_every_page_stands_in_the_menu_once() -> None:
    listed: list[str] = []
    for (entry,) in (section.values() for section in site.menu()):
        listed += [entry] if isinstance(entry, str) else entry
    assert sorted(listed) == sorted(p.relative_to(ROOT).as_posix() for p in site.pages())
    assert listed[0] == "README.md"


def test_no_two_files_have_one_place() -> None:
    files = [*site.pages(), *site.linked_files()]
    assert all(file.is_file() for file in files)
    assert len({site.place(file) for file in files}) == len(files)
    assert site.place(ROOT / "docs/commands/check.md") == "commands/check/index.html"
    assert site.place(ROOT / "benchmarks/README.md") == "repository/benchmarks/index.html"


def test_what_a_page_links_to_is_a_page_or_comes_along() -> None:
    there = {*site.pages(), *site.linked_files()}
    for page in site.pages():
        for target in site.targets(page):
            assert (page.parent / target).resolve() in there, f"{page}: {target}"


def test_the_pictures_of_the_first_page_are_in_the_site() -> None:
    pictures = {f for f in site.linked_files() if f.suffix in {".png", ".svg"}}
    shown = [t for t in site.targets(ROOT / "README.md") if t.endswith((".png", ".svg"))]
    assert {(ROOT / target).resolve() for target in shown} <= pictures


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs .[docs]")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    for target in site.targets(ROOT / "README.md"):
        assert f'"{target}"' not in first or (tmp_path / target).exists(), target
