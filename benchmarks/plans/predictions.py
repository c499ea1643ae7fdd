"""Predictions against the profiler: what a session of each kind takes, first run and later ones.

Every model is analyzed as ``memplan analyze`` does (a plain session's figures are of the graph that
the runtime holds once it has loaded the file), then run twice in a child process under ONNX
Runtime's profiler. Bytes are dynamic, without workspace.

    python -m benchmarks.plans.predictions MODEL... --json benchmarks/results/predictions.json
    python -m benchmarks.plans.predictions --shared  # all that $MEMPLAN_SHARED has, and the samples

A model that cannot be analyzed or run here stays in the record with the reason.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.models import DIMS, shared_models
from benchmarks.record import write_record

if TYPE_CHECKING:
    from memplan.errors import MemplanError

FOLDERS = ("runnable", "forward", "repro", "ort_training", "full_scale")
MOST_BYTES = 2 * 10**9
"""Predicted bytes up to which a model is run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model in one kind of session; ``named`` are the reasons for which it may not be exact."""

    graph: str
    session: str
    as_loaded: bool = False
    predicted_first_bytes: int | None = None
    measured_first_bytes: int | None = None
    predicted_later_bytes: int | None = None
    measured_later_bytes: int | None = None
    difference_first_bytes: int | None = None
    difference_later_bytes: int | None = None
    named: tuple[str, ...] = ()
    reason: str | None = None


def main() -> int:
    """Run the command line; 1 if a prediction is off and nothing says that it may be."""
    options = _options()
    rows = []
    for path in options.models or shared_models(FOLDERS):
        for session in options.session:
            row = measured(path, session)
            print(_line(row), flush=True)
            rows.append(row)
    if options.json:
        command = "python -m benchmarks.plans.predictions " + (
            " ".join(path.name for path in options.models) or "--shared"
        )
        write_record(options.json, command, [asdict(row) for row in rows])
    return int(any(_is_off(row) and not row.named for row in rows))


def measured(path: Path, session: str) -> Row:
    """Predict and run one model."""
    from memplan.api.analysis import analyze_session
    from memplan.errors import MemplanError
    from memplan.runtime.inputs import synthesize
    from memplan.runtime.measure import measure, saved_inputs
    from memplan.runtime.messages import RunRequest
    from memplan.simulate.opened import open_model
    from memplan.simulate.session import session_kind

    dims = DIMS.get(path.stem, {})
    graph = f"{path.parent.name}/{path.stem}"
    try:
        model = open_model(path, dims)
        found = analyze_session(model, session_kind(session))
    except MemplanError as error:
        return Row(graph, session, reason=_told(error, path))
    first = found.timeline.dynamic_peak_bytes
    later = found.later.dynamic_peak_bytes if found.later is not None else first
    named = tuple(note.replace(str(path), path.name) for note in found.inexact)
    row = Row(graph, session, found.as_loaded, first, None, later, named=named)
    if found.timeline.peak_bytes > MOST_BYTES:
        return replace(row, reason=f"not run: over {MOST_BYTES:,} B")
    try:
        with saved_inputs(synthesize(model.graph)) as (folder, archive):
            request = RunRequest(session, "cpu", dims, runs=0, threads=1)
            ran = measure(path, request, archive, folder / "outputs.npz")
    except MemplanError as error:
        return replace(row, reason=_told(error, path))
    return replace(
        row,
        measured_first_bytes=ran.dynamic_bytes,
        measured_later_bytes=ran.second_run_dynamic_bytes,
        difference_first_bytes=first - ran.dynamic_bytes,
        difference_later_bytes=later - ran.second_run_dynamic_bytes,
    )


def _told(error: MemplanError, path: Path) -> str:
    """The error without the folder that the model lies in."""
    return error.message.replace(str(path), path.name)


def _is_off(row: Row) -> bool:
    return bool(row.difference_first_bytes or row.difference_later_bytes)


def _line(row: Row) -> str:
    head = f"{row.graph} ({row.session})"
    if row.reason is not None:
        return f"{head}: {row.reason}"
    return (
        f"{head}: first {row.measured_first_bytes:,} B ({row.difference_first_bytes:+,}), later "
        f"{row.measured_later_bytes:,} B ({row.difference_later_bytes:+,})"
        + (f"; named: {row.named[0]}" if row.named else "")
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.plans.predictions")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--shared", action="store_true", help="the samples and $MEMPLAN_SHARED")
    parser.add_argument("--session", action="append", choices=("tuned", "default"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.session = options.session or ["tuned", "default"]
    if not options.models and not options.shared:
        parser.error("name models, or --shared")
    return options


if __name__ == "__main__":
    sys.exit(main())
