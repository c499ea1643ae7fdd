"""Checkpoints: all that a run needs to go on to the bit, in one ``.npz`` file, written atomically.

The members are the arrays of the state by name, and ``memplan.checkpoint``, a JSON text: which
state it is of (:attr:`memplan.training.step_file.StepFile.fingerprint`), how many steps were taken,
what changes per step, where the data was, and a digest of all of that and of the arrays. A file may
be damaged, cut, edited or another's; by its digest it is as it was written, or nothing of it is
used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import TrainingError, UsageError
from memplan.ir.roles import Role
from memplan.processes.locks import require_free
from memplan.proto.paths import file_problem
from memplan.proto.write import check_output, followed, made_beside, put, spare
from memplan.runtime.archive import (
    BFLOAT16,
    Header,
    load_arrays,
    opened_arrays,
    readable,
    save_arrays,
)
from memplan.training.step_file import Slot

Array = npt.NDArray[Any]

FORMAT = "memplan.checkpoint/1"
TURNS = "steps"
"""The one key of ``data`` where several steps are trained in turns: how often each was taken."""
_ABOUT = "memplan.checkpoint"
_MOST_ABOUT = 1 << 24  # bytes
_ANEW = "resume from another copy, or begin anew without it"
_OTHER = "resume with the model that wrote it, or with what 'memplan rewrite' made of that"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: ``steps`` taken, ``hyperparameters`` by input, and ``data`` as
    :meth:`memplan.training.batches.Batches.state` gives it, or None."""

    fingerprint: str
    steps: int
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a checkpoint must be of: ``state`` by the names in the file, ``knobs`` the names of
    hyperparameters, ``turns`` those of steps that are trained in turns."""

    fingerprint: str
    state: Mapping[str, Slot]
    knobs: Collection[str] = ()
    turns: Collection[str] = ()


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
        UsageError: it cannot be written, or a run of another process has it; what was there is as
            it was.
        TrainingError: the state is not finite, and the checkpoint that is there is; it stays.
    """
    target = Path(path)
    check_output(target, force=True)
    spare([target], files, "is a file of the model")
    target = followed(target)
    require_free(target)
    _keep_finite(target, {n: v for n, v in state.items() if n in renewed}, about.steps)

    told = {**asdict(about), "format": FORMAT}

    def seal(arrays: str) -> tuple[str, Array]:
        sealed = {**told, "contents": _digest(told, arrays)}
        return _ABOUT, np.asarray(json.dumps(sealed, sort_keys=True))

    rows = {name: np.asarray(value, order="C") for name, value in state.items()}
    try:
        with made_beside(target) as made:
            save_arrays(made.stream, rows, seal)
            put(made, target, force=True)
    except OSError as error:
        raise UsageError(
            f"checkpoint {target} cannot be written: {error.strerror or error}",
            "an earlier one is as it was; make room, or choose another place",
        ) from None


def _keep_finite(file: Path, state: Mapping[str, Array], steps: int) -> None:
    """Refuse to replace a checkpoint by a state with nan or infinities that it does not have.

    Args:
        file: where a checkpoint may be.
        state: what steps change, by name.
        steps: after how many of them.

    Raises:
        TrainingError: it would be lost.
        UsageError: whether it would be cannot be read.
    """
    wrong = {name: kinds for name, value in state.items() if (kinds := _not_finite(value))}
    if not wrong or not file.is_file():
        return
    try:
        held = load_arrays(file, lambda headers: [n for n in (_ABOUT, *wrong) if n in headers])
        kept = json.loads(str(held[_ABOUT]))["steps"]
    except OSError as error:  # it may be one to go on from
        raise UsageError(
            f"{file} cannot be read: {file_problem(error)}",
            "the state is not finite, and that of the file may be: save to another file",
        ) from None
    except Exception:  # nothing to go on from
        return
    for name, kinds in wrong.items():
        if more := kinds - _not_finite(held.get(name)):
            raise TrainingError(
                f"'{name}' holds {min(more)} after step {steps}; {file} keeps the state after "
                f"step {kept}",
                "go on from there with a smaller learning rate, or save to another file",
            )


def _not_finite(value: Any) -> frozenset[str]:
    """Which of nan and the infinities are among the values."""
    if not isinstance(value, np.ndarray) or not (
        value.dtype.kind == "f" or value.dtype == BFLOAT16
    ):
        return frozenset()
    if np.isfinite(value).all():
        return frozenset()
    found = {"nan": np.isnan(value), "inf": value == np.inf, "-inf": value == -np.inf}
    return frozenset(kind for kind, where in found.items() if where.any())


def _digest(told: Mapping[str, Any], arrays: str) -> str:
    """That of what is told, and of the arrays beside it, by their own digest."""
    text = json.dumps([arrays, {**told, "contents": ""}], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_checkpoint(path: PathLike[str] | str, wanted: Wanted) -> tuple[dict[str, Array], Progress]:
    """State and progress from a checkpoint; the headers of arrays are looked at before any is read.

    Raises:
        UsageError: it cannot be read, was changed since it was written, or is of another model.
    """
    file = Path(path)
    with readable(file, "a checkpoint", _ANEW), opened_arrays(file) as archive:
        header = archive.headers.get(_ABOUT)
        if header is None or header.dtype.kind != "U" or header.shape:
            raise ValueError(f"it has no text '{_ABOUT}'")
        if header.nbytes > _MOST_ABOUT:
            raise ValueError(f"its '{_ABOUT}' has {header.nbytes:,} bytes")
        told = json.loads(str(archive.read(_ABOUT)))
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise ValueError(f"its format is not '{FORMAT}'")
        if told.get("fingerprint") != wanted.fingerprint:
            raise UsageError(
                f"{file} is a checkpoint of another model: its state has other names, types or "
                "shapes",
                _OTHER,
            )
        _require_state(archive.headers, wanted.state)
        if told.pop("contents", "") != _digest(told, archive.digest(_ABOUT)):
            raise ValueError("it was changed since it was written: its digest is another")
        about = Progress(**{name: value for name, value in told.items() if name != "format"})
        _require_named(about, wanted)
        state = {name: archive.read(name) for name in wanted.state}
        _require_numbers(state, wanted.state)
    return state, about


def _require_state(headers: Mapping[str, Header], state: Mapping[str, Slot]) -> None:
    """Check that a file has the arrays of the state, those alone, and as they are written."""
    for name, slot in state.items():
        header = headers.get(name)
        if header is None:
            raise ValueError(f"it has no '{name}'")
        if (header.shape, header.dtype) != (slot.static_shape, slot.dtype) or not header.rows:
            raise ValueError(f"'{name}' is {header.words}, the step wants {slot.words}")
    other = sorted(headers.keys() - state.keys() - {_ABOUT})
    if other:
        raise ValueError(f"it has '{other[0]}', which is not state of the step")


def _require_named(about: Progress, wanted: Wanted) -> None:
    """Check the names of hyperparameters and steps."""
    unknown = sorted(about.hyperparameters.keys() - set(wanted.knobs))
    if unknown:
        raise UsageError(
            f"the checkpoint has a value for '{unknown[0]}', which is not a hyperparameter of the "
            "step",
            _OTHER,
        )
    taken = (about.data or {}).get(TURNS)
    if (taken is None) == bool(wanted.turns) or set(taken or ()) != set(wanted.turns):
        raise ValueError("it is not of the same steps, trained in turns")


def _require_numbers(state: Mapping[str, Array], slots: Mapping[str, Slot]) -> None:
    """Refuse parameters that no step can go on with. Infinite ones may be meant: masks are."""
    for name, slot in slots.items():
        if slot.role is Role.PARAMETER and np.isnan(state[name]).any():
            raise ValueError(f"'{name}' holds nan; go on from an earlier checkpoint")
