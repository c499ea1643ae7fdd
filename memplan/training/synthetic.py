"""Batches from nothing, for those who want to see a step train: random, but few, so that a network
can learn them by heart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.errors import UsageError
from memplan.ir.roles import Role
from memplan.runtime.inputs import synthesize
from memplan.runtime.room import require_room
from memplan.training.batches import Array
from memplan.training.step_file import StepFile, opened_step

BATCHES = 4
_SCALE = 20  # generated floats are of scale 0.05


def synthetic_batches(step: StepFile, seed: int) -> dict[str, Array]:
    """Arrays by name, with :data:`BATCHES` batches along the first axis. Integers that index
    something are below the size of that; floats are normal.

    Raises:
        UsageError: a size is not known, or a type cannot be generated.
        RuntimeUnavailableError: they do not fit into memory.
    """
    slots = [slot for slot in step.named(Role.BATCH) if slot.default is None]
    open_sizes = sorted({d for s in slots for d in s.shape if isinstance(d, str)})
    if open_sizes:
        raise UsageError(
            f"the step leaves the size '{open_sizes[0]}' open", f"--dim {open_sizes[0]}=SIZE"
        )
    graph = opened_step(step.whole, step.path, step.dims).graph
    names = {slot.name for slot in slots}
    ids = tuple(index for index in graph.inputs if graph.tensors[index].name in names)
    nbytes = sum(graph.tensors[index].nbytes for index in ids)
    require_room(2 * BATCHES * nbytes, f"{BATCHES} synthetic batches and their copy")
    draws = [synthesize(replace(graph, inputs=ids), seed + k) for k in range(BATCHES)]
    return {name: np.stack([_scaled(draw[name]) for draw in draws]) for name in draws[0]}


def _scaled(value: Array) -> Array:
    """Floats of scale 1, unless they must be positive."""
    if value.dtype.kind != "f" or not value.ndim or value.min(initial=0) >= 0:
        return value
    scaled: Array = (value * _SCALE).astype(value.dtype)
    return scaled
