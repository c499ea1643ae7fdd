"""Recorded results as rows of Markdown tables: one function per record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
# Cost and bound are equal below this difference in percent points.
_CLOSED = 5e-4
# A search that ends by itself does so within the gap, in percentage points, before its time.
_WITHIN, _EARLY_SECONDS = 0.1, 9.9
STRATEGIES = (
    "auto",
    "greedy",
    "segments",
    "knapsack",
    "knapsack{cut=0}",
    "min-cut",
    "mirror",
    "mirror{function=kind}",
    "speed",
    "memory",
)

Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """One record."""
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def origin(record: dict[str, Any]) -> str:
    """Where the figures come from."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return f"`{record['command']}`; {record['cpu_count']} CPUs; {versions}."


def public(record: dict[str, Any]) -> list[str]:
    """The public graphs, a row per point that some plan might fit."""
    rows = []
    for row in record["results"]:
        if not row["feasible"] and row["bound_percent"] is None:
            continue
        cost, bound = row["extra_cost_percent"], row["bound_percent"]
        closed = cost is not None and abs(cost - bound) < _CLOSED
        rows.append(
            [
                row["instance"],
                f"{row['ratio']:g}",
                "no plan" if cost is None else f"{cost:.3f}",
                f"{bound:.3f}",
                "optimal" if closed else "-" if cost is None else f"{cost - bound:.3f}",
                f"{row['planning_seconds']:.1f}",
            ]
        )
    head = ["graph", "budget / peak", "extra time %", "bound %", "gap", "seconds"]
    return table(head, rows)


def summary(record: dict[str, Any]) -> str:
    """How many points are certified, and how long those took together."""
    closed = certified(record)
    seconds = sum(row["planning_seconds"] for row in closed)
    return (
        f"{len(closed)} plans are certified optimal, in {seconds:.0f} s for all of them together."
    )


def certified(record: dict[str, Any]) -> list[Row]:
    """The points whose plan is proved optimal."""
    return [
        row
        for row in record["results"]
        if row["feasible"] and abs(row["extra_cost_percent"] - row["bound_percent"]) < _CLOSED
    ]


def training(records: Sequence[dict[str, Any]]) -> list[str]:
    """A row per graph and budget, a column per strategy; of graphs that all strategies planned."""
    rows = []
    for (graph, budget), by_name in by_point(records).items():
        if len(by_name) > 1:
            cells = [_cell(by_name.get(name)) for name in STRATEGIES]
            rows.append([f"{graph} {budget}", *cells, _bound(by_name.get("auto"))])
    return table(["graph, budget", *(f"`{name}`" for name in STRATEGIES), "bound of `auto`"], rows)


def by_point(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Row]]:
    """(graph, budget) → strategy → row."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for record in records:
        for row in record["results"]:
            found.setdefault((row["graph"], row["budget"]), {})[row["strategy"]] = row
    return found


def certificates(record: dict[str, Any]) -> list[str]:
    """Plans beside what no plan can undercut, a row per graph and budget."""
    rows = [
        [
            f"{row['graph']} {row['budget']}",
            f"{row['extra_cost_percent']:.3f}",
            f"{row['bound_percent']:.3f}",
            f"{row['extra_cost_percent'] - row['bound_percent']:.3f}",
            f"{row['first_seconds']:.1f}",
            f"{row['last_seconds']:.1f}",
            f"{row['planning_seconds']:.1f}",
        ]
        for row in record["results"]
    ]
    head = ["graph, budget", "extra time %", "bound %", "gap", "first plan s", "last s", "end s"]
    return table(head, rows)


def ended_early(record: dict[str, Any]) -> str:
    """How many points were done before their time was over, and how near the bounds are."""
    rows = record["results"]
    gaps = [row["extra_cost_percent"] - row["bound_percent"] for row in rows]
    early = sum(row["planning_seconds"] < _EARLY_SECONDS for row in rows)
    within = sum(gap <= _WITHIN for gap in gaps)
    return (
        f"{within} of {len(rows)} plans are within {_WITHIN:g} percentage points of optimal; "
        f"{early} were done before their ten seconds were over."
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.get("refusal"):
        return "refused"
    cost = f"{row['extra_cost_percent']:.2f}"
    if row["fits"]:
        return cost
    reached = 100 * row["peak_bytes"] / row["original_peak_bytes"]
    return f"reaches {reached:.0f}%"


def _bound(row: Row | None) -> str:
    if row is None or row["bound_percent"] is None:
        return ""
    if row["bound_percent"] > 0:
        return f"{row['bound_percent']:.2f}"
    kind = row["bound_kind"] or ""
    return f"in order {kind.rsplit(' ', 1)[1]}" if "would be" in kind else "-"


def scale(record: dict[str, Any]) -> list[str]:
    """The generated transformers."""
    rows = [
        [
            f"{row['layers']} layers, {row['nodes']:,} nodes",
            f"{row['ratio']:g}",
            f"{row['extra_cost_percent']:.2f}",
            f"{row['first_seconds']:.2f}",
            f"{row['planning_seconds']:.1f}",
            f"{row['resident_set_bytes'] / 1e6:.0f}",
        ]
        for row in record["results"]
    ]
    head = ["graph", "budget / peak", "extra time %", "first plan s", "seconds", "process MB"]
    return table(head, rows)


def analyzed(record: dict[str, Any]) -> list[str]:
    """What ``analyze`` takes."""
    rows = [
        [
            row["graph"],
            f"{row['nodes']:,}",
            f"{row['analyze_seconds']:.2f}",
            f"{row['elapsed_seconds']:.2f}",
            f"{row['ratio']:.1f}",
            f"{row['resident_set_bytes'] / 1e6:.0f}",
        ]
        for row in record["results"]
        if "nodes" in row
    ]
    head = ["graph", "nodes", "CPU seconds", "elapsed", "× import onnx + parse", "process MB"]
    return table(head, rows)


def lean(record: dict[str, Any]) -> list[str]:
    """Generated training graphs beside exported ones: ours, and theirs in parentheses."""
    pairs: dict[str, dict[str, Row]] = {}
    for row in record["results"]:
        pairs.setdefault(row["graph"], {})[row["made_by"]] = row
    rows = []
    for graph, made in pairs.items():
        ours, theirs = made["memplan grad"], made["PyTorch"]
        sizes = ("stash_bytes", "peak_bytes", "peak_with_workspace_bytes")
        cells = [f"{ours[k] / 1e9:.2f} ({theirs[k] / 1e9:.2f})" for k in sizes]
        counts = [f"{ours[k]:,} ({theirs[k]:,})" for k in ("nodes", "backward_nodes")]
        rows.append([graph, *cells, *counts, f"{ours['seconds']:.2f}"])
    head = ["graph", "stash GB", "peak GB", "with workspace", "nodes", "backward nodes", "seconds"]
    return table(head, rows)


def loop_pairs(record: dict[str, Any]) -> list[str]:
    """Graphs whose loops were rewritten."""
    rows = []
    for row in record["results"]:
        exact = row["measured_peak_bytes"] == row["predicted_peak_bytes"]
        peaks = ("measured_peak_bytes_before", "measured_peak_bytes")
        rows.append(
            [
                row["model"],
                row["budget"],
                f"`{row['scan_recompute']}`",
                f"{row['stored_bytes_per_step_before']:,} → {row['stored_bytes_per_step_after']:,}",
                f"{row['operators_again_per_step']}",
                f"{row['estimated_extra_percent']:.1f}",
                " → ".join(megabytes(row[key]) for key in peaks),
                "to the byte" if exact else "no",
                row["equality"],
            ]
        )
    head = [
        "graph",
        "budget",
        "`--scan-recompute`",
        "stored per step B",
        "operators again",
        "extra time %",
        "peak MB",
        "predicted",
        "outputs",
    ]
    return table(head, rows)


def replayed(record: dict[str, Any]) -> list[str]:
    """Searches and replays of their plans, a row per model and case."""
    rows = []
    for row in record["results"]:
        start = [row["model"], row["case"]]
        if "search" in row:
            rows.append([*start, "no plan", *["-"] * 5])
            continue
        rows.append(
            [
                *start,
                f"{row['search_seconds']:.2f}",
                f"{row['replay_seconds']:.2f}",
                yes(row["same_bytes"]),
                str(row["decisions"]),
                ", ".join(row["forms"]) or "-",
                f"{row['plan_bytes'] / 1000:.0f}",
            ]
        )
    head = ("graph", "session", "search s", "replay s", "same bytes", "decisions", "which")
    return table((*head, "plan file kB"), rows)


def plain(record: dict[str, Any]) -> list[str]:
    """Plain sessions, a row per model and budget."""
    rows = []
    for row in record["results"]:
        before = _first_and_later(row, "original")
        start = [row["graph"], row["share"], before]
        if row["reason"] is not None:
            rows.append([*start, "no plan", *["-"] * 6])
            continue
        exact = (
            row["predicted_first_bytes"] == row["measured_first_bytes"]
            and row["predicted_later_bytes"] == row["measured_later_bytes"]
        )
        tuned = row["measured_first_bytes"] / row["tuned_peak_bytes"] - 1
        rows.append(
            [
                *start,
                _first_and_later(row, "measured"),
                "to the byte" if exact else "no",
                f"{yes(row['first_within_budget'])} / {yes(row['later_within_budget'])}",
                f"{row['extra_cost_percent']:.2f}",
                f"{row['fences']} / {row['veils']} / {row['pins']}",
                f"{row['added_percent']:.1f}",
                f"{100 * tuned:+.1f}",
            ]
        )
    head = [
        "graph",
        "share",
        "original MB",
        "rewritten MB",
        "predicted",
        "in budget",
        "extra time %",
        "fences / input fences / pins",
        "their time %",
        "over tuned %",
    ]
    return table(head, rows)


_FREE = ("release", "masks", "narrow", "order")


def free_times(record: dict[str, Any]) -> list[str]:
    """How long steps take behind free passes, over the original's."""
    rows = [
        [
            row["graph"],
            f"{row['steps']:,}",
            f"{1000 * row['seconds']:,.2f}",
            f"{row['neighbours_ratio']:.3f}",
            f"{row['median_ratio']:.3f}",
            f"{row['quickest_ratio']:.3f}",
        ]
        for row in record["results"]
    ]
    heads = ["graph", "steps", "ms", "neighbours, median", "of the medians", "of the quickest"]
    return table(heads, rows)


def free_passes(record: dict[str, Any]) -> list[str]:
    """Peaks and floors behind free passes, in percent of the original's peak."""
    rows = []
    for row in record["results"]:
        moves = {move["name"]: move for move in row["moves"]}
        first, last = row["moves"][0], row["moves"][-1]
        if last["peak_bytes"] == first["peak_bytes"]:
            continue
        ran, cells, before = row["ran"], [], first
        for move in row["moves"][1:]:
            if move["name"] in _FREE or move["name"] == "prune":
                change = 100 * (move["peak_bytes"] - before["peak_bytes"]) / first["peak_bytes"]
                cells.append(f"{change:+.1f}" if move["peak_bytes"] != before["peak_bytes"] else "")
                before = move
        whole = 100 * (last["peak_bytes"] / first["peak_bytes"] - 1)
        floors = f"{100 * last['floor_bytes'] / first['peak_bytes']:.0f}"
        rows.append(
            [
                row["graph"],
                megabytes(first["peak_bytes"]),
                megabytes(moves["early-update"]["peak_bytes"]),
                f"{whole:+.1f}",
                *cells,
                floors,
                f"{last['nodes'] - first['nodes']:+,}",
                f"{last['extra_seconds_percent']:+.2f}",
                "" if ran is None else f"{ran['equality']}, {ran['time_ratio']:.2f}",
            ]
        )
    head = ["graph", "peak MB", "after", "%", "elide, prune", *_FREE, "floor %", "nodes"]
    return table([*head, "est. time %", "measured: bits, time"], rows)


def tightest(record: dict[str, Any]) -> list[str]:
    """Plain against tuned sessions at the same plan."""
    rows = [
        [
            row["graph"],
            megabytes(row["tuned_bytes"]),
            f"{row['extra_cost_percent']:.2f}",
            f"{100 * (row['plain_first_bytes'] / row['tuned_bytes'] - 1):+.2f}",
            f"{100 * (row['plain_later_bytes'] / row['tuned_bytes'] - 1):+.1f}",
        ]
        for row in record["results"]
        if "tuned_bytes" in row
    ]
    head = ["graph", "tuned MB", "extra time %", "plain, first run %", "plain, later runs %"]
    return table(head, rows)


def _first_and_later(row: Row, kind: str) -> str:
    return " / ".join(megabytes(row[f"{kind}_{runs}_bytes"]) for runs in ("first", "later"))


def megabytes(nbytes: int) -> str:
    """Bytes as MB with three digits."""
    return f"{nbytes / 1e6:.3g}" if nbytes < 1e8 else f"{nbytes / 1e6:.0f}"


def yes(value: bool) -> str:
    """``yes`` or ``no``."""
    return "yes" if value else "no"
