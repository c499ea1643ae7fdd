"""``docs/benchmarks.md``: three short tables from the recorded results, and figures to remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables.chunks import chunks
from benchmarks.tables.rows import Row, by_point, ended_early, load, plain, table

# Of a point that several records have, the last counts.
TRAINING = ("training_graphs", "training_marks", "certificates")
NETWORKS = {
    "unet_bs8_512": "U-Net",
    "bert_base_bs16_seq512": "BERT-base",
    "gpt2_small_bs8_seq1024": "GPT-2 small",
    "resnet50_bs32_224": "ResNet-50",
    "mobilenetv2_bs64_224": "MobileNetV2",
}
BUDGETS = ("70%", "50%", "30%")
_PUBLISHED = {
    "segments": "segments",
    "knapsack": "knapsack",
    "knapsack{cut=0}": "knapsack",
    "min-cut": "min-cut",
    "mirror": "mirror",
    "mirror{function=kind}": "mirror",
    "speed": "speed",
    "memory": "memory",
}
_SAMPLES = ("mlp_adamw", "cnn_bn", "unet", "gpt_dropout", "gpt_dynamic", "lstm")
_LARGE_BYTES = 10**8
"""Dynamic bytes above which a graph of the plain-session record is a sample model: two pairs of
graphs share a name."""

_INTRODUCTION = """\
# Benchmarks

Some tables and the figures to remember. All of it, with the commands:
[benchmarks/results/TABLES.md](../benchmarks/results/TABLES.md). Both pages are written by
`python -m benchmarks.tables` from the records in `benchmarks/results/`; each record holds its
command, the number of CPUs and the versions of the libraries. Searches are stopped by the clock, so
figures differ a little from run to run. Those of published planners and of large graphs were
recorded before the free passes existed and the search was last changed.

## Training graphs

Extra time of recomputation in percent of the step without, at a share of the dynamic peak. One
memory model (the runtime's, exact, with workspace) and one cost model (roofline of an H200:
estimated, not measured) for all; two CPU cores, 10 seconds per plan. The published planners are
memplan's implementations of their algorithms ([which](commands/strategies.md)); no search
of memplan starts from their plans. DTR is no longer among them: at 70% it planned the U-Net at
2.6% and ResNet-50 at 4.8%, less than those below. The bound holds for every node order and every
recomputation.
"""
_PLAIN = """
## Plain sessions

`rewrite --session default`, measured in an `InferenceSession(path)` with every option on its
default, on the CPU (two cores), for the sample models as they were before `memplan capture` made
them. A budget lies at the given share of the way
from the certified floor to what the original needs in the first run. Before the slash: the first
run, behind it every later one, which holds the block of the memory pattern.
"""


def headline() -> list[str]:
    """A row per network: extra time at three budgets, and the best of the published planners."""
    points = by_point([load(name) for name in TRAINING])
    rows = []
    for graph, name in NETWORKS.items():
        found = [points[graph, budget] for budget in BUDGETS]
        ours = " / ".join(f"{row['auto']['extra_cost_percent']:.1f}" for row in found)
        rows.append([name, f"{ours}%", " / ".join(_best(row) for row in found)])
    return table(["extra time", "memplan", "best of the published planners"], rows)


def _best(by_name: Mapping[str, Row]) -> str:
    fit = [
        (row["extra_cost_percent"], title)
        for name, title in _PUBLISHED.items()
        if (row := by_name.get(name)) is not None and row["fits"]
    ]
    if not fit:
        return "none fits"
    cost, title = min(fit)
    return f"{cost:.1f}% ({title})"


def _training() -> list[str]:
    points = by_point([load(name) for name in TRAINING])
    rows = []
    for graph, name in NETWORKS.items():
        for budget in BUDGETS[1:]:
            by_name = points[graph, budget]
            ours = by_name["auto"]
            bound = ours["bound_percent"]
            rows.append(
                [
                    f"{name}, {budget}",
                    f"{ours['extra_cost_percent']:.2f}",
                    f"{bound:.2f}",
                    _cost(by_name["greedy"]),
                    _best(by_name),
                ]
            )
    head = ["graph, budget", "memplan %", "bound %", "`greedy` %", "best of the published planners"]
    return table(head, rows)


def _cost(row: Row) -> str:
    return f"{row['extra_cost_percent']:.2f}" if row["fits"] else "no plan"


def _sample_rows(record: Mapping[str, Any]) -> list[Row]:
    """The sample models at 60% and 40%."""
    return [
        row
        for name in _SAMPLES
        for row in record["results"]
        if row["graph"] == name
        and row["original_first_bytes"] > _LARGE_BYTES
        and row["share"] in ("60%", "40%")
    ]


def _plain_summary(rows: Sequence[Row]) -> str:
    plans = [row for row in rows if row["reason"] is None]
    exact = [
        row
        for row in plans
        if row["predicted_first_bytes"] == row["measured_first_bytes"]
        and row["predicted_later_bytes"] == row["measured_later_bytes"]
    ]
    every = [row for row in plans if row["later_within_budget"]]
    graphs = {(row["graph"], row["original_first_bytes"]) for row in rows}
    return (
        f"Of all {len(graphs)} graphs at four budgets, {len(plans)} of {len(rows)} have a plan.\n"
        f"{len(exact)} of the {len(plans)} were predicted to the byte, in first and later runs;\n"
        f"{len(every)} keep the budget in every run, the others in the first only."
    )


_MORE = """
## More tables

- [Certificates](../benchmarks/results/TABLES.md#certificates-for-any-order) of eleven networks.
- [Free passes](../benchmarks/results/TABLES.md#free-passes): what is freed before anything is
  recomputed, move by move.
- [Public graphs](../benchmarks/results/TABLES.md#public-graphs) and
  [graphs of up to 99,910 nodes](../benchmarks/results/TABLES.md#large-graphs).
- [Training graphs made by `grad`](../benchmarks/results/TABLES.md#generated-training-graphs) beside
  those that PyTorch exports: less is kept for the backward part, peaks are lower, nodes fewer.
- [Pairs of loops](../benchmarks/results/TABLES.md#pairs-of-loops): bytes per step against time.

No figure is of a GPU. `benchmarks/README.md` says how to measure there."""


def document() -> list[str]:
    """The whole page."""
    sessions = load("plain_sessions")
    return [
        _INTRODUCTION,
        *_training(),
        "",
        "Of these networks and six more, at 70, 50 and 30%:",
        ended_early(load("certificates")),
        _PLAIN,
        *plain({**sessions, "results": _sample_rows(sessions)}),
        "",
        _plain_summary(sessions["results"]),
        *chunks(load("chunking")),
        _MORE,
    ]
