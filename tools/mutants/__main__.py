"""Break the program in one place, and see whether a test notices.

    python tools/mutants --sample 100 --area memplan/simulate

Each mutant changes one operator at a place drawn from chosen folders: a comparison at its limit (<
and <=) or turned around (== and !=), + and -, a whole number by one, ``and`` and ``or``, a ``not``
too many, a condition that never holds, an early ``return None``. It is tried in a copy of the tree,
with the tests of its file first, then the quick ones of its room, or with ``--tests`` alone. Exit
code 1: one survived, or could not be tried.
"""

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
_KINDS = ("unit", "property")  # folders of tests that mirror the package's
_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)),
)
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
_PYTEST = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-n", "0")
_IGNORED = (".git", "__pycache__", "*.pyc", ".*_cache", ".hypothesis", ".venv", "dist")

# A node, its field, what stands there instead, and a word for it.
Change = tuple[ast.AST, str, object, str]


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
    pool = [
        (file, number)
        for file in files
        for number, _ in enumerate(_changes(ast.parse(file.read_text())))
    ]
    chosen = Random(seed).sample(pool, min(count, len(pool)))
    return [mutant(file, number, root) for file, number in chosen]


def mutant(path: Path, number: int, root: Path = ROOT) -> Mutant:
    """A file with one of its changes, counted from 0.

    Raises:
        IndexError: the file has no such change.
    """
    tree, file = ast.parse(path.read_text()), path.relative_to(root).as_posix()
    node, field, new, word = [*_changes(tree)][number]
    assert isinstance(node, ast.expr | ast.stmt)
    shown = node.test if isinstance(node, ast.If) else node
    old = ast.unparse(shown)
    setattr(node, field, new)
    changed = "False" if isinstance(node, ast.If) else ast.unparse(node)
    name = f"{file}:{node.lineno}:{node.col_offset + 1} {word}"
    return Mutant(name, file, ast.unparse(tree), f"{old[:60]!r} becomes {changed[:60]!r}")


def _changes(tree: ast.AST) -> Iterator[Change]:
    for node in _walk(tree):
        if isinstance(node, ast.Compare):
            for k, op in enumerate(node.ops):
                others = [*node.ops[:k], _OTHER[type(op)](), *node.ops[k + 1 :]]
                yield node, "ops", others, "comparison"
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OTHER:
            word = "logic" if isinstance(node, ast.BoolOp) else "arithmetic"
            yield node, "op", _OTHER[type(node.op)](), word
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "operand", ast.UnaryOp(ast.Not(), node.operand), "not"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "value", node.value + 1, "number"
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield node, "value", not node.value, "constant"
        elif isinstance(node, ast.If):
            yield node, "test", ast.Constant(False), "condition"
        elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
            yield node, "value", ast.Constant(None), "return"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it that a run evaluates: neither annotations nor decorators, nor what an
    f-string holds, which are words."""
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
        found = _mirrors(path, root)
    return tuple(found) or ("tests/unit",)


def wide_tests(file: str, root: Path = ROOT) -> tuple[str, ...]:
    """All quick tests of a file's room: ``memplan/solver/evaluate.py`` is in ``solver``."""
    parts = Path(file).parts
    room = parts[1] if parts[0] == "memplan" and len(parts) > 2 else ""
    golden = ["tests/golden"] if room and (root / "tests/golden" / room).is_dir() else []
    return (*_mirrors(Path(room), root), *golden) if room else ("tests/unit",)


def _mirrors(path: Path, root: Path) -> list[str]:
    folders = [f"tests/{kind}/{path}" for kind in _KINDS]
    return [folder for folder in folders if (root / folder).is_dir()]


class Trial:
    """Runs tests in a copy of the tree at ``root``, for at most ``limit`` seconds each time."""

    def __init__(self, root: Path, limit: float, tests: Sequence[str] = ()) -> None:
        self.root, self.limit, self.tests = root, limit, tuple(tests)
        self.passes: dict[tuple[str, ...], bool] = {}

    def try_out(self, mutant: Mutant) -> tuple[str, str]:
        """Killed, survived or untried, and by what."""
        path = self.root / mutant.file
        near = own_tests(mutant.file, self.root), wide_tests(mutant.file, self.root)
        for tests in [self.tests] if self.tests else dict.fromkeys(near):
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
        quick = () if tests == self.tests else ("-m", "not slow")
        command = [sys.executable, "-m", "pytest", *_PYTEST, *quick, *tests]
        options = {"cwd": self.root, "env": environment, "timeout": limit}
        try:
            done = subprocess.run(command, capture_output=True, text=True, **options)
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
    parser.add_argument(
        "--tests", action="append", default=[], metavar="PATH", help="these alone, repeatable"
    )
    options = parser.parse_args(given)
    states = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        copy = Path(folder) / "copy"
        if not options.list:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_IGNORED))
        trial = Trial(copy, options.limit, options.tests)
        for mutant in sample(options.area or AREAS, options.sample, options.seed):
            if options.list:
                print(f"{mutant.name}: {mutant.breaks}")
                continue
            begin = time.monotonic()
            state, by = trial.try_out(mutant)
            states[state] += 1
            seconds = time.monotonic() - begin
            print(f"{state:9} {seconds:6.1f} s  {mutant.name}  {by}", flush=True)
    print(", ".join(f"{state} {count}" for state, count in states.items()))
    return int(states["killed"] < states.total())


if __name__ == "__main__":
    sys.exit(main())
