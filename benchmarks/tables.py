"""The tables of ``docs/benchmarks.md`` and ``README.md``, from the records in ``results/``.

    python -m benchmarks.tables

The pages are written by hand; a table there is found by its first line, a sentence by its words,
and what the records say takes its place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]
Table = list[str]
"""Its lines: the head, the alignment, the rows."""
Points = dict[tuple[str, str], dict[str, Row]]
"""Graph and budget, then strategy."""

# Of a point that several records have, the last counts.
TRAINING = ("training_graphs", "training_marks", "certificates")
NETWORKS = {
    "unet_bs8_512": "U-Net",
    "bert_base_bs16_seq512": "BERT-base",
    "gpt2_small_bs8_seq1024": "GPT-2 small",
    "resnet50_bs32_224": "ResNet-50",
    "mobilenetv2_bs64_224": "MobileNetV2",
}
CHUNKED = {
    "gpt2_small_bs8_seq1024": "GPT-2 small, 8 x 1024",
    "bert_base_bs16_seq512": "BERT-base, 16 x 512",
    "llama_160m_bs8_seq1024": "Llama, 153M, 8 x 1024",
}
PUBLISHED = ("segments", "knapsack", "min-cut", "mirror", "speed", "memory")
SAMPLES = ("mlp_adamw", "cnn_bn", "unet", "gpt_dropout", "gpt_dynamic", "lstm")
LARGE_BYTES = 10**8
"""Dynamic bytes above which a graph of the plain-session record is a sample model: two pairs of
graphs share a name."""
WITHIN = 0.1
"""Percentage points from the bound: a search ends by itself there, before its ten seconds."""


def load(name: str) -> list[Row]:
    """The rows of a record."""
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text())["results"]
    return rows


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


# --- Training graphs ----------------------------------------------------------------------------


def points() -> Points:
    """All that the records of training graphs have."""
    found: Points = {}
    for name in TRAINING:
        for row in load(name):
            found.setdefault((row["graph"], row["budget"]), {})[row["strategy"]] = row
    return found


def headline() -> Table:
    """One network's extra time at three budgets, and the best of the published planners."""
    by_point, graph = points(), "gpt2_small_bs8_seq1024"
    found = [by_point[graph, budget] for budget in ("70%", "50%", "30%")]
    ours = " / ".join(f"{row['auto']['extra_cost_percent']:.1f}" for row in found)
    row = [NETWORKS[graph], f"{ours}%", " / ".join(map(best, found))]
    return table(["extra time", "memplan", "best of the published planners"], [row])


def best(by_name: Mapping[str, Row]) -> str:
    """The cheapest plan of the published planners, in all their settings."""
    fit = [
        (row["extra_cost_percent"], name.partition("{")[0])
        for name, row in by_name.items()
        if name.partition("{")[0] in PUBLISHED and row["fits"]
    ]
    return "{:.1f}% ({})".format(*min(fit)) if fit else "none fits"


def training() -> Table:
    """Extra time and its bound, beside the others."""
    by_point, rows = points(), []
    for graph, name in NETWORKS.items():
        for budget in ("50%", "30%"):
            found = by_point[graph, budget]
            ours, greedy = found["auto"], found["greedy"]
            rows.append(
                [
                    f"{name}, {budget}",
                    f"{ours['extra_cost_percent']:.2f}",
                    f"{ours['bound_percent']:.2f}",
                    f"{greedy['extra_cost_percent']:.2f}" if greedy["fits"] else "no plan",
                    best(found),
                ]
            )
    head = ["graph, budget", "memplan %", "bound %", "`greedy` %", "best of the published planners"]
    return table(head, rows)


def certified() -> tuple[int, ...]:
    """Plans near their bound, all, and those that were done early."""
    rows = load("certificates")
    near = sum(row["extra_cost_percent"] - row["bound_percent"] <= WITHIN for row in rows)
    return near, len(rows), sum(row["planning_seconds"] < 9.9 for row in rows)


# --- Plain sessions -----------------------------------------------------------------------------


def plain() -> Table:
    """The sample models at 60%."""
    record, rows = load("plain_sessions"), []
    for row in (row for name in SAMPLES for row in record if row["graph"] == name):
        if row["original_first_bytes"] <= LARGE_BYTES or row["share"] != "60%":
            continue
        kept = ("yes" if row[f"{runs}_within_budget"] else "no" for runs in ("first", "later"))
        rows.append(
            [
                row["graph"],
                first_and_later(row, "original"),
                first_and_later(row, "measured"),
                " / ".join(kept),
                f"{row['extra_cost_percent']:.2f}",
            ]
        )
    head = ("original MB", "rewritten MB", "in budget", "extra time %")
    return table(["graph", *head], rows)


def exact(row: Row) -> bool:
    """Whether both runs took what was predicted."""
    return all(
        row[f"predicted_{k}_bytes"] == row[f"measured_{k}_bytes"] for k in ("first", "later")
    )


def first_and_later(row: Row, kind: str) -> str:
    """Bytes of the first and of later runs as MB with three digits."""
    sizes = [row[f"{kind}_{runs}_bytes"] for runs in ("first", "later")]
    return " / ".join(f"{n / 1e6:.3g}" if n < 1e8 else f"{n / 1e6:.0f}" for n in sizes)


def plans() -> tuple[int, ...]:
    """Graphs, plans, points, plans again, those predicted to the byte, those that keep budgets."""
    rows = load("plain_sessions")
    graphs = {(row["graph"], row["original_first_bytes"]) for row in rows}
    found = [row for row in rows if row["reason"] is None]
    every = sum(row["later_within_budget"] for row in found)
    return len(graphs), len(found), len(rows), sum(map(exact, found)), len(found), every


# --- Chunks -------------------------------------------------------------------------------------


def change(row: Row, what: str, unit: int, digits: int) -> str:
    """Before and after."""
    sizes = (row[f"{what}_{when}_bytes"] for when in ("before", "after"))
    return " → ".join(f"{size / unit:.{digits}f}" for size in sizes)


def chunked() -> Table:
    """What chunks take off peak and floor."""
    rows = [
        [
            CHUNKED[row["graph"]],
            row["kind"],
            change(row, "peak", 1 << 30, 2),
            f"{100 * (row['peak_after_bytes'] / row['peak_before_bytes'] - 1):.1f}%",
            change(row, "floor", 1 << 30, 2),
            f"{row['nodes_before']:,} → {row['nodes_after']:,}",
        ]
        for row in load("chunking")
        if row.get("graph") in CHUNKED and "kind" in row
    ]
    head = ["graph", "chunks", "peak GiB", "change", "floor GiB", "nodes"]
    return table(head, rows)


# --- Beside PyTorch -----------------------------------------------------------------------------


def beside_pytorch() -> Table:
    """Networks: memory and time of PyTorch's eager step, and parts of these that others take; of
    compiled steps and of memplan's the quickest, and the one that grows least."""
    by_model: dict[str, list[Row]] = {}
    for row in (row for row in load("pytorch_steps") if "seconds_median" in row):
        by_model.setdefault(row["model"], []).append(row)
    rows = []
    for model, ran in by_model.items():
        eager, marked, *others = ran
        bytes_, seconds = eager["growth_bytes"], eager["seconds_median"]
        shown = [marked]
        for kind in ("PyTorch compile", "memplan"):
            found = [row for row in others if row["who"].startswith(kind)]
            shown += [min(found, key=lambda r: r[by]) for by in ("seconds_median", "growth_bytes")]
        parts = (
            f"{row['growth_bytes'] / bytes_:.2f} / {row['seconds_median'] / seconds:.2f}"
            for row in shown
        )
        rows.append([model, f"{bytes_ / 1e6:.0f} MB / {1000 * seconds:.0f} ms", *parts])
    kinds = ("compiled, quickest", "compiled, least", "memplan, quickest", "memplan, least")
    return table(["network", "eager", "checkpoint", *kinds], rows)


# --- Pages --------------------------------------------------------------------------------------

TABLES = {
    "README.md": (headline,),
    "docs/benchmarks.md": (training, plain, chunked, beside_pytorch),
}
SENTENCES = {
    "{} of {} plans are within 0.1 percentage points of optimal; {} were done before": certified,
    "Of all {} graphs at four budgets, {} of {} have a plan.\n{} of the {} were predicted to the "
    "byte, in first and later runs;\n{} keep the budget": plans,
}
"""Of ``docs/benchmarks.md``."""


def replaced(text: str, pattern: str, by: str) -> str:
    """The text with the one place that fits the pattern written anew.

    Raises:
        ValueError: the page has no such place, or several.
    """
    text, count = re.subn(pattern, lambda _: by, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} places on the page for: {by.splitlines()[0]}")
    return text


def pages() -> dict[Path, str]:
    """Every page with figures of the records, with its text."""
    found = {}
    for page, tables in TABLES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for lines in (make() for make in tables):
            text = replaced(text, f"^{re.escape(lines[0])}\n(?:\\|.*\n)+", "\n".join(lines) + "\n")
        found[ROOT / page] = text
    page = ROOT / "docs/benchmarks.md"
    for words, count in SENTENCES.items():
        pattern = re.escape(words).replace(r"\{\}", r"\d+")
        found[page] = replaced(found[page], pattern, words.format(*count()))
    return found


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
