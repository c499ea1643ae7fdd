"""What came of many cases of :mod:`values`: verdicts, reasons, operators, finds as small graphs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cases
import onnx
import pool
import values
from evaluators import ROOT

from memplan.autodiff.emit.gradient_registry import registered

_OPERATOR = "operator "
_NOT_DRAWN = frozenset({("memplan.capture", "BackwardThrough")})


def short(counts: Counter[str]) -> Iterable[tuple[str, int]]:
    """Counts without operators, and without the reasons of verdicts."""
    kinds: Counter[str] = Counter()
    for text, count in counts.items():
        if not text.startswith(_OPERATOR):
            kinds[text.partition(":")[0]] += count
    return kinds.items()


def tell(
    run: cases.Run,
    counts: Counter[str],
    finds: Mapping[str, Sequence[pool.Outcome]],
    record: Path | None,
) -> None:
    """Print reasons, what was not drawn, and the first find of each kind, reduced; add what came
    of a run that is whole to the record, once per seed."""
    row = _row(counts, finds)
    for kind in ("refused", "skipped"):
        for reason, count in row[kind].items():
            print(f"  {count:,} × {kind}: {reason}")
    print(f"  {row['operators']} operators; with a gradient, but not drawn: {row['not_drawn']}")
    for first, *_ in finds.values():
        case, verdict, _ = values.examined_whole(run.seed, first.number)
        if verdict.is_defect:
            print(f"--only {first.number}\n{onnx.printer.to_text(case.model)}", flush=True)
    if record is not None and row["graphs"] == run.count:
        _record(record, row, run.seed)


def _row(counts: Counter[str], finds: Mapping[str, Sequence[pool.Outcome]]) -> dict[str, Any]:
    """What came of a run, as it is recorded."""
    verdicts = {text: n for text, n in counts.items() if not text.startswith(_OPERATOR)}
    drawn = {text.removeprefix(_OPERATOR) for text in counts.keys() - verdicts.keys()}
    known = {op for _, op in registered() - _NOT_DRAWN}
    row: dict[str, Any] = {"graphs": sum(verdicts.values())}
    for kind in ("right", "kink"):
        row[kind] = sum(n for text, n in verdicts.items() if text.partition(":")[0] == kind)
    for kind in ("refused", "skipped"):
        reasons = {t.partition(": ")[2]: n for t, n in verdicts.items() if t.startswith(kind)}
        row[kind] = dict(sorted(reasons.items(), key=lambda item: -item[1]))
    row["defects"] = {place: len(found) for place, found in finds.items()}
    return row | {"operators": len(drawn), "not_drawn": sorted(known - drawn)}


def _record(path: Path, row: dict[str, Any], seed: int) -> None:
    """Add what came of a seed to what came of others."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.record import write_record

    before: dict[str, Any] = {"seeds": []}
    if path.exists():
        before = json.loads(path.read_text())["results"][0]
    if seed in before["seeds"]:
        print(f"seed {seed} is in {path}")
        return
    whole: dict[str, Any] = {"seeds": sorted([*before["seeds"], seed])}
    for name, found in row.items():
        old = before.get(name)
        if old is None:
            whole[name] = found
        elif isinstance(found, dict):
            whole[name] = dict((Counter(old) + Counter(found)).most_common())
        elif isinstance(found, list):
            whole[name] = sorted(set(old) & set(found))
        else:
            whole[name] = max(old, found) if name == "operators" else old + found
    command = "python tools/fuzz --command values --count 1000 --seed SEED --record FILE"
    write_record(path, command, [whole])
