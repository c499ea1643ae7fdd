"""Checkpoints: all that a run needs to go on to the bit, in one ``.npz`` file, written atomically.

The members are the arrays of the state by name, and ``memplan.checkpoint``, a JSON text: which
state it is of (:attr:`memplan.training.step_file.StepFile.fingerprint`), how many steps were taken,
what changes per step, and where the data was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import UsageError
from memplan.proto.write import check_output, followed, made_beside, put, spare
from memplan.runtime.archive import load_arrays, save_arrays
from memplan.training.finite import keep_finite

Array = npt.NDArray[Any]

FORMAT = "memplan.checkpoint/1"
_ABOUT = "memplan.checkpoint"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: ``steps`` taken, ``hyperparameters`` by input, and ``data`` as
    :meth:`memplan.training.batches.Batches.state` gives it, or None."""

    fingerprint: str
    steps: int
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None
    format: str = FORMAT


def save_checkpoint(
    path: PathLike[str] | str,
    state: Mapping[str, Array],
    about: Progress,
    renewed: Collection[str],
    files: Iterable[Path] = (),
) -> None:
    """Write a checkpoint; a file that is there is replaced once all of the new one is on the disk.

    Args:
        path: the file.
        state: arrays by name.
        about: how far they have come.
        renewed: what steps change. What they do not change may hold infinities, as masks do.
        files: those of the model, which are never overwritten.

    Raises:
        UsageError: it cannot be written; what was there is as it was.
        TrainingError: the state is not finite, and the checkpoint that is there is; it stays.
    """
    target = Path(path)
    check_output(target, force=True)
    spare([target], files, "is a file of the model")
    target = followed(target)
    keep_finite(target, {n: v for n, v in state.items() if n in renewed}, about.steps, _ABOUT)
    text = json.dumps(asdict(about), sort_keys=True)
    try:
        with made_beside(target) as made:
            save_arrays(made.stream, {**state, _ABOUT: np.asarray(text)})
            put(made, target, force=True)
    except OSError as error:
        raise UsageError(
            f"checkpoint {target} cannot be written: {error.strerror or error}",
            "an earlier one is as it was; make room, or choose another place",
        ) from None


def load_checkpoint(
    path: PathLike[str] | str, fingerprint: str
) -> tuple[dict[str, Array], Progress]:
    """State and progress from a checkpoint.

    Raises:
        UsageError: it cannot be read, or is of another model.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"checkpoint {file} does not exist")
    try:
        arrays = load_arrays(file)
        told = json.loads(str(arrays.pop(_ABOUT)))
        about = Progress(**told)
    except Exception as error:  # a damaged archive fails in any way
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{file} cannot be read as a checkpoint: {line}") from None
    if about.format != FORMAT:
        raise UsageError(f"{file} is a checkpoint of format {about.format}, not {FORMAT}")
    if about.fingerprint != fingerprint:
        raise UsageError(
            f"{file} is a checkpoint of another model: its state has other names, types or shapes",
            "resume with the model that wrote it, or with what 'memplan rewrite' made of that",
        )
    return arrays, about
