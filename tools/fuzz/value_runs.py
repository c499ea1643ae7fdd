"""Many cases of :mod:`values`, told: verdicts, reasons, operators, and finds as small graphs."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
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


def main(options: Any) -> int:
    """Run ``options.count`` cases of ``options.seed``, at most ``options.seconds``; 1 if one is a
    defect. With ``options.record``, what came of all is added to that file, once per seed."""
    if options.seed in _recorded(options.record)["seeds"]:
        print(f"seed {options.seed} is in {options.record}")
        return 0
    counts: Counter[str] = Counter()
    finds: dict[str, list[pool.Outcome]] = {}
    begun = shown = time.monotonic()
    for done, outcome in enumerate(_in_time(options), 1):
        counts.update(outcome.counts or {outcome.place or "ended": 1})
        if outcome.is_defect:
            finds.setdefault(outcome.place, []).append(outcome)
            if len(finds[outcome.place]) == 1:
                _tell(options.seed, outcome)
        if time.monotonic() - shown > options.every:
            shown = time.monotonic()
            print(_line(done, counts, shown - begun), file=sys.stderr, flush=True)
    row = _row(counts, finds)
    print(_line(row["graphs"], counts, time.monotonic() - begun))
    for kind in ("refused", "skipped"):
        for reason, count in row[kind].items():
            print(f"  {count:,} × {kind}: {reason}")
    for place, found in sorted(finds.items(), key=lambda item: -len(item[1])):
        print(f"  {len(found)} × {place} (--only {found[0].number}): {found[0].message}")
    print(f"  {row['operators']} operators; with a gradient, but not drawn: {row['not_drawn']}")
    if options.record is not None and row["graphs"] == options.count:
        _record(options.record, row, options.seed)
    return int(bool(finds))


def _in_time(options: Any) -> Iterator[pool.Outcome]:
    """The outcomes that come in time."""
    memory = int(options.memory * (1 << 30))
    seconds = max(options.each, 60.0)
    run = cases.Run(values.COMMAND, {}, options.seed, options.count, seconds, memory)
    with (
        suppress(TimeoutError),
        closing(pool.outcomes(run, options.workers, options.only)) as outcomes,
    ):
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, options.seconds)
        yield from outcomes
    signal.setitimer(signal.ITIMER_REAL, 0)


def _over(*_: object) -> None:
    raise TimeoutError


def _row(counts: Counter[str], finds: dict[str, list[pool.Outcome]]) -> dict[str, Any]:
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


def _recorded(path: Path | None) -> dict[str, Any]:
    """The row of a record; empty if there is none."""
    if path is None or not path.exists():
        return {"seeds": []}
    row: dict[str, Any] = json.loads(path.read_text())["results"][0]
    return row


def _record(path: Path, row: dict[str, Any], seed: int) -> None:
    """Add what came of a seed to what came of others."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.record import write_record

    before = _recorded(path)
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


def _line(done: int, counts: Counter[str], seconds: float) -> str:
    kinds: Counter[str] = Counter()
    for text, count in counts.items():
        if not text.startswith(_OPERATOR):
            kinds[text.partition(":")[0]] += count
    told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))
    return f"{values.COMMAND}: {done:,} graphs in {seconds:,.0f} s: {told}"


def _tell(seed: int, outcome: pool.Outcome) -> None:
    """Print a find, its graph reduced."""
    print(f"FOUND --seed {seed} --only {outcome.number}: {outcome.place}: {outcome.message}")
    case, verdict, _ = values.examined_whole(seed, outcome.number)
    if verdict.is_defect:
        print(onnx.printer.to_text(case.model), flush=True)
