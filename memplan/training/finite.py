"""A state that is not finite never takes the place of one that is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import TrainingError, UsageError
from memplan.proto.paths import file_problem
from memplan.runtime.archive import BFLOAT16, load_arrays

Array = npt.NDArray[Any]


def keep_finite(file: Path, state: Mapping[str, Array], steps: int, about: str) -> None:
    """Refuse to replace a checkpoint by a state with nan or infinities that it does not have.

    Args:
        file: where a checkpoint may be.
        state: what steps change, by name.
        steps: after how many of them.
        about: the member of a checkpoint that tells its number of steps.

    Raises:
        TrainingError: it would be lost.
        UsageError: whether it would be cannot be read.
    """
    wrong = {name: kinds for name, value in state.items() if (kinds := _not_finite(value))}
    if not wrong or not file.is_file():
        return
    try:
        held = load_arrays(file, lambda headers: [n for n in (about, *wrong) if n in headers])
        kept = json.loads(str(held[about]))["steps"]
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
