"""Training through ``memplan.Trainer``, step by step against a plain loop of feeds and fetches.

Five small networks with AdamW (``nets/small.py``) and the sample with an optimizer, each as it is
and rewritten at 60 and 40% of its peak (or as low as it gets) with state in place: are losses and
the last state equal to the bit in all steps, is the peak of every step the predicted one, what does
state in place save, and how long does a step take. One thread.

    python -m benchmarks.steps.trainer [--steps 200] [--sample-steps 10] [--only mlp] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.nets.small import FAMILIES, batches, plain_loop, training_step
from benchmarks.record import write_record
from memplan import RewriteOptions, Trainer, analyze, rewrite
from memplan.errors import InfeasibleError
from memplan.units import parse_budget

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = "mlp_adamw"
SHARES = ("60%", "40%")


def main(arguments: list[str] | None = None) -> int:
    """Run, print a line per file, and write the record; 1 if anything is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sample-steps", type=int, default=10)
    parser.add_argument("--only", action="append", choices=[*FAMILIES, SAMPLE])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for family in asked.only or [*FAMILIES, SAMPLE]:
        steps = asked.sample_steps if family == SAMPLE else asked.steps
        rows += measured(family, steps)
        if asked.json:
            write_record(asked.json, "python -m benchmarks.steps.trainer", kept(asked.json, rows))
    return 0 if all(row["equal"] and row["as_predicted"] for row in rows) else 1


def kept(record: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, behind those of other files that the record has already."""
    there = json.loads(record.read_text())["results"] if record.exists() else []
    made = {row["family"] for row in rows}
    return [*(row for row in there if row["family"] not in made), *rows]


def measured(family: str, steps: int) -> list[dict[str, Any]]:
    """A row for the step as it is, and one per rewritten file."""
    model = onnx.load(ROOT / "sample_models" / f"{SAMPLE}.onnx") if family == SAMPLE else None
    step = training_step(family, deep=True) if model is None else model
    first = Trainer(step, init="random", threads=1)
    contract, state = first.file.contract, first.state_dict()
    data = sample_batches(steps) if family == SAMPLE else batches(step, steps)
    assert contract.loss is not None
    losses, last = plain_loop(step, state, data, contract.loss, contract.new_values)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for share, variant in variants(step, Path(folder)):
            row = compared(variant, data, losses, last) | {"family": family, "share": share}
            print({key: row[key] for key in ("family", "share", "equal", "as_predicted")}, row)
            rows.append(row)
    return rows


def variants(step: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The step as it is, and rewritten at shares of its peak; the share is "min" where that is as
    low as it gets."""
    yield "100%", step
    source = folder / "step.onnx"
    onnx.save(step, source)
    for share in SHARES:
        for budget in (share, "min"):
            target = folder / f"{share}{budget}.onnx"
            options = RewriteOptions(
                parse_budget(budget), state=("in-place",), optimize="none", time_limit=10.0
            )
            try:
                rewrite(source, options, target)
            except InfeasibleError:
                continue
            yield share if budget == share else f"{share}: min", onnx.load(target)
            break


def compared(
    model: onnx.ModelProto,
    data: list[dict[str, np.ndarray]],
    losses: list[float],
    last: dict[str, np.ndarray],
) -> dict[str, Any]:
    """All steps, under the profiler for bytes and without it for seconds."""
    trainer = Trainer(model, init="random", threads=1, measure=True)
    found = [trainer.step(batch) for batch in data]
    state = trainer.state_dict()
    predicted = trainer.predicted()
    assert predicted is not None
    peaks = trainer.measured_peaks()
    timed = Trainer(model, init="random", threads=1)
    seconds = [report.seconds for report in timed.train(data[: max(len(data) // 4, 3)])]
    apart, bound = analyze(model, state="apart"), analyze(model, state="in-place")
    return {
        "steps": len(data),
        "equal": found == losses
        and all(state[name].tobytes() == last[name].tobytes() for name in state),
        "as_predicted": peaks == [predicted.dynamic_bytes] * len(data),
        "dynamic_peak_bytes": predicted.dynamic_bytes,
        "resident_bytes": predicted.resident_bytes,
        "apart_dynamic_peak_bytes": apart.timeline.dynamic_peak_bytes,
        "in_place_dynamic_peak_bytes": bound.timeline.dynamic_peak_bytes,
        "in_place_outputs": sum(b.in_place for b in trainer.bindings),
        "in_place_bytes": sum(b.nbytes for b in trainer.bindings if b.in_place),
        "second_buffer_bytes": sum(b.nbytes for b in trainer.bindings if not b.in_place),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "step_seconds": statistics.median(seconds),
    }


def sample_batches(count: int) -> list[dict[str, np.ndarray]]:
    """Batches for the sample; two of them, over and over, as they are large."""
    found = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((8192, 256), np.float32)
        found.append({"features": features, "labels": rng.integers(0, 10, 8192)})
    return [found[k % 2] for k in range(count)]


if __name__ == "__main__":
    sys.exit(main())
