"""A mutant: the program with one promise broken, and the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders of tests that mirror the package's.
_KINDS = ("unit", "property", "golden")


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands once in ``file`` (from the root of the tree) and becomes ``new``.

    ``breaks``: the promise that is broken. ``tests``: arguments of pytest, quick ones.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def stale(self, root: Path = ROOT) -> str | None:
        """Why it cannot be applied to the tree at ``root``; None if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} is not there"
        count = path.read_text().count(self.old)
        return None if count == 1 else f"the old text stands {count} times in {self.file}"

    def missing(self, root: Path = ROOT) -> list[str]:
        """Files among its tests that are not there."""
        paths = (test.partition("::")[0] for test in self.tests)
        return [path for path in paths if not (root / path).exists()]

    def apply(self, root: Path) -> None:
        """Edit the file below ``root``."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def room_of(file: str) -> str:
    """The folder of tests that mirrors a file's: ``memplan/solver/evaluate.py`` is ``solver``."""
    parts = Path(file).parts
    return parts[1] if parts[0] == "memplan" and len(parts) > 2 else ""


def wide_tests(file: str, root: Path = ROOT) -> tuple[str, ...]:
    """All quick tests of a file's room."""
    room = room_of(file)
    folders = [f"tests/{kind}/{room}" for kind in _KINDS] if room else ["tests/unit"]
    return tuple(folder for folder in folders if (root / folder).is_dir())


def own_tests(file: str, root: Path = ROOT) -> tuple[str, ...]:
    """The test files that mirror a file, else the nearest folders that mirror one around it."""
    path = Path(*Path(file).parts[1:])
    found = [f"tests/{kind}/{path.with_name(f'test_{path.stem}.py')}" for kind in _KINDS]
    found = [test for test in found if (root / test).is_file()]
    while not found and path.parent.name:
        path = path.parent
        folders = [f"tests/{kind}/{path}" for kind in _KINDS]
        found = [folder for folder in folders if (root / folder).is_dir()]
    return tuple(found) or ("tests/unit",)
