"""Mutants made by rule: one operator of the source changed.

A comparison at its limit (< and <=) or turned around (== and !=), + and -, a whole number by one,
``and`` and ``or``, a ``not`` dropped, a condition that never holds, an early ``return None``. The
source is edited in place, so that comments and lines stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from mutant import ROOT, Mutant, own_tests

AREAS = (
    "memplan/simulate",
    "memplan/solver/evaluate.py",
    "memplan/planning/apply.py",
    "memplan/api/rewrite/check_file.py",
    "memplan/planning/encode_problem.py",
    "memplan/plain",
    "memplan/equivalence",
    "memplan/runtime/compare_outputs.py",
    "memplan/autodiff/rules",
)
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}

# From character, to character, what stands there instead, and a word for it.
Edit = tuple[int, int, str, str]


def sample(areas: Sequence[str], count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """``count`` mutants of the files in ``areas``, drawn evenly from all that there are."""
    files = sorted(f for area in areas for f in _files(root / area))
    pool = [mutant for file in files for mutant in mutants_of(file, root)]
    return Random(seed).sample(pool, min(count, len(pool)))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def mutants_of(path: Path, root: Path = ROOT) -> list[Mutant]:
    """All operator mutants of a file: the whole file is their text, so that each applies once."""
    source, file = path.read_text(), path.relative_to(root).as_posix()
    tests = own_tests(file, root)
    made = []
    for begin, end, text, word in _edits(source):
        line = source.count("\n", 0, begin) + 1
        column = begin - source.rfind("\n", 0, begin)
        changed = source[:begin] + text + source[end:]
        old = " ".join(source[begin:end].split())
        breaks = f"{old[:60]!r} becomes {text!r}"
        made.append(Mutant(f"{file}:{line}:{column} {word}", file, source, changed, breaks, tests))
    return made


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
            for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
                left = node.left if k == 0 else node.comparators[k - 1]
                yield from between(left, right, _sign(op), _COMPARISONS[type(op)], "comparison")
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
        elif isinstance(node, ast.Return) and _gives_something(node):
            assert node.value is not None
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


def _gives_something(node: ast.Return) -> bool:
    return not (node.value is None or ast.unparse(node.value) == "None")


def _sign(op: ast.cmpop) -> str:
    signs: dict[type[ast.cmpop], str] = {
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
        ast.Is: "is",
        ast.IsNot: "is not",
        ast.In: "in",
        ast.NotIn: "not in",
    }
    return signs[type(op)]
