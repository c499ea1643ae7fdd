"""A page of the documentation as a reader would follow it: its files written, its commands run,
what they print held against what the page shows."""

from __future__ import annotations

import math
import re
import runpy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.models import ROOT
from memplan_cli.main import main

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(.*?)^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w.-]+\.(?:py|js|mjs|html))`")


@dataclass(frozen=True, slots=True)
class Block:
    """``language`` is empty for commands and what they print; ``file``: the last file that the
    paragraph before the block names."""

    language: str
    text: str
    file: str = ""

    @property
    def is_command(self) -> bool:
        return not self.language and self.text.startswith(("memplan ", "python "))


def blocks(page: str) -> list[Block]:
    """Of ``docs/<page>``, in their order."""
    found = []
    for before, language, text in _BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        named = _FILE.findall(before.strip().rpartition("\n\n")[2])
        found.append(Block(language, text, named[-1] if named else ""))
    return found


def files(page: str) -> dict[str, str]:
    """What the reader is told to write, by name."""
    return {block.file: block.text for block in blocks(page) if block.language and block.file}


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Commands of one block, and what the page shows of their output."""
    found = [block for block in blocks(page) if not block.language]
    for block, behind in zip(found, [*found[1:], None], strict=True):
        if block.is_command:
            shown = behind is not None and not behind.is_command
            yield block.text, behind.text if shown and behind is not None else "..."


def follow(
    page: str, capsys: pytest.CaptureFixture[str], quick: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write the page's files to the current folder, run its commands, compare what they print.

    Args:
        page: its path in ``docs/``.
        capsys: of the test.
        quick: further arguments by command, as ``{"rewrite": ["--effort", "2"]}``; what such a
            command prints is not compared.
    """
    for name, text in files(page).items():
        Path(name).write_text(text, encoding="utf-8")
    for lines, shown in commands(page):
        capsys.readouterr()
        exact = True
        for line in lines.splitlines():
            program, *arguments = shlex.split(line)
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
                continue
            more = (quick or {}).get(arguments[0], ())
            exact = exact and not more
            assert main([*arguments, *more]) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
        if exact:
            assert agrees(shown, printed), f"{lines}\n{printed}\n--- the page shows\n{shown}"


def agrees(shown: str, printed: str, relative: float = 0.05) -> bool:
    """Whether ``printed`` is ``shown``, but for where lines break, what ``...`` on a line of its
    own stands for, and the last digits of fractions."""
    parts = [part.split() for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
    words = printed.split()
    place = 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        starts = range(place, len(words) - len(part) + 1) if number else range(1)
        if last and number and part:
            starts = range(len(words) - len(part), len(words) - len(part) + 1)
        found = next((s for s in starts if s >= place and _equal(part, words[s:], relative)), None)
        if found is None:
            return False
        place = found + len(part)
    return place == len(words) or not parts[-1]


def _equal(shown: list[str], words: list[str], relative: float) -> bool:
    return len(words) >= len(shown) and all(
        one == other or _close(one, other, relative)
        for one, other in zip(shown, words, strict=False)
    )


def _close(shown: str, word: str, relative: float) -> bool:
    pattern = r"([^\d]*?)([-+]?\d+\.\d+(?:e[-+]?\d+)?)([^\d]*)"
    one, other = re.fullmatch(pattern, shown), re.fullmatch(pattern, word)
    if one is None or other is None or (one[1], one[3]) != (other[1], other[3]):
        return False
    return math.isclose(float(one[2]), float(other[2]), rel_tol=relative)
