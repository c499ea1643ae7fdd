"""Plain sessions: what ``rewrite --session default`` promises, and what ONNX Runtime measures.

For every model and budget: the file is rewritten, then original and result each run in a child
process, in an ``InferenceSession`` with every option on its default. A budget lies at a share of
the way from the certified floor to what the original needs in the first run of such a session.

    python -m benchmarks.plans.plain_sessions MODEL... --share 80% --share 60% --json results.json
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.record import Row, arguments, run
from memplan.api.analysis import analyze_session
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.errors import InfeasibleError
from memplan.runtime.compare_outputs import compare_outputs
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import Measurement, RunRequest
from memplan.runtime.times import time_nodes
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.units import parse_size

DIMS = {"gpt_dynamic": {"N": 24}, "gpt_dyn": {"s78": 4}, "resnet50_dynbatch_224": {"s14": 32}}
"""Sizes of symbolic dimensions, by the name of the file."""


def measured(path: Path, share: str, seconds: float) -> Row:
    """Rewrite one model for one budget and measure both files.

    Bytes are dynamic, without workspace, unless they say otherwise: ``budget_bytes`` and
    ``floor_bytes`` count resident bytes and workspace. ``tuned_peak_bytes`` is the same file's in a
    tuned session, so at equal extra cost. ``added_percent`` is the measured time of the nodes that
    memplan added, of all nodes; ``time_ratio`` of whole steps, noisy. ``reason``: of no plan.
    """
    dims = DIMS.get(path.stem, {})
    model = open_model(path, dims)
    analysis = analyze_session(model, session_kind("default"))
    floor, peak = analysis.floor_with_workspace_bytes, analysis.timeline.peak_with_workspace_bytes
    budget = floor + int(float(share.rstrip("%")) / 100 * (peak - floor))
    request = RunRequest("default", "cpu", dims, runs=9)
    with tempfile.TemporaryDirectory() as name, saved_inputs(synthesize(model.graph)) as inputs:
        folder, archive = inputs
        before = measure(path, request, archive, folder / "before.npz")
        row: Row = {
            "graph": path.stem,
            "share": share,
            "nodes": len(model.graph.nodes),
            "floor_bytes": floor,
            "budget_bytes": budget,
            "original_first_bytes": before.dynamic_bytes,
            "original_later_bytes": before.second_run_dynamic_bytes,
            "reason": None,
        }
        target = Path(name) / "plain.onnx"
        start = time.perf_counter()
        try:
            result = rewrite(
                path,
                RewriteOptions(parse_size(str(budget)), session="default", time_limit=seconds),
                target,
                dims=dims,
            )
        except InfeasibleError as error:
            return {**row, "reason": error.message}
        taken = time.perf_counter() - start
        after = measure(target, request, archive, folder / "after.npz")
        equal = _equality(folder, before)
        ran = time_nodes(target, request, archive)
    nodes = [item for each in ran for item in each.nodes.items()]
    ours = [seconds for name, seconds in nodes if name.startswith("memplan/")]
    added = 100 * sum(ours) / sum(each.total for each in ran)
    figures = _figures(result, before, after)
    return {**row, **figures, "equal": equal, "seconds": taken, "added_percent": added}


def _figures(result: Rewrite, before: Measurement, after: Measurement) -> Row:
    plain, resident = result.plain, result.timeline.resident_bytes
    assert plain is not None
    tuned = simulate(result.timeline.graph, session_kind("tuned"))
    return {
        "extra_cost_percent": 100 * result.plan.extra_cost_fraction,
        "recomputed_nodes": result.plan.clones,
        "fences": plain.fences,
        "veils": plain.input_fences,
        "pins": plain.pins,
        "predicted_first_bytes": result.timeline.dynamic_peak_bytes,
        "measured_first_bytes": after.dynamic_bytes,
        "predicted_later_bytes": plain.later.dynamic_peak_bytes,
        "measured_later_bytes": after.second_run_dynamic_bytes,
        "first_within_budget": resident + after.dynamic_bytes <= result.budget_bytes,
        "later_within_budget": resident + after.second_run_dynamic_bytes <= result.budget_bytes,
        "tuned_peak_bytes": tuned.dynamic_peak_bytes,
        "time_ratio": after.seconds_median / before.seconds_median,
    }


def _equality(folder: Path, before: Measurement) -> str:
    found = compare_outputs(folder / "before.npz", folder / "after.npz", before.output_names)
    return "bitwise" if found.bitwise else f"relative difference {found.max_rel_diff:.1e}"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every model at every share."""
    for path in options.models:
        for share in options.share or ("80%", "60%", "40%"):
            yield measured(path, share, options.seconds)


if __name__ == "__main__":
    parser = arguments("plans.plain_sessions", __doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--share", action="append", help="e.g. 80%%")
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of the planner")
    run(parser, rows)
