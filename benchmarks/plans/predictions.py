"""Predictions against the profiler: what a session of each kind takes, first run and later ones.

Every model is analyzed as ``memplan analyze`` does (a plain session's figures are of the graph that
the runtime holds once it has loaded the file), then run twice in a child process under ONNX
Runtime's profiler. Bytes are dynamic, without workspace. Exit code 1 where a figure is off and no
assumption says that it may be.

    python -m benchmarks.plans.predictions MODEL... --json benchmarks/results/predictions.json
    python -m benchmarks.plans.predictions --shared  # all that $MEMPLAN_SHARED has, and the samples

A model that cannot be analyzed or run here stays in the record with the reason.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.plans.plain_sessions import DIMS
from benchmarks.record import Row, arguments, run
from memplan.api.analysis import analyze_session
from memplan.errors import MemplanError
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import RunRequest
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
SHARED = Path(os.environ.get("MEMPLAN_SHARED", "")) / "models"
FOLDERS = ("runnable", "forward", "repro", "ort_training", "full_scale")
SESSIONS = ("tuned", "default")
FIGURES = tuple(
    f"{kind}_{run}_bytes"
    for kind in ("predicted", "measured", "difference")
    for run in ("first", "later")
)
MOST_BYTES = 2 * 10**9
"""Predicted bytes up to which a model is run."""


def measured(path: Path, session: str) -> Row:
    """Predict and run one model; ``named`` are the reasons for which it may not be exact."""
    dims = DIMS.get(path.stem, {})
    row: Row = {"graph": f"{path.parent.name}/{path.stem}", "session": session, "as_loaded": False}
    row |= dict.fromkeys(FIGURES) | {"named": (), "reason": None}
    try:
        model = open_model(path, dims)
        found = analyze_session(model, session_kind(session))
        first = found.timeline.dynamic_peak_bytes
        later = found.later.dynamic_peak_bytes if found.later is not None else first
        row |= {
            "as_loaded": found.as_loaded,
            "predicted_first_bytes": first,
            "predicted_later_bytes": later,
            "named": tuple(note.replace(str(path), path.name) for note in found.inexact),
        }
        if found.timeline.peak_bytes > MOST_BYTES:
            return row | {"reason": f"not run: over {MOST_BYTES:,} B"}
        with saved_inputs(synthesize(model.graph)) as (folder, archive):
            request = RunRequest(session, "cpu", dims, runs=0, threads=1)
            ran = measure(path, request, archive, folder / "outputs.npz")
    except MemplanError as error:
        return row | {"reason": error.message.replace(str(path), path.name)}
    return row | {
        "measured_first_bytes": ran.dynamic_bytes,
        "measured_later_bytes": ran.second_run_dynamic_bytes,
        "difference_first_bytes": first - ran.dynamic_bytes,
        "difference_later_bytes": later - ran.second_run_dynamic_bytes,
    }


def shared_models() -> Iterator[Path]:
    """The sample models, and those of ``$MEMPLAN_SHARED``, if that is set."""
    yield from sorted(SAMPLES.glob("*.onnx"))
    for name in FOLDERS if "MEMPLAN_SHARED" in os.environ else ():
        yield from sorted((SHARED / name).glob("*.onnx"))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every model in every kind of session."""
    for path in [*options.models, *(shared_models() if options.shared else ())]:
        for session in options.session or SESSIONS:
            yield measured(path, session)


if __name__ == "__main__":
    parser = arguments("plans.predictions", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--shared", action="store_true", help="the samples and $MEMPLAN_SHARED")
    parser.add_argument("--session", action="append", choices=SESSIONS)
    found = run(parser, rows)
    off = [r for r in found if r["difference_first_bytes"] or r["difference_later_bytes"]]
    sys.exit(any(not row["named"] for row in off))
