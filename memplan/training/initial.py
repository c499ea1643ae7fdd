"""First values of all state: of a checkpoint, given, from the file, or by a rule that is told."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import UsageError
from memplan.ir.roles import Role, averaged_by
from memplan.runtime.archive import BFLOAT16
from memplan.training.checkpoint import Progress, Wanted, load_checkpoint
from memplan.training.step_file import Slot, StepFile
from memplan.training.trained_weights import Weights, read_weights
from memplan.units import counted, listed

Array = npt.NDArray[Any]
Init = str | None
Begin = tuple[dict[str, Any], Progress]
"""Values by name, and after how many steps they are."""

RANDOM = "random"
_SHOWN = 4
_PIECE = 1 << 18  # elements
_IGNORED = ("num_batches_tracked",)  # PyTorch counts them; no graph reads them
_VARIANCES = ("var", "variance")
_SCALES = ("weight", "gamma", "scale", "_var")
_WEIGHTS = (Role.PARAMETER, Role.FROZEN, Role.AVERAGE)
"""What has no first value by a rule."""


def first_state(
    files: Iterable[StepFile],
    wanted: Wanted,
    weights: Weights | None,
    resume: PathLike[str] | str | Begin | None,
) -> Begin:
    """What is given of a state to begin with, and how far it has come: that of a checkpoint, if
    there is one to go on from.

    Args:
        files: the steps.
        wanted: their state, by the names that it has outside.
        weights: values by these names; of what PyTorch counts and no graph reads, none is missed.
        resume: a checkpoint.

    Raises:
        UsageError: a file cannot be read, or is of another model; or a value is of no state.
    """
    if isinstance(resume, tuple):
        return resume
    if resume is not None:
        return load_checkpoint(resume, wanted)
    given = {} if weights is None else read_weights(weights, wanted.state)
    unknown = [k for k in given if k not in wanted.state and not k.endswith(_IGNORED)]
    if unknown:
        more = f", and {len(unknown) - 1} more such" if len(unknown) > 1 else ""
        raise UsageError(
            f"there is a value for '{unknown[0]}', which is not state of this step{more}",
            hint_of_state(unknown[0], files, wanted),
        )
    return given, Progress(wanted.fingerprint, 0)


def hint_of_state(name: str, files: Iterable[StepFile], wanted: Wanted) -> str:
    """What to do about a name that is not state."""
    if any(file.has_constant(name) for file in files):
        return "it is a constant of the graph: capture with --frozen inputs, and it can change"
    near = get_close_matches(name, wanted.state, 3)
    return f"near matches: {', '.join(near)}" if near else f"state: {_some(list(wanted.state))}"


def initial_state(
    step: StepFile, given: Mapping[str, Any], init: Init, seed: int
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """A value for every input that lives from step to step, to be read only (those of the file are
    not copied), and what is to be said of them.

    Args:
        step: the step.
        given: values by name, before all others.
        init: ``random`` for parameters without a value.
        seed: of random values.

    Raises:
        UsageError: a parameter has no value; a value has not the type and shape of its input; or
            ``init`` is something else.
    """
    if init not in (None, RANDOM):
        raise UsageError(
            f"init is {init!s:.40}: expected '{RANDOM}'",
            "values by name: weights={NAME: array}, or --weights-file FILE",
        )
    values: dict[str, Array] = {}
    missing: list[str] = []
    following: list[Slot] = []
    by_rule: dict[str, list[str]] = {}
    for slot in step.state:
        if slot.name in given:
            values[slot.name] = fitting(slot, given[slot.name])
        elif slot.default is not None:
            values[slot.name] = slot.default
        elif slot.role is Role.AVERAGE and averaged_by(slot.name) in step.slots:
            following.append(slot)
        elif slot.role in _WEIGHTS and init == RANDOM:
            values[slot.name] = _random(slot, seed)
            by_rule.setdefault("random numbers", []).append(slot.name)
        elif slot.role in _WEIGHTS:
            missing.append(slot.name)
        else:
            number = _first_number(step, slot)
            values[slot.name] = _filled(slot, number)
            by_rule.setdefault(f"{number:g}", []).append(slot.name)
    if missing:
        raise UsageError(
            f"{counted(len(missing), 'parameter')} without a value: {_some(missing)}",
            "give them: weights=FILE or mapping, or --weights-file FILE; or ask for init='random', "
            "or --init random",
        )
    for slot in following:
        values[slot.name] = values[str(averaged_by(slot.name))]
    notes = tuple(f"{_some(names)} start at {what}" for what, names in by_rule.items())
    return values, notes


def fitting(slot: Slot, value: Any) -> Array:
    """A value as the input wants it, not to be changed.

    Raises:
        UsageError: it has another type or shape.
    """
    array = np.asarray(value)
    if slot.dtype == BFLOAT16 and array.dtype == np.float32:
        with np.errstate(invalid="ignore"):  # of a nan that signals
            array = array.astype(BFLOAT16)
    shape = slot.static_shape
    if array.shape != shape and math.prod(array.shape) == math.prod(shape) == 1:
        array = array.reshape(shape)  # a number is a number
    if array.shape != shape or array.dtype != slot.dtype:
        given = f"{array.dtype}{list(array.shape)}"
        raise UsageError(f"the value of '{slot.name}' is {given}, the step wants {slot.words}")
    return array


def _random(slot: Slot, seed: int) -> Array:
    """Uniform numbers within √(6 / (fan-in + fan-out)) (Glorot and Bengio 2010, equation 16),
    whichever way a matrix lies. Vectors are 1 if they are named as scales are, else 0."""
    shape = slot.static_shape
    if len(shape) < 2:
        scale = slot.name.lower().endswith(_SCALES) and bool(shape)
        return _filled(slot, 1.0 if scale else 0.0)
    generator = np.random.default_rng([seed, zlib.crc32(slot.name.encode())])
    bound = math.sqrt(6 / ((shape[0] + shape[1]) * math.prod(shape[2:]))) if 0 not in shape else 0
    values = np.empty(math.prod(shape), slot.dtype)
    for start in range(0, len(values), _PIECE):  # not all at once: they are drawn as float64
        piece = values[start : start + _PIECE]
        drawn = generator.uniform(-bound, bound, len(piece))
        piece[:] = drawn
    return values.reshape(shape)


def _first_number(step: StepFile, slot: Slot) -> float:
    """Where state starts that nobody gives: variances at 1, all else at 0; but a step counter at 1
    if anything but the node that counts it reads it, as the number of the step that is taken."""
    if slot.role is Role.STEP_COUNTER:
        output = next((o for o, i in step.contract.new_values.items() if i == slot.name), None)
        return float(step.readers_beside(slot.name, output))
    last = slot.name.lower().replace("_", ".").split(".")
    variance = slot.role is Role.RUNNING_STATISTIC and any(word in _VARIANCES for word in last)
    return float(variance)


def _filled(slot: Slot, number: float) -> Array:
    if not number:
        return np.zeros(slot.static_shape, slot.dtype)  # takes no memory before it is written to
    return np.full(slot.static_shape, np.float64(number).astype(slot.dtype))


def _some(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names], _SHOWN)
