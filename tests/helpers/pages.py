"""A page of the documentation as a reader would follow it: its files written, its commands run,
what they print held against what the page shows."""

import math
import re
import runpy
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helpers.models import ROOT
from memplan_cli.main import main

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"[(']?([A-Za-z][a-z]*(?:-[a-z]+)*)[),.:;']*")
_FILE = re.compile(r"`([\w.-]+\.(?:py|js|mjs|html))`")
_LINKED = re.compile(r"\]\((?:\.\./)?(examples/([\w.]+))\)")


SEARCHED = ("rewrite", "sweep")
MEASURED = ("capture", "device", "profile", "run", "validate")

INSTALLS = re.compile(r"python3? -m venv |(?:\.venv/bin/)?pip install ")

Call = Callable[[list[str]], tuple[int, str]]
"""Runs a command's arguments: its exit code, and all that it prints."""


@dataclass(frozen=True, slots=True)
class Block:
    """``language`` is empty for commands and what they print; ``file``: the last file that the
    paragraph before the block names. ``span``: of ``text`` in the page."""

    language: str
    text: str
    file: str
    span: tuple[int, int]

    @property
    def is_command(self) -> bool:
        return not self.language and bool(re.match(r"(memplan|python3?|pip) ", self.text))

    @property
    def is_synopsis(self) -> bool:
        return (
            self.is_command and re.search(r" [A-Z]{3,}\b|\[-|MODEL|FUNCTION", self.text) is not None
        )


@dataclass(frozen=True, slots=True)
class Example:
    """Commands of one block, what the page shows of their output, and where."""

    commands: tuple[str, ...]
    shown: str = "..."
    span: tuple[int, int] | None = None

    @property
    def is_determined(self) -> bool:
        """Whether every run prints the same, but for seconds."""
        return not any(line.split()[1] in (*SEARCHED, *MEASURED) for line in self.commands)


@dataclass(frozen=True, slots=True)
class Page:
    """How a page is followed.

    Attributes:
        path: in ``docs/``.
        others: pages whose files are at hand, too.
        given: files that the page takes as given, or what makes them.
        before: commands to run before the first one that matches.
        quick: further arguments; of what is then printed, words are compared, not numbers.
        left_out: why a command is not run, or what runs it; or of another block by its first line.
        shorter: texts of the page's files, and what makes them quicker.
        fails: exit codes.

    Keys are globs of commands.
    """

    path: str
    others: Sequence[str] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quick: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    shorter: Mapping[str, str] = field(default_factory=dict)
    fails: Mapping[str, int] = field(default_factory=dict)


def blocks(page: str) -> list[Block]:
    """Of ``docs/<page>``, in their order."""
    found, whole, end = [], (DOCS / page).read_text(encoding="utf-8"), 0
    for match in _BLOCK.finditer(whole):
        language, text = match.groups()
        named = _FILE.findall(whole[end : match.start()].strip().rpartition("\n\n")[2])
        found.append(Block(language, text, named[-1] if named else "", match.span(2)))
        end = match.end()
    return found


def files(page: str) -> dict[str, str]:
    """What the reader is told to write, or to take from ``docs/examples``, by name."""
    linked = _LINKED.findall((DOCS / page).read_text(encoding="utf-8"))
    found = {block.file: block.text for block in blocks(page) if block.language and block.file}
    # What a page shows of an example is an excerpt.
    return found | {name: (DOCS / path).read_text(encoding="utf-8") for path, name in linked}


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Commands of one block, and what the page shows of their output."""
    for example in examples(page):
        yield "\n".join(example.commands) + "\n", example.shown


def examples(page: str) -> Iterator[Example]:
    """The page's commands, but for synopses and for what installs memplan."""
    found, whole = blocks(page), (DOCS / page).read_text(encoding="utf-8")
    for number, block in enumerate(found):
        direct = found[number + 1] if number + 1 < len(found) else None
        behind = next((each for each in found[number + 1 :] if not each.language), None)
        if behind is not None and "\n#" in whole[block.span[1] : behind.span[0]]:
            behind = None  # of another section
        run: tuple[str, ...] = ()
        if block.is_command and not block.is_synopsis:
            run = tuple(_runnable(block.text))
        elif block.file and direct is not None and direct is behind:  # a file, what it prints
            run = (f"python {block.file}",) if block.file.endswith(".py") else ()
            run = () if direct.is_command else run
        if run and behind is not None and not behind.is_command:
            yield Example(run, behind.text, behind.span)
        elif run:
            yield Example(run)


def _runnable(text: str) -> Iterator[str]:
    for part in _parts(text):
        line = part.removeprefix(".venv/bin/").partition("  #")[0].strip()
        if re.match(r"memplan |python \w+\.py", line):
            yield line


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"&&|\n", text) if part.strip()]


def loose(page: str) -> Iterator[Block]:
    """Blocks of the page that following it neither runs nor compares with what is printed.

    These are left out: synopses at the head of a command's page, files that are written, code that
    stands so in the repository, and drawings (``text``).
    """
    shown = {example.span for example in examples(page)}
    for number, block in enumerate(blocks(page)):
        if block.is_synopsis:
            told = number == 0 and "commands/" in page
        elif block.is_command:
            run = len(list(_runnable(block.text)))
            parts = _parts(block.text)
            told = run + sum(map(bool, map(INSTALLS.match, parts))) == len(parts)
        elif block.language == "python" and not block.file:
            told = _quoted(block.text)
        elif block.language and block.file:
            told = block.text in files(page)[block.file]
        else:
            told = block.span in shown or block.language == "text"
        if not told:
            yield block


def _quoted(text: str) -> bool:
    places = (*(ROOT / "memplan").rglob("*.py"), *(DOCS / "examples").glob("*.py"))
    return any(text in path.read_text(encoding="utf-8") for path in places)


def play(page: Page, call: Call, quickly: bool = True) -> Iterator[tuple[Example, str, bool]]:
    """Write the page's files to the current folder and run its commands there.

    Yields:
        An example, what its commands printed, and whether they ran as they stand.
    """
    if not Path("sample_models").exists():
        Path("sample_models").symlink_to(ROOT / "sample_models")
    found = dict(page.given)
    for each in (*page.others, page.path):
        found.update(files(each))
    for name, text in found.items():
        for long, short in page.shorter.items() if quickly else ():
            text = text.replace(long, short)
        Path(name).write_text(text, encoding="utf-8")
    ready: set[str] = set()
    for example in examples(page.path):
        printed, exact = [], not (quickly and page.shorter)
        if any(_of(page.left_out, line) for line in example.commands):
            continue
        for line in example.commands:
            for glob, needed in page.before.items():
                if fnmatchcase(line, glob) and glob not in ready:
                    ready.add(glob)
                    for each in needed:
                        _run(page, each, call, quickly)
            exact = exact and not (quickly and _of(page.quick, line))
            printed.append(_run(page, line, call, quickly))
        yield example, "".join(printed), exact


def _of(by_glob: Mapping[str, Any], line: str) -> Any:
    return next((value for glob, value in by_glob.items() if fnmatchcase(line, glob)), None)


def _run(page: Page, line: str, call: Call, quickly: bool) -> str:
    program, *arguments = shlex.split(line)
    more = (_of(page.quick, line) or ()) if quickly else ()
    if "-o" in arguments:  # a reader would have a folder for each section
        Path(arguments[arguments.index("-o") + 1]).unlink(missing_ok=True)
    code, printed = call([program, *arguments, *more])
    assert code == (_of(page.fails, line) or 0), f"{line}\n{printed}"
    return printed


def in_process(capsys: pytest.CaptureFixture[str]) -> Call:
    """Commands and files of Python, run in this process."""

    def call(words: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        code = 0
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
        else:
            code = main(words[1:])
        said = capsys.readouterr()
        return code, said.out or said.err

    return call


def follow(page: Page | str, capsys: pytest.CaptureFixture[str]) -> None:
    """Write the page's files to the current folder, run its commands, compare what they print."""
    page = Page(page) if isinstance(page, str) else page
    for example, printed, exact in play(page, in_process(capsys)):
        same = agrees if exact and example.is_determined else same_words
        assert same(example.shown, printed), (
            f"{example.commands}\n{printed}\n--- the page shows\n{example.shown}"
        )


def missing_words(shown: str, printed: str) -> list[str]:
    """Pairs of words side by side in a line of the page, and nowhere in what was printed.

    Numbers, units and names of tensors and files are no words: they differ from run to run.
    """
    there = set(_pairs(printed))
    pairs = (pair for line in shown.splitlines() for pair in _pairs(line))
    return [" ".join(pair) for pair in pairs if pair not in there]


def same_words(shown: str, printed: str) -> bool:
    """Whether the page says what was printed, numbers aside; rows may be fewer or more."""
    return not missing_words(shown, printed)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for one, other in pairwise(_WORD.fullmatch(word) for word in text.split()):
        if one and other:
            yield one[1], other[1]


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
