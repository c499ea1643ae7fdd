"""Break the program in one place, and see whether a test notices.

    python tools/mutants --sample 100 --area memplan/simulate

Each mutant changes one operator at a place drawn from chosen folders: a comparison at its limit (<
and <=) or turned around (== and !=), + and -, a whole number by one, ``and`` and ``or``, a ``not``
dropped, a condition that never holds, an early ``return None``. It is tried in a copy of the tree,
with the tests of its file first, then the quick ones of its room (not with ``--narrow``). Exit code
1: one survived, or could not be tried.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
AREAS = (
    "memplan/simulate",
    "memplan/solver/evaluate.py",
    "memplan/planning/apply.py",
    "memplan/api/rewrite/check_file.py",
    "memplan/planning/encode_problem.py",
    "memplan/equivalence",
    "memplan/runtime/compare_outputs.py",
    "memplan/autodiff/rules",
)
_KINDS = ("unit", "property", "golden")  # folders of tests that mirror the package's
_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_PYTEST = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-n", "0")
_IGNORED = (".git", "__pycache__", "*.pyc", ".*_cache", ".hypothesis", ".venv", "dist")

# From character, to character, what stands there instead, and a word for it.
Edit = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """The text of ``file`` (from the root of the tree) with one operator changed."""

    name: str
    file: str
    text: str
    breaks: str


# --- Making them ----------------------------------------------------------------------------------


def sample(areas: Sequence[str], count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """``count`` mutants of the files in ``areas``, drawn evenly from all that there are."""
    paths = [root / area for area in areas]
    files = sorted(f for p in paths for f in ([p] if p.is_file() else p.rglob("*.py")))
    pool = [mutant for file in files for mutant in mutants_of(file, root)]
    return Random(seed).sample(pool, min(count, len(pool)))


def mutants_of(path: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """All mutants of a file. It is edited in place, so that comments and lines stay."""
    source, file = path.read_text(), path.relative_to(root).as_posix()
    for begin, end, text, word in _edits(source):
        line = source.count("\n", 0, begin) + 1
        column = begin - source.rfind("\n", 0, begin)
        changed = source[:begin] + text + source[end:]
        old = " ".join(source[begin:end].split())
        name = f"{file}:{line}:{column} {word}"
        yield Mutant(name, file, changed, f"{old[:60]!r} becomes {text!r}")


def _edits(source: str) -> Iterator[Edit]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def place(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    def between(left: ast.expr, right: ast.expr, sign: str, new: str, word: str) -> Iterator[Edit]:
        begin, end = span(left)[1], span(right)[0]
        at = source.find(sign, begin, end)
        if at >= 0:
            yield at, at + len(sign), new, word

    for node in _walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            lefts = [node.left, *node.comparators]
            for left, op, right in zip(lefts, node.ops, node.comparators, strict=False):
                yield from between(left, right, *_SIGNS[type(op)], "comparison")
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            yield from between(node.left, node.right, *_ARITHMETIC[type(node.op)], "arithmetic")
        elif isinstance(node, ast.BoolOp):
            pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, *pair, "logic")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield span(node)[0], span(node.operand)[0], "", "not"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield (*span(node), str(node.value + 1), "number")
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield (*span(node), str(not node.value), "constant")
        elif isinstance(node, ast.If):
            yield (*span(node.test), "False", "condition")
        elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
            yield (*span(node.value), "None", "return")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it that a run evaluates and whose place in the file is known: neither
    annotations nor decorators, nor what an f-string holds (its places are wrong before 3.12)."""
    yield node
    unread: list[object] = []
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.AnnAssign | ast.arg):
        unread = [node.annotation]
    elif isinstance(node, ast.FunctionDef):
        unread = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        unread = [*node.decorator_list]
    for child in ast.iter_child_nodes(node):
        if not any(child is other for other in unread):
            yield from _walk(child)


# --- Trying them ----------------------------------------------------------------------------------


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


def wide_tests(file: str, root: Path = ROOT) -> tuple[str, ...]:
    """All quick tests of a file's room: ``memplan/solver/evaluate.py`` is in ``solver``."""
    parts = Path(file).parts
    room = parts[1] if parts[0] == "memplan" and len(parts) > 2 else ""
    folders = [f"tests/{kind}/{room}" for kind in _KINDS] if room else ["tests/unit"]
    return tuple(folder for folder in folders if (root / folder).is_dir())


class Trial:
    """Runs tests in a copy of the tree at ``root``, for at most ``limit`` seconds each time."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = root, limit
        self.passes: dict[tuple[str, ...], bool] = {}

    def try_out(self, mutant: Mutant, wide: bool) -> tuple[str, str]:
        """Killed, survived or untried, and by what."""
        more = wide_tests(mutant.file, self.root) if wide else ()
        path = self.root / mutant.file
        for tests in filter(None, (own_tests(mutant.file, self.root), more)):
            if tests not in self.passes:  # else a failure would say nothing
                self.passes[tests] = self._run(tests, self.limit * 4)[0] == 0
            if not self.passes[tests]:
                return "untried", "its tests fail as is"
            kept = path.read_text()
            path.write_text(mutant.text)
            try:
                code, output = self._run(tests, self.limit)
            finally:
                path.write_text(kept)
            if code:
                lines = [line for line in output.splitlines() if line.startswith(("FAIL", "ERR"))]
                return "killed", lines[0].split(" - ")[0] if lines else output
        return "survived", mutant.breaks

    def _run(self, tests: tuple[str, ...], limit: float) -> tuple[int, str]:
        """Exit code and output of pytest."""
        # No byte code: two mutants of one file may have the same size within one second.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'cli'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", *_PYTEST, "-m", "not slow", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return 1, "time limit"
        return done.returncode, done.stdout


def main(given: list[str] | None = None) -> int:
    """The command; the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    parser.add_argument("--sample", type=int, default=60, metavar="N", help="how many (60)")
    parser.add_argument("--area", action="append", default=[], metavar="PATH", help="repeatable")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--limit", type=float, default=120, help="seconds per run of tests (120)")
    parser.add_argument("--narrow", action="store_true", help="a mutant's own tests alone")
    options = parser.parse_args(given)
    states = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        copy = Path(folder) / "copy"
        if not options.list:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_IGNORED))
        trial = Trial(copy, options.limit)
        for mutant in sample(options.area or AREAS, options.sample, options.seed):
            if options.list:
                print(f"{mutant.name}: {mutant.breaks}")
                continue
            begin = time.monotonic()
            state, by = trial.try_out(mutant, not options.narrow)
            states[state] += 1
            seconds = time.monotonic() - begin
            print(f"{state:9} {seconds:6.1f} s  {mutant.name}  {by}", flush=True)
    print(", ".join(f"{state} {count}" for state, count in states.items()))
    return int(states["killed"] < states.total())


if __name__ == "__main__":
    sys.exit(main())
