"""Writes into a page of the documentation what its commands print today.

    python -m tools.shown [--update] PAGE ...

PAGE is a path in ``docs/``, such as ``commands/analyze.md``. The commands run in a temporary folder
as a reader would run them, and ``...`` on a line of its own goes on standing for what the page
leaves out. Without ``--update`` the difference is printed. What is measured is that of this
machine: run it where nothing else does. What each page takes as given is in
``tests/helpers/page_list.py``.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e-?\d+)?")


def call(words: list[str]) -> tuple[int, str]:
    """Runs a command in a process of its own."""
    program = Path(sys.executable).parent / words[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [program, *words[1:]], capture_output=True, text=True, check=False, env=environment
    )
    print("ran:", *words, file=sys.stderr, flush=True)
    return done.returncode, done.stdout or done.stderr


def renewed(shown: str, printed: str) -> str:
    """``printed``, cut where ``shown`` is."""
    lines = printed.splitlines()
    parts = [part.splitlines() for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    place, found = 0, []
    for part in parts:
        first = _like(part[0], lines, place, place) if part else place
        end = _like(part[-1], lines, first, first + len(part) - 1) + 1 if part else first
        found.append("".join(f"{line.rstrip()}\n" for line in lines[first:end] if part))
        place = min(end, len(lines) - 1)
    return "...\n".join(found)


def _like(line: str, lines: list[str], place: int, near: int) -> int:
    """The line from ``place`` on that is most like ``line``, numbers aside; of several, the one
    that is next to ``near``."""

    def likeness(number: int) -> float:
        one, other = (" ".join(_NUMBER.sub("#", text).split()) for text in (line, lines[number]))
        return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()

    return max(range(place, len(lines)), key=lambda number: (likeness(number), -abs(number - near)))


def updated(path: str) -> str:
    """The page's text with what its commands print today."""
    from helpers.page_list import PAGES
    from helpers.pages import DOCS, Page, play

    page = next((page for page in PAGES if page.path == path), Page(path))
    text = (DOCS / path).read_text(encoding="utf-8")
    done = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        done = list(play(page, call, quickly=False))
        os.chdir(ROOT)
    for example, printed, _ in reversed(done):
        if example.span is not None:
            start, end = example.span
            text = text[:start] + renewed(example.shown, printed) + text[end:]
    return text


def main() -> None:
    """Updates pages, or prints what would change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("pages", nargs="+", metavar="PAGE")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from helpers.pages import DOCS

    for path in arguments.pages:
        old, new = (DOCS / path).read_text(encoding="utf-8"), updated(path)
        if arguments.update:
            (DOCS / path).write_text(new, encoding="utf-8")
        else:
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), new.splitlines(True), path)
            )


if __name__ == "__main__":
    main()
