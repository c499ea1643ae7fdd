"""All tables from the recorded results: ``results/TABLES.md``, and ``docs/benchmarks.md``.

python -m benchmarks.tables
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.tables import captures as captured
from benchmarks.tables import highlights, steps
from benchmarks.tables.rows import (
    RESULTS,
    analyzed,
    certificates,
    ended_early,
    free_passes,
    free_times,
    lean,
    load,
    loop_pairs,
    origin,
    plain,
    public,
    replayed,
    scale,
    summary,
    tightest,
    training,
)

ROOT = Path(__file__).parents[2]

PAIRS = """
## Pairs of loops

`benchmarks/plans/recurrent_pairs.py` rewrites training graphs of 200 steps, batch 16, hidden 512,
that store all that the backward loop reads: an ONNX `LSTM` and a hand-written cell in a `Scan`.
Stored is what the backward loop reads of what the forward loop stacks, per step; peaks are measured
by `memplan validate` on the CPU, tuned sessions, both with the same fusions. Extra time is
estimated.
"""

CAPTURED = """
## Captured from PyTorch

`benchmarks/capture/roads.py`: `memplan capture` by both roads, the forward graph with memplan's
gradients (`grad`) and autograd's own backward (`joint`). Errors are relative to the largest entry
of a tensor; gradients that are zero but for rounding are compared with the largest of all. Stash
and peak are simulated at the sizes of the example batch.

Small networks of `benchmarks/nets/captured.py`, compared in float64, sizes in float32 (seconds on a
busy machine):
"""
FULL = """
At published sizes, with AdamW; memory is what the process grew by, the networks' own weights apart.
Ten other jobs ran on the two cores, so the seconds of CPU tell more than those of the clock:
"""
TRAINED = """
200 steps beside PyTorch, the captured file rewritten at 50% of its peak; *of PyTorch from itself*
is how far PyTorch's own losses are apart when its first weights are rounded differently. The last
two columns are how far memplan's and PyTorch's losses are from those of PyTorch in float64:
"""
LIBRARIES = """
Networks of torchvision, timm and transformers, made from configurations with random weights, all in
float64 (seconds on a busy machine; versions stand in the record):
"""
STEPS = """
Steps of the small networks with SGD, in tuned sessions of one thread: medians of 101 runs in turn
(`grad`, `joint`, `grad`, …) in CPU time, on a machine that did much other work. At these sizes what
a node costs by itself outweighs what it computes:
"""

CHECKED = """
## Captured steps held against PyTorch

`benchmarks/capture/check.py`: what the check of `capture` says, in float32 with SGD and momentum;
errors are relative to the largest entry of a tensor, the worst of two updates. *From float64*:
gradients of the first step against PyTorch in float64, beside what PyTorch's own are off by in
float32; it shares nothing with the check. *Rounding*: off by more than that, and by as much in
PyTorch in float64 where weights are a millionth off (units that fall to the other side of a kink).
Seconds on a very busy machine, the check's among them. Rows without `worst` in the record are older
than the check's leaving out what is zero but for rounding: there it makes errors of gradients near
1 (biases in front of a normalization).

Training code that is easy to get wrong:
"""
CHECKED_NETWORKS = """
Networks of torchvision, timm and transformers at reduced size; by `auto` they are as by `grad`
where that is right:
"""

INTRODUCTION = """\
# All benchmark tables

Written by `python -m benchmarks.tables` from the records beside this file; the short version is
[docs/benchmarks.md](../../docs/benchmarks.md). Extra time is that of
recomputation in percent of the step without. Every plan was checked by code that knows nothing of
the planner. Searches are stopped by the clock, so figures differ a little from run to run.

## Training graphs: memplan's search and published planners

One memory model (the runtime's, exact, with workspace) and one cost model (roofline of an H200:
estimated, not measured) for all. A budget is a share of the dynamic peak. *reaches N%*: the
strategy found no plan for the budget, its lowest peak is N% of the original one. The bound holds
for any order. The others are memplan's implementations of the published algorithms
(`benchmarks/`); no search of memplan starts from their plans.
"""

CERTIFIED = """
## Certificates for any order

`auto` on the networks above and on six that `benchmarks/plans/families.py` makes, ten seconds at
most. The bound holds for every node order and every recomputation. A search ends by itself within
0.1 percentage points of it. *First plan*, *last*: when the first plan that fits was there, and the
last improvement.
"""

PUBLIC = """
## Public graphs

The graphs of the Moccasin paper (ICML 2023): random layered graphs (RL) and the training graphs of
Checkmate (MLSys 2020). Points below the structural floor are left out.
"""

ANALYZED = """
`memplan analyze`, from file to JSON, on chains of linear layers (training steps with as many
outputs and modules as layers) and on an LSTM of two layers that PyTorch exports step by step. Best
of five runs in one process, on a machine that did other work, too; CPU time is that of the process,
without ONNX's shape inference, which runs in a child.
"""

TIGHTEST = """
The same plan (60% of the peak in a tuned session) in a plain session with every fence,
input fence and pin, against the tuned session; predicted, with workspace. The first run takes the
same; the block of the later runs is why `tuned` stays the default of `rewrite`.
"""

TIMED = """
## Step time of free passes

Steps of the original and of what the passes make of it, run in turn (A B B A) in one process on one
thread, in tuned sessions, while the machine did other work. Ratios below 1 are quicker.
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

REPLAYED = """
## Plans replayed

`benchmarks/plans/replay.py`: `memplan rewrite --plan-out` with its default ten seconds at most, and
`--plan` with what it wrote; whole runs of the program, on a machine that did much other work. The
budget is 70% of the peak, the lowest (`min`), or 60% with `--chunk auto`. Bytes of the two files
are compared. Where no plan was found there is nothing to replay.
"""

LEAN = """
## Generated training graphs

`memplan grad` beside training graphs of the same networks at the same batch that PyTorch exported
(traced with autograd, decomposed, standard operators); theirs in parentheses. Stash is what the
forward part keeps for the backward part; peaks are predicted, without weights and inputs, for a
tuned session on the CPU. Nothing was run. `benchmarks/nets/lean.py` exports the forward graphs;
PyTorch's GPT-2 and BERT graphs also compute attention masks from their inputs, in 16 and 4 nodes.

"""


FREE = """
## Free passes

What `rewrite` frees before it recomputes anything, move by move, in percent of the original's peak
(with workspace, tuned session, CPU); `benchmarks/plans/below_floor.py`. Graphs whose peak stays are
left out. The floor, in percent of that peak too, is not lowered by these passes. Estimated time is
the sum over nodes. Where a graph was run, all outputs were compared and bytes were as predicted;
the time is that of the quickest step of many, in turn with the original on one thread, over the
original's, on a machine that did other work.
"""

STATE = """
## Training

`memplan.Trainer` over 200 steps of small networks with AdamW (`benchmarks/steps/trainer.py`), one
thread: losses and final state against a plain loop that feeds and fetches, the dynamic peak of
every step against its prediction. `min`: the budget is below the floor, so the file is the one of
the lowest peak. *State*: what is written in place; the peak falls by less where it is not at the
end of the step.
"""

BESIDE = """
Five networks with AdamW on the CPU (`benchmarks/steps/networks.py`): PyTorch eager, with
`torch.utils.checkpoint` around every block, and compiled with budgets for activations, beside
memplan as captured and at the growth that each of these reached (`benchmarks/steps/pytorch.py`).
Each is a process of its own, and all take turns. Growth is that of the resident set over all steps,
beside weights and moments; predicted are the dynamic bytes of the run. Milliseconds are the median
of the rounds' medians; *rounds* are the quickest and the slowest.
Files are rewritten with `--chunk auto`. The machine is a virtual one, which slows down for seconds
now and then, and then steps of convolutions most.
"""


LOADED = """
What it takes to make a `memplan.Trainer` of each, where PyTorch is installed
(`benchmarks/steps/loading.py`): seconds, and how far the resident set grows, beside libraries.
Before: PyTorch was imported to read a file of ONNX Runtime's, and first values were there twice.
The trees took turns, on a machine that did other work.
"""


def document() -> list[str]:
    """The whole page."""
    free = load("public_free")
    training_records = [
        load(name)
        for name in ("training_graphs", "training_marks", "training_lstm2", "certificates")
    ]
    proofs = load("certificates")
    grown = load("scale")
    analyses = load("analyze_scale")
    generated = load("lean_gradients")
    pairs, replays = load("recurrent_pairs"), load("replay")
    freed = load("free_bytes")
    sessions, tight = load("plain_sessions"), load("plain_tightest")
    captures, checks = load("capture"), load("capture_check")
    trainings, beside = load("training"), load("pytorch_steps")
    started = load("trainer_load")
    return [
        INTRODUCTION,
        *training(training_records),
        "",
        *(f"{origin(record)}\n" for record in training_records),
        CERTIFIED,
        *certificates(proofs),
        f"\n{ended_early(proofs)}",
        FREE,
        *free_passes(freed),
        f"\n{origin(freed)}",
        TIMED,
        *free_times(load("free_time")),
        f"\n{origin(load('free_time'))}",
        PLAIN,
        *plain(sessions),
        f"\n{origin(sessions)}",
        TIGHTEST,
        *tightest(tight),
        f"\n{origin(tight)}",
        REPLAYED,
        *replayed(replays),
        f"\n{origin(replays)}",
        PUBLIC,
        *public(free),
        f"\n{summary(free)}\n",
        origin(free),
        "\n## Large graphs\n",
        "Transformer training graphs as `benchmarks/plans/scale.py` makes them.\n",
        *scale(grown),
        f"\n{origin(grown)}",
        ANALYZED,
        *analyzed(analyses),
        f"\nThe chains' log-log slope: {analyses['results'][-1]['log_log_slope']:.2f}.\n",
        origin(analyses),
        PAIRS,
        *loop_pairs(pairs),
        f"\n{origin(pairs)}",
        LEAN.rstrip("\n") + "\n",
        *lean(generated),
        f"\n{origin(generated)}",
        CAPTURED,
        *captured.compared(captures, "families"),
        *captured.libraries(captures, LIBRARIES),
        *captured.steps(captures, STEPS),
        FULL,
        *captured.full(captures),
        TRAINED,
        *captured.training(captures),
        f"\n{origin(captures)}",
        CHECKED,
        *captured.checked(checks, "pieces"),
        CHECKED_NETWORKS,
        *captured.checked(checks, "networks"),
        f"\n{origin(checks)}",
        STATE,
        *steps.in_place(trainings),
        f"\n{origin(trainings)}",
        BESIDE,
        *steps.beside_pytorch(beside),
        f"\n{origin(beside)}",
        LOADED,
        *steps.loading(started),
        f"\n{origin(started)}",
    ]


def pages() -> dict[Path, str]:
    """Every file that is generated from the records, with its text."""
    return {
        RESULTS / "TABLES.md": "\n".join(document()) + "\n",
        ROOT / "docs" / "benchmarks.md": "\n".join(highlights.document()) + "\n",
    }


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
