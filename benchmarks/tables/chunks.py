"""The part of ``docs/benchmarks.md`` about chunks: what was recorded, and what others publish."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.rows import Row, table

NAMES = {
    "gpt2_small_bs8_seq1024": "GPT-2 small, 8 x 1024",
    "bert_base_bs16_seq512": "BERT-base, 16 x 512",
    "llama_160m_bs8_seq1024": "Llama, 153M, 8 x 1024",
}

_INTRODUCTION = """
## Chunks

[`rewrite --chunk`](commands/rewrite.md#chunks) before anything is recomputed: *regions* (logits
with loss, attention) and *layers* (all that the loss depends on, a part of the batch at a time),
forward and backward together. Simulated in tuned sessions on the CPU, float32; FLOPs of products
stay the same in each. What is left of the floor is the weights and their gradients, which are
inputs and outputs of these graphs.
"""
_PLANNED = """
Planned by `rewrite --chunk auto --budget 20%`, a fifth of what the file takes as it is, in ten
seconds for the plans of all kinds. Extra time is estimated for a CPU (the profile `cpu`), that of
chunks included: starts, slices, joins, and weights that every chunk packs anew; and for an H200
(`--device h200`), where starts weigh more. The machine was busy, and *no plan* means none in that
time.
"""
_TIMED = """
Time of steps and of loss heads that run here, original and chunks in turns in one process; medians
of CPU seconds of one thread, while the machine did other work, too:
"""
_OTHERS = """
### Beside others, on paper

Their figures are their own, of other networks, precisions and GPUs; none was run here, and they are
not to be held against those above one by one.
"""
_SIDE_BY_SIDE = (
    (
        "memplan `--chunk`",
        "regions around large tensors, or layers with all they do forward and backward, wherever "
        "an axis can be followed; kind and number chosen with recomputation under a budget",
        "above; peaks as predicted in every run, and a proof that is exact but for rounding",
        "sizes are bound in the file; the axis must divide; dropout, batch statistics and "
        "convolutions end a region; no time on a GPU was measured",
    ),
    (
        "Inductor's `auto_chunker`",
        "the last product with the loss, forward and backward together",
        "Qwen3-1.7B, batch 16: 115.85 to 84.15 GiB at 0.38% fewer tokens per second "
        "([torchtitan#2186](https://github.com/pytorch/torchtitan/pull/2186)); GPT-2: 14,049 MiB "
        "and 194.9 ms with 8 chunks, 12,603 MiB and 242.6 ms with 64 "
        "([pytorch#136702](https://github.com/pytorch/pytorch/pull/136702))",
        "one scalar tangent ([#136702](https://github.com/pytorch/pytorch/pull/136702)); `mm` and "
        "`addmm` alone ([#178464](https://github.com/pytorch/pytorch/pull/178464)); off unless "
        "asked for",
    ),
    (
        "torchtitan's chunked loss",
        "the loss, by hand",
        "Llama 3 8B: 49.58 to 42.26 GiB without affecting throughput "
        "([torchtitan#996](https://github.com/pytorch/torchtitan/pull/996))",
        "Inductor made the logits of all chunks at once, 16 x 1.68 GiB, until false dependencies "
        "kept them apart ([#3646](https://github.com/pytorch/torchtitan/pull/3646))",
    ),
    (
        "Liger",
        "loss with the last product, and some layers, each a Triton kernel",
        "Llama 3 8B, batch 8, bf16, AdamW, gradient checkpointing, FSDP on 8 A100: throughput "
        "+20%, memory -60%; out of memory at 4K tokens without, 16K with it "
        "([README](https://github.com/linkedin/Liger-Kernel))",
        "kernels for named layers, put in per family of models",
    ),
    (
        "Cut cross-entropy",
        "the loss: logits are never in global memory",
        "Gemma 2 2B: loss 24 GB to 1 MB, classifier head 28 to 1 GB "
        "([README](https://github.com/apple/ml-cross-entropy), "
        "[arXiv 2411.09009](https://arxiv.org/abs/2411.09009))",
        "one pattern, one kernel",
    ),
)
_ACCUMULATION = """
Gradient accumulation over micro-batches, which trainers offer (`memplan.AccumulatingTrainer` among
them), holds the same activations as layers in as many chunks. It runs the step once for each and
adds the gradients outside; here they are added in the products that make them, within one step, and
fewer layers or chunks are taken where the budget allows.
"""


def chunks(record: dict[str, Any]) -> list[str]:
    """The whole section."""
    rows = record["results"]
    return [
        _INTRODUCTION,
        *_graphs([row for row in rows if row.get("graph") in NAMES and "kind" in row]),
        _PLANNED,
        *_planned([row for row in rows if "budget" in row]),
        _TIMED,
        *_timed([row for row in rows if "ratio" in row]),
        _OTHERS,
        "| | what goes into chunks | published | limits |",
        "|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in _SIDE_BY_SIDE),
        _ACCUMULATION.rstrip("\n"),
    ]


def gib(nbytes: int) -> str:
    """Bytes in GiB."""
    return f"{nbytes / 2**30:.2f}"


def _change(before: int, after: int) -> str:
    return f"{gib(before)} → {gib(after)}"


def _graphs(rows: list[Row]) -> list[str]:
    head = ["graph", "chunks", "peak GiB", "change", "floor GiB", "nodes", "seconds to choose"]
    return table(
        head,
        [
            [
                NAMES[row["graph"]],
                row["kind"],
                _change(row["peak_before_bytes"], row["peak_after_bytes"]),
                f"{100 * (row['peak_after_bytes'] / row['peak_before_bytes'] - 1):.1f}%",
                _change(row["floor_before_bytes"], row["floor_after_bytes"]),
                f"{row['nodes_before']:,} → {row['nodes_after']:,}",
                f"{row['seconds_to_choose']:.1f}",
            ]
            for row in rows
        ],
    )


def _planned(rows: list[Row]) -> list[str]:
    head = ["graph", "times of", "budget GiB", "extra time %", "of it chunks %", "recomputed nodes"]
    return table(
        [*head, "tried"],
        [
            [
                NAMES[row["graph"]],
                row["device"],
                gib(row["budget_bytes"]),
                f"{100 * row['extra_cost_fraction']:.2f}",
                f"{100 * row['chunk_cost_fraction']:.2f}",
                f"{row['recomputed_nodes']:,}",
                row["best"].partition("(")[2].rstrip(")"),
            ]
            for row in rows
        ],
    )


def _timed(rows: list[Row]) -> list[str]:
    head = ["step", "chunks", "peak MiB", "ms before", "ms after", "ratio"]
    return table(
        head,
        [
            [
                row.get("step") or f"loss head, {row['rows']:,} rows, {row['classes']:,} classes",
                row.get("kind") or f"{row['chunks']} chunks",
                f"{row['peak_before_bytes'] / 2**20:.0f} → {row['peak_after_bytes'] / 2**20:.0f}",
                f"{row['before_ms']:.0f}",
                f"{row['after_ms']:.0f}",
                f"{row['ratio']:.3f}",
            ]
            for row in rows
        ],
    )
