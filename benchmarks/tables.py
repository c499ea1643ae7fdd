"""The tables of ``docs/benchmarks.md`` and ``README.md``, from the records in ``results/``.

    python -m benchmarks.tables

The pages are written by hand; a table there is found by its first line, a sentence by its words,
and what the records say takes its place.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from benchmarks.record import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Points = dict[tuple[str, str], dict[str, Row]]
"""Graph and budget, then strategy."""
Columns = Mapping[str, Callable[[Row], str]]
Item = TypeVar("Item")

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
"""Percentage points from the bound: a search ends by itself there, before its time is over."""


def load(name: str) -> list[Row]:
    """The rows of a record."""
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text())["results"]
    return rows


def table(columns: Mapping[str, Callable[[Item], str]], rows: Iterable[Item]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = [list(columns)]
    lines += [[cell(row) for cell in columns.values()] for row in rows]
    texts = ["| " + " | ".join(cells) + " |\n" for cells in lines]
    return "".join([texts[0], "|---|" + "--:|" * (len(columns) - 1) + "\n", *texts[1:]])


# --- Training graphs ----------------------------------------------------------------------------


def points() -> Points:
    """All that the records of training graphs have."""
    found: Points = {}
    for name in TRAINING:
        for row in load(name):
            found.setdefault((row["graph"], row["budget"]), {})[row["strategy"]] = row
    return found


def headline() -> str:
    """One network's extra time at three budgets, and the best of the published planners."""
    by_point, graph = points(), "gpt2_small_bs8_seq1024"
    found = [by_point[graph, budget] for budget in ("70%", "50%", "30%")]
    ours = " / ".join(f"{row['auto']['extra_cost_percent']:.1f}" for row in found)
    columns: Columns = {
        "extra time": lambda _: NETWORKS[graph],
        "memplan": lambda _: f"{ours}%",
        "best published planner (older figures)": lambda _: " / ".join(map(best, found)),
    }
    return table(columns, [{}])


def best(by_name: Mapping[str, Row]) -> str:
    """The cheapest plan of the published planners, in all their settings."""
    fit = [
        (row["extra_cost_percent"], name.partition("{")[0])
        for name, row in by_name.items()
        if name.partition("{")[0] in PUBLISHED and row["fits"]
    ]
    return "{:.1f}% ({})".format(*min(fit)) if fit else "none fits"


def training() -> str:
    """Extra time and its bound, beside the others."""

    def greedy(row: Row) -> str:
        fits = row["greedy"]["fits"]
        return f"{row['greedy']['extra_cost_percent']:.2f}" if fits else "no plan"

    by_point = points()
    columns: Columns = {
        "graph, budget": lambda row: f"{NETWORKS[row['auto']['graph']]}, {row['auto']['budget']}",
        "memplan %": lambda row: f"{row['auto']['extra_cost_percent']:.2f}",
        "bound %": lambda row: f"{row['auto']['bound_percent']:.2f}",
        "`greedy` %": greedy,
        "best of the published planners": best,
    }
    return table(columns, (by_point[g, budget] for g in NETWORKS for budget in ("50%", "30%")))


def certified() -> tuple[int, ...]:
    """Plans near their bound, all, and those that were done early."""
    rows = load("certificates")
    near = sum(row["extra_cost_percent"] - row["bound_percent"] <= WITHIN for row in rows)
    return near, len(rows), sum(row["planning_seconds"] < 19.9 for row in rows)


# --- Plain sessions -----------------------------------------------------------------------------


def exact(row: Row) -> bool:
    """Whether both runs took what was predicted."""
    return all(
        row[f"predicted_{k}_bytes"] == row[f"measured_{k}_bytes"] for k in ("first", "later")
    )


def first_and_later(kind: str) -> Callable[[Row], str]:
    """A column: bytes of the first and of later runs as MB with three digits."""

    def cell(row: Row) -> str:
        sizes = [row[f"{kind}_{runs}_bytes"] for runs in ("first", "later")]
        return " / ".join(f"{n / 1e6:.3g}" if n < 1e8 else f"{n / 1e6:.0f}" for n in sizes)

    return cell


def kept(row: Row) -> str:
    """Whether the budget held, in the first run and in later ones."""
    return " / ".join(
        "yes" if row[f"{runs}_within_budget"] else "no" for runs in ("first", "later")
    )


PLAIN: Columns = {
    "graph": lambda row: row["graph"],
    "original MB": first_and_later("original"),
    "rewritten MB": first_and_later("measured"),
    "in budget": kept,
    "extra time %": lambda row: f"{row['extra_cost_percent']:.2f}",
}


def plain() -> str:
    """The sample models at 60%."""
    large = [row for row in load("plain_sessions") if row["original_first_bytes"] > LARGE_BYTES]
    shown = [row for row in large if row["share"] == "60%"]
    return table(PLAIN, (row for name in SAMPLES for row in shown if row["graph"] == name))


def plans() -> tuple[int, ...]:
    """Graphs, plans, points, plans again, those predicted to the byte, those that keep budgets."""
    rows = load("plain_sessions")
    graphs = {(row["graph"], row["original_first_bytes"]) for row in rows}
    found = [row for row in rows if row["reason"] is None]
    every = sum(row["later_within_budget"] for row in found)
    return len(graphs), len(found), len(rows), sum(map(exact, found)), len(found), every


# --- Chunks -------------------------------------------------------------------------------------


def change(what: str) -> Callable[[Row], str]:
    """A column: GiB before and after."""
    return lambda row: " → ".join(
        f"{row[f'{what}_{when}_bytes'] / 2**30:.2f}" for when in ("before", "after")
    )


CHUNKS: Columns = {
    "graph": lambda row: CHUNKED[row["graph"]],
    "chunks": lambda row: row["kind"],
    "peak GiB": change("peak"),
    "change": lambda row: f"{100 * (row['peak_after_bytes'] / row['peak_before_bytes'] - 1):.1f}%",
    "floor GiB": change("floor"),
    "nodes": lambda row: f"{row['nodes_before']:,} → {row['nodes_after']:,}",
}


def chunked() -> str:
    """What chunks take off peak and floor."""
    rows = (row for row in load("chunking") if row.get("graph") in CHUNKED and "kind" in row)
    return table(CHUNKS, rows)


# --- Beside PyTorch -----------------------------------------------------------------------------


def beside_pytorch() -> str:
    """Networks: memory and time of PyTorch's eager step, and parts of these that others take; of
    compiled steps and of memplan's the quickest, and the one that grows least."""
    by_model: dict[str, list[Row]] = {}
    for row in (row for row in load("pytorch_steps") if "seconds_median" in row):
        by_model.setdefault(row["model"], []).append(row)

    def part(who: str, by: str) -> Callable[[list[Row]], str]:
        def cell(ran: list[Row]) -> str:
            row = min((r for r in ran if r["who"].startswith(who)), key=lambda r: r[by])
            shares = (f"{row[k] / ran[0][k]:.2f}" for k in ("growth_bytes", "seconds_median"))
            return " / ".join(shares)

        return cell

    columns: Mapping[str, Callable[[list[Row]], str]] = {
        "network": lambda ran: ran[0]["model"],
        "eager": lambda ran: (
            f"{ran[0]['growth_bytes'] / 1e6:.0f} MB / {1000 * ran[0]['seconds_median']:.0f} ms"
        ),
        "checkpoint": part("PyTorch checkpoint", "seconds_median"),
        "compiled, quickest": part("PyTorch compile", "seconds_median"),
        "compiled, least": part("PyTorch compile", "growth_bytes"),
        "memplan, quickest": part("memplan", "seconds_median"),
        "memplan, least": part("memplan", "growth_bytes"),
    }
    return table(columns, by_model.values())


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
        for made in (make() for make in tables):
            text = replaced(text, f"^{re.escape(made.splitlines()[0])}\n(?:\\|.*\n)+", made)
        found[ROOT / page] = text
    page = ROOT / "docs/benchmarks.md"
    for words, count in SENTENCES.items():
        pattern = re.escape(words).replace(r"\{\}", r"\d+")
        found[page] = replaced(found[page], pattern, words.format(*count()))
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
