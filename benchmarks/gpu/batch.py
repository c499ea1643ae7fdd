"""The largest batch that fits: of an original, and of what memplan makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench, GraphFile

Rows = Iterator[tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]]
_MOST = 1 << 16
_GROWTH = 16
_FINE = 16  # a batch is found to one part in so many


@cache
def predicted(graph: GraphFile, batch: int, provider: str) -> int:
    """Predicted peak of the original in a tuned session, in bytes, workspace included."""
    from memplan.api.analysis import analyze

    found = analyze(graph.path, graph.dims(batch), provider=provider)
    return found.timeline.peak_with_workspace_bytes


def fitting(
    graphs: list[GraphFile], memory: int, provider: str, wanted: int | None = None
) -> tuple[GraphFile, int] | None:
    """The graph and the largest batch of which the original takes at most ``memory`` bytes.

    With ``wanted`` that batch, whatever it takes; None where nothing fits.
    """
    return _largest(
        graphs,
        lambda graph, batch: (
            wanted == batch if wanted else (predicted(graph, batch, provider) <= memory)
        ),
        wanted,
    )


def _largest(
    graphs: list[GraphFile],
    fits: Callable[[GraphFile, int], bool],
    wanted: int | None = None,
    low: int = 0,
    high: int = _MOST,
) -> tuple[GraphFile, int] | None:
    """By bisection for a symbolic batch, else by trying the files from the largest batch down."""
    symbolic = next((graph for graph in graphs if graph.dim), None)
    if symbolic is None:
        fixed = sorted(graphs, key=lambda graph: -(graph.batch or 1))
        found = next((g for g in fixed if g.batch and fits(g, g.batch)), None)
        return None if found is None else (found, found.batch or 1)
    if wanted:
        return symbolic, wanted
    step = max(low, 1)
    while step <= high and fits(symbolic, step):
        low, step = step, 2 * step
    high = min(high, step - 1)
    while high - low > low // _FINE:
        middle = (low + high + 1) // 2
        if fits(symbolic, middle):
            low = middle
        else:
            high = middle - 1
    return (symbolic, low) if low else None


def largest_batches(bench: Bench, graphs: list[GraphFile]) -> Rows:
    """One row per family: the largest batch within half of the memory, measured both ways."""
    budget = bench.memory_bytes // 2
    key = {"kind": "batch", "net": graphs[0].family, "budget_bytes": budget}
    yield key, lambda: _row(bench, graphs, budget)


def _row(bench: Bench, graphs: list[GraphFile], budget: int) -> dict[str, Any]:
    from benchmarks.gpu.sessions import figures, run
    from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
    from memplan.errors import InfeasibleError
    from memplan.units import parse_size

    without = fitting(graphs, budget, bench.provider)
    if without is None:
        return {"error": f"no batch of {graphs[0].family} fits {budget:,} B"}
    graph, batch = without
    with TemporaryDirectory() as name:
        folder = Path(name)
        before = run(bench, graph.path, graph.dims(batch), "tuned", folder, "before")

        def fits(candidate: GraphFile, size: int) -> bool:
            target = folder / f"{candidate.path.stem}_{size}.onnx"
            options = RewriteOptions(
                parse_size(str(budget)),
                provider=bench.provider,
                time_limit=bench.options.plan_seconds,
            )
            try:
                rewrite(candidate.path, options, target, dims=candidate.dims(size), force=True)
            except InfeasibleError:
                return False
            return True

        larger = [g for g in graphs if g.dim or (g.batch or 1) > batch]
        most = _largest(larger, fits, low=batch, high=batch * _GROWTH)
        found = {
            "batch_without": batch,
            "without": figures(bench, graph, batch, "tuned", before),
            "batch_with": batch,
        }
        if most is None or most[1] == batch:
            return found
        target = folder / f"{most[0].path.stem}_{most[1]}.onnx"
        after = run(bench, target, most[0].dims(most[1]), "tuned", folder, "after")
        return {
            **found,
            "batch_with": most[1],
            "with": figures(bench, most[0], most[1], "tuned", after, target),
            "time_per_sample_ratio": _per_sample(after, most[1]) / _per_sample(before, batch),
        }


def _per_sample(measured: Any, batch: int) -> float:
    return float(measured.seconds_median) / batch
