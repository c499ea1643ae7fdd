"""docs/benchmarks.md from the recorded results.

python -m benchmarks.tables > docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# Cost and bound are equal below this difference in percent points.
_CLOSED = 5e-4
_PEERS = (
    "auto",
    "greedy",
    "segments",
    "dtr{heuristic=h_eq}",
    "dtr{heuristic=h_local}",
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
                f"{row['planning_seconds'] + row['bound_seconds']:.1f}",
            ]
        )
    head = ["graph", "budget / peak", "extra time %", "bound %", "gap", "seconds"]
    return table(head, rows)


def summary(record: dict[str, Any]) -> str:
    """How many points are certified, and how long those took together."""
    closed = [
        row
        for row in record["results"]
        if row["feasible"] and abs(row["extra_cost_percent"] - row["bound_percent"]) < _CLOSED
    ]
    seconds = sum(row["planning_seconds"] + row["bound_seconds"] for row in closed)
    return (
        f"{len(closed)} plans are certified optimal, in {seconds:.0f} s for all of them together."
    )


def training(records: Sequence[dict[str, Any]]) -> list[str]:
    """A row per graph and budget, a column per strategy."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for record in records:
        for row in record["results"]:
            found.setdefault((row["graph"], row["budget"]), {})[row["strategy"]] = row
    rows = []
    for (graph, budget), by_name in found.items():
        cells = [_cell(by_name.get(name)) for name in _PEERS]
        rows.append([f"{graph} {budget}", *cells, _bound(by_name.get("auto"))])
    return table(["graph, budget", *(f"`{name}`" for name in _PEERS), "bound of `auto`"], rows)


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


def placement(record: dict[str, Any]) -> list[str]:
    """The placement instances."""
    rows = [
        [
            row["instance"],
            str(row["buffers"]),
            f"{row['max_live']:,}",
            f"{row['height']:,}",
            "yes" if row["solved"] else "no",
            f"{row['seconds']:.2f}",
        ]
        for row in record["results"]
    ]
    total = sum(row["seconds"] for row in record["results"])
    rows.append(["total", "", "", "", "", f"{total:.2f}"])
    return table(["instance", "buffers", "max-live", "height", "within capacity", "seconds"], rows)


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


PAIRS = """
## Pairs of loops

`benchmarks/recurrent_pairs.py` rewrites training graphs of 200 steps, batch 16, hidden 512, that
store all that the backward loop reads: an ONNX `LSTM` and a cell of our own in a `Scan`. Stored
is what the backward loop reads of what the forward loop stacks, per step; peaks are measured by
`memplan validate` on the CPU, tuned sessions, both with the same fusions. Extra time is estimated.
"""


def loop_pairs(record: dict[str, Any]) -> list[str]:
    """Graphs whose loops were rewritten."""
    rows = []
    for row in record["results"]:
        exact = row["measured_peak_bytes"] == row["predicted_peak_bytes"]
        rows.append(
            [
                row["model"],
                row["budget"],
                f"`{row['scan_recompute']}`",
                f"{row['stored_bytes_per_step_before']:,} → {row['stored_bytes_per_step_after']:,}",
                f"{row['operators_again_per_step']}",
                f"{row['estimated_extra_percent']:.1f}",
                f"{_mb(row['measured_peak_bytes_before'])} → {_mb(row['measured_peak_bytes'])}",
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


def recurrent(record: dict[str, Any]) -> list[str]:
    """A row per layer and setting."""
    rows = [
        [
            f"{row['op']} `{row['scan_recompute']}`",
            f"{row['stored_bytes_per_step']:,}",
            f"{row['stored_bytes'] / 1e6:.1f}",
            f"{row['predicted_peak_bytes'] / 1e6:.1f}",
            f"{row['measured_peak_bytes'] / 1e6:.1f}",
            row["equality"],
            f"{1000 * row['seconds']:.0f}",
            f"{row['slowdown_percent']:+.0f}",
        ]
        for row in record["results"]
    ]
    head = [
        "layer",
        "stored B per step",
        "stored MB",
        "peak MB, predicted",
        "measured",
        "gradients",
        "ms per step of training",
        "%",
    ]
    return table(head, rows)


INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks.tables` from `benchmarks/results/`. Extra time is that of
recomputation in percent of the step without. Every plan was checked by code that knows nothing of
the planner. Searches are stopped by the clock, so figures differ a little from run to run.

## Training graphs: our search and published planners

One memory model (the runtime's, exact, with workspace) and one cost model (roofline of an H200:
estimated, not measured) for all. A budget is a share of the dynamic peak. *reaches N%*: the
strategy found no plan for the budget, its lowest peak is N% of the original one. The bound speaks
of plans that keep the file's order; *in order x* stands where moving nodes got `auto` below it.
The peers are our implementations of the published algorithms (`memplan/planning/peers/`). `auto`
looks at their plans, too.
"""
FIXED = """
## Public graphs, node order kept

The graphs of the Moccasin paper (ICML 2023): random layered graphs (RL) and the training graphs of
Checkmate (MLSys 2020). Points below the structural floor are left out.
"""
RECURRENT = """\
What `grad --scan-recompute` stores for the backward of one layer (200 steps, batch 16, 512 inputs
and units, differentiated by its weights), and what that costs. Peaks are those of the training step
in a tuned session; seconds are medians of runs in turn on a machine that did other work, too. `*`
names every tensor of the cell, which is what Caffe2's option did (it reported about 15% more time
for an LSTM): the product of inputs and weights stays in memory. `all` makes that again, too.
"""


def plain(record: dict[str, Any]) -> list[str]:
    """Plain sessions, a row per model and budget."""
    rows = []
    for row in record["results"]:
        before = f"{_mb(row['original_first_bytes'])} / {_mb(row['original_later_bytes'])}"
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
                f"{_mb(row['measured_first_bytes'])} / {_mb(row['measured_later_bytes'])}",
                "to the byte" if exact else "no",
                f"{_yes(row['first_within_budget'])} / {_yes(row['later_within_budget'])}",
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
        "fences / veils / pins",
        "their time %",
        "over tuned %",
    ]
    return table(head, rows)


def tightest(record: dict[str, Any]) -> list[str]:
    """Plain against tuned sessions at the same plan."""
    rows = [
        [
            row["graph"],
            _mb(row["tuned_bytes"]),
            f"{row['extra_cost_percent']:.2f}",
            f"{100 * (row['plain_first_bytes'] / row['tuned_bytes'] - 1):+.2f}",
            f"{100 * (row['plain_later_bytes'] / row['tuned_bytes'] - 1):+.1f}",
        ]
        for row in record["results"]
        if "tuned_bytes" in row
    ]
    head = ["graph", "tuned MB", "extra time %", "plain, first run %", "plain, later runs %"]
    return table(head, rows)


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g}" if nbytes < 1e8 else f"{nbytes / 1e6:.0f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


TIGHTEST = """
The same plan (60% of the peak in a tuned session) in a plain session with every fence, veil and
pin, against the tuned session; predicted, with workspace. The first run takes the same; the block
of the later runs is why `tuned` stays the default of `rewrite`.
"""

PLAIN = """
## Plain sessions

`rewrite --session default`, measured in an `InferenceSession(path)` with every option on its
default, on the CPU. A budget lies at the given share of the way from the certified floor to what
the original needs in the first run. Figures before the slash are of the first run, behind it of
every later one, which holds the block of the memory pattern. A plan that keeps the budget in all
runs is looked for first. Dynamic bytes, without workspace. *Their time*: of the added nodes, of all
nodes, under the profiler. *Over tuned*: the first run against the same file in a tuned session.
"""


LEAN = """
## Generated training graphs

`memplan grad` beside training graphs of the same networks at the same batch that PyTorch exported
(traced with autograd, decomposed, standard operators); theirs in parentheses. Stash is what the
forward part keeps for the backward part; peaks are predicted, without weights and inputs, for a
tuned session on the CPU. Nothing was run. `benchmarks/lean_nets.py` exports the forward graphs;
PyTorch's GPT-2 and BERT graphs also compute attention masks from their inputs, in 16 and 4 nodes.

"""


def document() -> list[str]:
    """The whole page."""
    fixed, free = load("public_fixed"), load("public_free")
    training_records = [
        load(name) for name in ("training_graphs", "training_marks", "training_lstm2")
    ]
    grown, placed, loops = load("scale"), load("placement"), load("recurrent")
    generated = load("lean_gradients")
    pairs = load("recurrent_pairs")
    sessions, tight = load("plain_sessions"), load("plain_tightest")
    return [
        INTRODUCTION,
        *training(training_records),
        "",
        *(f"{origin(record)}\n" for record in training_records),
        PLAIN,
        *plain(sessions),
        f"\n{origin(sessions)}",
        TIGHTEST,
        *tightest(tight),
        f"\n{origin(tight)}",
        FIXED,
        *public(fixed),
        f"\n{summary(fixed)}\n",
        origin(fixed),
        "\n## Public graphs, any node order\n",
        *public(free),
        "\nNo bound but 0 is known for a free order.\n",
        origin(free),
        "\n## Large graphs\n",
        "Transformer training graphs as `benchmarks/scale.py` makes them.\n",
        *scale(grown),
        f"\n{origin(grown)}",
        "\n## Recurrent layers\n",
        RECURRENT,
        *recurrent(loops),
        f"\n{origin(loops)}",
        PAIRS,
        *loop_pairs(pairs),
        f"\n{origin(pairs)}",
        "\n## Placement\n",
        "The challenging instances of MiniMalloc (ASPLOS 2023).\n",
        *placement(placed),
        f"\n{origin(placed)}",
        LEAN.rstrip("\n") + "\n",
        *lean(generated),
        f"\n{origin(generated)}",
    ]


def main() -> int:
    """Print the page."""
    print("\n".join(document()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
