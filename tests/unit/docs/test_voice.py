"""Phrases that no message, help text or document uses, with what to say instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BANNED = {
    r"there is no such": "unknown X 'y'",
    r"\bnobody\b(?! else)": "unused; nothing; no reader (people, not machines)",
    r"\bsomebody\b": "a caller; another (people, not machines)",
    r"\bthis very\b|\bthat very\b": "this",
    r"points of the best possible": "percentage points from optimal",
    r"\bits bits:": "outputs are bit-identical to ...",
    r"\blower only by\b": "to go lower: ...",
    r"\ba percentage of what\b": "expected a size, got a percentage",
    r"\bdoes not go with\b": "cannot be combined with",
    r"\bevery option on its default\b": "default options",
}
IN_MESSAGES = BANNED | {r"\b(?:is|are) wanted\b": "expected X, got 'y'"}
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    # Tables from records, by benchmarks.tables.
    if page.name != "benchmarks.md"
]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in silent:
            yield node.lineno, str(node.value)


def faults(text: str, banned: dict[str, str] = BANNED) -> list[str]:
    """The banned phrases in a text, with better ones."""
    return [
        f"{phrase}: say {better}"
        for phrase, better in banned.items()
        if re.search(phrase, text, re.IGNORECASE)
    ]


def test_messages() -> None:
    for folder in ("memplan", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for line, text in messages(path):
                assert not faults(text, IN_MESSAGES), f"{path}:{line}"


def test_help() -> None:
    """The docstrings of commands are help texts."""
    for path in (ROOT / "cli/memplan_cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "command":
                assert not faults(ast.get_docstring(node) or "", IN_MESSAGES), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents(page: Path) -> None:
    assert not faults(page.read_text(encoding="utf-8"))


def test_the_glossary_has_one_row_a_word() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
