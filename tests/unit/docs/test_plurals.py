"""Messages count properly: never "1 nodes"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import memplan
import memplan_cli

NOUNS = (
    "node|tensor|run|output|shape|loop|input|module|name|model|parameter|operator|entry|draw|copy|"
    "dimension|initializer|bottleneck|pair|recomputed node|more output|more input|thread|branch"
)
PLURAL = re.compile(rf" (?:{NOUNS})e?s\b".replace("entry", "entrie").replace("copy", "copie"))
# What is always several: a total that something is said to be a part of; limits.
PARTS = re.compile(r"(?:\bof|at most|more than|takes|above|several) $")


def _counted_wrongly(tree: ast.AST) -> Iterator[int]:
    """Lines with a number in front of a noun that is always in the plural."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        before = ""
        for part, following in zip(text.values, [*text.values[1:], None], strict=True):
            if (
                isinstance(part, ast.FormattedValue)
                and isinstance(following, ast.Constant)
                and PLURAL.match(str(following.value))
                and not PARTS.search(before)
            ):
                yield part.lineno
            before = str(part.value) if isinstance(part, ast.Constant) else ""


def test_no_message_puts_a_number_before_a_fixed_plural() -> None:
    """``memplan.units.counted`` chooses."""
    found = [
        f"{path.name}:{line}"
        for package in (memplan, memplan_cli)
        for path in sorted(Path(package.__file__).parent.rglob("*.py"))  # type: ignore[arg-type]
        for line in _counted_wrongly(ast.parse(path.read_text()))
    ]
    assert found == []
