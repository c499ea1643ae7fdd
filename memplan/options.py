"""Every option of the functions, and so of the commands, that take many: what it means, what it may
be, and what it is unless it is given.

Commands and functions that share an option take it from here, by its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from memplan.errors import UsageError
from memplan.option_fields import Options, option, settle, with_help
from memplan.providers import PROVIDERS
from memplan.units import SizeSpec

SESSIONS = ("tuned", "default")
"""Kinds of session (:mod:`memplan.simulate.session`)."""
LEVELS = ("none", "extended")
"""Of ONNX Runtime's optimizer, as far as plans are made for them."""
_MOST_AT_ONCE = max(64, os.cpu_count() or 1)
"""Threads and jobs: 1,024 threads on two cores, which wait by spinning, took five minutes for two
steps of a few milliseconds; a job is a process that holds a model."""


class Weights(StrEnum):
    """What to do with weights that lie in other files."""

    AUTO = "auto"
    REFERENCE = "reference"
    COPY = "copy"


_WEIGHTS: dict[str, Any] = {
    "help": "Weights in other files: reference them, copy them beside the output, or auto "
    "(reference them where ONNX allows it).",
    "default": Weights.AUTO.value,
    "choices": tuple(each.value for each in Weights),
    "metavar": "HOW",
}
_STATE: dict[str, Any] = {
    "help": "Where the step writes new weights and moments: in-place (over the old ones), apart, "
    "or OUT=IN to pair an output with an input.",
    "default": (),
    "metavar": "HOW",
}
_SEED: dict[str, Any] = {"default": 0, "least": 0, "most": 2**32 - 1}  # where NumPy's seeds end
_THREADS: dict[str, Any] = {
    "help": "Threads per operator; 0 lets the runtime choose.",
    "default": 0,
    "least": 0,
    "most": _MOST_AT_ONCE,
}
_INPUTS: dict[str, Any] = {
    "help": "Read the inputs from this .npz file, one array per graph input.",
    "default": None,
    "unset": "generated inputs",
}
_SECONDS: dict[str, Any] = {"above": 0, "metavar": "S"}


@with_help
@dataclass(frozen=True, slots=True)
class RewriteOptions(Options):
    """How to rewrite. Sizes as in :mod:`memplan.units`; a percentage is of the peak before.

    Selectors are those of :mod:`memplan.ir.matching`; ``passes`` and ``wrt`` as in
    :mod:`memplan.passes.manager`, ``scan_recompute`` in
    :func:`memplan.api.rewrite.loop_storage.loops_policy`, ``state`` in
    :mod:`memplan.api.state_modes`, ``chunk`` in :func:`memplan.passes.chunk.asked.parse_chunks`.

    Raises:
        UsageError: a value is out of range, or of another kind.
    """

    budget: SizeSpec = option(
        "4GB, 3.7GiB, a number of bytes, 60% (of the original peak), or min (the lowest peak "
        "found). Required, unless the strategy ignores it.",
        metavar="SIZE",
    )
    session: str = option(
        "How you will load the model: tuned (by memplan.load), or with default options.",
        "tuned",
        choices=SESSIONS,
    )
    provider: str = option(
        "The execution provider that will run it.", "cpu", choices=tuple(PROVIDERS)
    )
    chunk: str = option(
        "Run parts of the step in chunks, forward and backward together: regions (around large "
        "tensors such as logits), layers (the last ones, a part of the batch at a time), a number "
        "of chunks, or auto (the cheapest plan). The last bits may differ.",
        "none",
        metavar="WHAT",
    )
    keep: tuple[str, ...] = option(
        "Never recompute tensors: 'MODULE :: OPERATOR' (two globs), or a glob of names.",
        (),
        metavar="SELECTOR",
    )
    recompute: tuple[str, ...] = option(
        "Always recompute tensors, as 'blocks.*.mlp :: *'.", (), metavar="SELECTOR"
    )
    time_limit: float = option("Seconds for everything up to the new file.", 20.0, **_SECONDS)
    effort: int = option(
        "Rounds of the search, instead of seconds: the same file on every machine.",
        0,
        least=0,
        unset="by the clock",
    )
    loss: str | None = option(
        "The output that is the loss, if memplan picks the wrong one.", None, rarely=True
    )
    strategy: str = option(
        "How to choose what to recompute; 'memplan strategies' lists all.",
        "auto",
        metavar="NAME{opt=..}",
        rarely=True,
    )
    state: tuple[str, ...] = option(
        **_STATE,
        unset="in-place for updating steps by capture or grad, else as the file says",
        rarely=True,
    )
    optimize: str = option(
        "Let ONNX Runtime fuse nodes first.", "extended", choices=LEVELS, rarely=True
    )
    passes: str = option(
        "Changes to make first that cost no time.", "all", choices=("all", "none"), rarely=True
    )
    offload: bool = option(
        "On CUDA, also move tensors to host memory and back where that is cheaper. Experimental: "
        "never measured on a GPU.",
        False,
        rarely=True,
    )
    wrt: tuple[str, ...] = option(
        "Keep these parameters' gradients and remove all others.", (), metavar="GLOB", rarely=True
    )
    scan_recompute: str = option(
        "What backward loops recompute instead of reading what forward loops stored: none, all, "
        "names as in 'a+b*', or auto (whichever costs the least).",
        "",
        metavar="NAMES",
        unset="auto with --strategy auto when tuned, else none",
        rarely=True,
    )
    reserve: SizeSpec = option(
        "Subtract this from the budget, for memory outside the model.",
        SizeSpec("0", 0, None),
        metavar="SIZE",
        rarely=True,
    )
    costs: Path | None = option(
        "Plan with the measured seconds in this file, from 'memplan profile'.", None, rarely=True
    )
    device: str | None = option(
        "The device whose speed to assume: h200, gh200, h100, a100, rtx4090 or cpu.",
        None,
        unset="as --provider suggests",
        rarely=True,
    )
    weights: str = option(**_WEIGHTS, rarely=True)

    def __post_init__(self) -> None:
        settle(self)
        if self.wrt and self.passes == "none":
            raise UsageError(
                "--wrt requires --passes all", "leave --passes out, or use 'memplan grad --wrt'"
            )


def given_options(budget: object) -> RewriteOptions:
    """Options from what a caller gave for a budget.

    Raises:
        UsageError: it is not a size, or a bare number that looks like a percentage.
    """
    return budget if isinstance(budget, RewriteOptions) else RewriteOptions(budget)  # type: ignore[arg-type]


DEFAULT_EFFORT = 50
"""Rounds of each search of a sweep: some seconds for a graph of a thousand nodes."""
DEFAULT_PLAN = RewriteOptions(SizeSpec("100%", 1, None), effort=DEFAULT_EFFORT)
"""How a point of a sweep is planned unless told otherwise."""


@with_help
@dataclass(frozen=True, slots=True)
class SweepOptions(Options):
    """How to plan, and how much at once.

    ``plan`` is how ``rewrite`` is asked for every point; budget, session and provider are those of
    the point. Its ``effort`` is in rounds: the same plans on every machine; with 0, ``time_limit``
    stops every plan by the clock.
    """

    plan: RewriteOptions = DEFAULT_PLAN
    fit_dim: str | None = option(
        "The dimension for --fit.", None, unset="the one that --dim leaves open"
    )
    fit_step: int = option("With --fit: try only multiples of N.", 1, least=1)
    jobs: int = option(
        "Rows to compute at once, each with a model in memory; 0 is one per core.",
        0,
        least=0,
        most=_MOST_AT_ONCE,
    )

    def __post_init__(self) -> None:
        settle(self)
        object.__setattr__(self, "plan", given_options(self.plan))


@with_help
@dataclass(frozen=True, slots=True)
class ValidateOptions(Options):
    """How to validate. ``runs`` may be 0: none. ``state``: see :mod:`memplan.api.state_modes`.

    Raises:
        UsageError: a number is out of range.
    """

    provider: str = option(
        "Where to run; auto is as recorded in REWRITTEN.", "auto", choices=("auto", *PROVIDERS)
    )
    state: tuple[str, ...] = option(**_STATE, unset="as REWRITTEN says")
    runs: int = option("Timed runs of each model.", 5, least=0)
    inputs: Path | None = option(**_INPUTS)
    seed: int = option("Seed for generated inputs.", **_SEED)
    threads: int = option(**_THREADS)
    draws: int = option(
        "Compare the outputs on this many sets of inputs; --inputs is the first.", 2, least=1
    )
    wrt: tuple[str, ...] = option(
        "Expect the outputs that 'rewrite --wrt GLOB' removed to be missing.", (), metavar="GLOB"
    )
    time_limit: float = option(
        "Seconds allowed for each process, which runs one model.", 600.0, **_SECONDS
    )
    plain: bool = option(
        "Also run ORIGINAL in a session with default options, for comparison.", True
    )


@with_help
@dataclass(frozen=True, slots=True)
class ProfileOptions(Options):
    """How to profile.

    Raises:
        UsageError: a number is out of range.
    """

    provider: str = option("The execution provider to measure on.", "cpu", choices=tuple(PROVIDERS))
    runs: int = option("Measured runs, after two warm-up runs.", 5, least=1)
    inputs: Path | None = option(**_INPUTS)
    seed: int = option("Seed for generated inputs.", **_SEED)
    threads: int = option(**_THREADS)
    time_limit: float = option("Seconds allowed for all runs together.", 600.0, **_SECONDS)


@with_help
@dataclass(frozen=True, slots=True)
class GradOptions(Options):
    """How to differentiate.

    ``own_update``: the optimizer is a graph of its own, and the training graph gives gradients.
    ``loss_scale`` as in :mod:`memplan.autodiff.optimizers.scaling`, ``dropout`` in
    :mod:`memplan.autodiff.counter_dropouts`.
    """

    loss: str = option(
        "The loss: a scalar tensor of the graph, or cross-entropy or mse to add one on --logits."
    )
    logits: str | None = option("The tensor that an added loss reads.", None)
    class_axis: int | None = option(
        "The axis of the classes, for cross-entropy.", None, unset="1; 2 for three dimensions"
    )
    wrt: tuple[str, ...] = option(
        "Compute gradients for tensors with these names.",
        (),
        metavar="GLOB",
        unset="initializers that look trainable",
    )
    optimizer: str = option(
        "Add an optimizer: sgd, momentum, adam, adamw, lion, adafactor, rmsprop or adagrad; with "
        "none, gradients are outputs. Options: lr, weight_decay, no_decay='*bias+*norm*', "
        "clip_norm, clip_value.",
        "none",
        metavar="NAME{opt=..}",
    )
    own_update: bool = False
    loss_scale: str = option(
        "Multiply the loss by this, so that small float16 gradients survive; the update divides by "
        "it again: dynamic (options as in dynamic{init_scale=1024}), or a number. Requires "
        "--optimizer.",
        "none",
        metavar="SCALE",
    )
    forward_only: bool = option("Write the forward part only, with the loss.", False)
    dropout: str = option(
        "How dropout masks are made: operator (the runtime draws them) or counter (computed from "
        "the step number, so that they can be recomputed; a seed as in counter{seed=7}).",
        "operator",
        metavar="SOURCE",
    )
    portable: bool = option(
        "Write max pools and LogSoftmax by operators that WebGPU runs (docs/any-gpu.md).", False
    )
    weights: str = option(**_WEIGHTS)


@with_help
@dataclass(frozen=True, slots=True)
class LowerOptions(Options):
    """How to lower."""

    loss: str | None = option(
        "The scalar output that is the loss.",
        None,
        unset="found by memplan; in a graph of ORTModule, the only output",
    )
    optimizer_model: Path | None = option(
        "Add the updates of this optimizer model (optimizer_model.onnx) to the step.",
        None,
        metavar="FILE",
    )
    checkpoint: Path | None = option(
        "Read the parameters' values from this checkpoint of onnxruntime-training.",
        None,
        metavar="FILE",
    )
    weights: str = option(**_WEIGHTS)


@with_help
@dataclass(frozen=True, slots=True)
class TrainOptions(Options):
    """What ``run`` is asked for."""

    data: Path | None = option(
        "Read samples from this .npz file, one array per batch input.", None, unset="random numbers"
    )
    ready_batches: bool = option(
        "The first axis of the arrays in --data is that of whole batches, not of samples.", False
    )
    steps: int = option("Stop after step N; steps before --resume count.", 100, least=1)
    lr: float | None = option("Learning rate.", None, unset="as in MODEL")
    hyper: tuple[str, ...] = option("Set another hyperparameter.", (), metavar="NAME=X")
    weights_file: Path | None = option(
        "Read initial weights from this .npz, .safetensors or .onnx file.",
        None,
        unset="as in MODEL",
    )
    init: str | None = option(
        "random: fill parameters that have no value with random numbers.", None, metavar="HOW"
    )
    provider: str = option(
        "Where to run; auto is as recorded in MODEL, else the CPU.",
        "auto",
        choices=("auto", *PROVIDERS),
    )
    state: tuple[str, ...] = option(**_STATE, unset="in-place wherever that is safe")
    seed: int = option("Seed for shuffling and random initial values.", **_SEED)
    threads: int = option(**_THREADS)
    shuffle: bool = option("Shuffle the samples anew in every epoch.", True)
    log: Path | None = option("Write one row per step to this .csv or .jsonl file.", None)
    checkpoint: Path | None = option("Save the state to this file at the end.", None)
    checkpoint_every: int | None = option("Also save the state after every N steps.", None, least=1)
    resume: bool = option("Continue from the --checkpoint file, if it exists.", False)
    export_forward: Path | None = option(
        "Write --forward with the trained values to this .onnx file.", None
    )
    forward: Path | None = option(
        "The model to export: what grad was given, or the network in evaluation, with parameters "
        "of the same names.",
        None,
    )

    @property
    def outputs(self) -> tuple[Path | None, ...]:
        """The files that a run writes."""
        return self.checkpoint, self.log, self.export_forward
