"""Lines of memplan by what they are for: the table at the head of docs/ARCHITECTURE.md.

    python tools/line_map.py            # print it
    python tools/line_map.py --write    # and put it into the document

Every file belongs to the first row one of whose patterns it matches. Figures are rounded, and the
test of this tool allows them to drift by a tenth before it asks for ``--write``.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/ARCHITECTURE.md"
BEGIN, END = "<!-- lines: tools/line_map.py -->", "<!-- end of lines -->"


@dataclass(frozen=True, slots=True)
class Row:
    """What lines are for, and where they are: patterns below the repository, and as shown."""

    feature: str
    shown: str
    patterns: tuple[str, ...]


def _row(feature: str, shown: str, patterns: str = "") -> Row:
    return Row(feature, shown, tuple((patterns or shown).replace("`", "").split(", ")))


ROWS = (
    _row("plain sessions (`--session default`)", "`planning/plain/`, `solver/pins.py`"),
    _row(
        "**the planner**: search, orders, certificate",
        "`solver/search/`, `solver/order/`, `solver/bound/`, `solver/*.py`",
    ),
    _row("strategies, published planners among them", "`solver/strategies/`"),
    _row("`rewrite`: problem, forms, plan files, checks", "`planning/`, `api/rewrite/`"),
    _row("free passes, `--chunk`, loops", "`passes/`"),
    _row(
        "`analyze`: the memory model, the operator book",
        "`simulate/`, `ops/`, `api/*.py`",
    ),
    _row("`validate`: the proof, runs compared", "`equivalence/`, `api/validate/`"),
    _row("ONNX files: read, shaped, written", "`proto/`, `shapes/`, `ir/`"),
    _row("models run and measured", "`runtime/`, `processes/`"),
    _row(
        "`torch_solver`, `plan-as`",
        "`pytorch/*solver*.py`, `report/policies/`",
        "pytorch/*solver*.py, pytorch/checkpointed.py, report/policies/",
    ),
    _row("`capture`: a step of PyTorch", "`pytorch/`, `api/capture/`"),
    _row("`lower`: onnxruntime-training", "`autodiff/lowering/`, `api/lower/`"),
    _row("`grad`: gradients, optimizers", "`autodiff/`, `api/grad/`"),
    _row("`run`, `Trainer`", "`training/`"),
    _row("`check`, `diff`", "`api/check/`, `api/diff/`, `report/check/`"),
    _row("`sweep`", "`api/sweep/`"),
    _row("reports: terminal, HTML, traces", "`report/`"),
    _row("the command line", "`cli/`"),
    _row("the rest", "`memplan/*.py`", "*.py"),
)


def counts(root: Path = ROOT) -> dict[str, int]:
    """Lines of Python by feature; every file is in one of them."""
    left = {*(root / "memplan").rglob("*.py"), *(root / "cli").rglob("*.py")}
    found = {}
    for row in ROWS:
        own = {path for pattern in row.patterns for path in _files(root, pattern)} & left
        left -= own
        found[row.feature] = sum(len(path.read_text().splitlines()) for path in own)
    assert not left, f"in no row: {sorted(left)}"
    return found


def _files(root: Path, pattern: str) -> list[Path]:
    base = root if pattern.startswith("cli") else root / "memplan"
    pattern = pattern.removeprefix("memplan/")
    return [*base.glob(f"{pattern}**/*.py" if pattern.endswith("/") else pattern)]


def table(found: dict[str, int]) -> str:
    """The table of the document, in its rows' order; lines in hundreds."""
    head = ["| what for | lines | where |", "|---|--:|---|"]
    rows = [f"| {row.feature} | {round(found[row.feature], -2):,} | {row.shown} |" for row in ROWS]
    total = f"| all | {round(sum(found.values()), -2):,} | |"
    return "\n".join([*head, *rows, total])


def stated(page: str) -> dict[str, int]:
    """The lines that the document states, by feature."""
    text = page.partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| (.*?) \| ([\d,]+) \|", text, re.MULTILINE)
    return {feature: int(number.replace(",", "")) for feature, number in rows}


def main() -> None:
    """Print the table; with ``--write`` the document gets it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into docs/ARCHITECTURE.md")
    made = table(counts())
    print(made)
    if parser.parse_args().write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
