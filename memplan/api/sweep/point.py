"""One question of a sweep and its answer: values that can be sent to a process and kept in a file.

A question is either what a model takes as it is (no ``plan``) or what a plan for a budget comes to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from memplan import __version__
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.sweep.request import Dims
from memplan.errors import EXIT_INFEASIBLE
from memplan.runtime.installed import installed_runtime
from memplan.units import SizeSpec


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model and the SHA-256 of its file; that is empty where the file cannot be read."""

    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Task:
    """A question. ``versions`` are those that it is to be answered with (:func:`versions`)."""

    file: ModelFile
    dims: Dims
    session: str
    provider: str
    loss: str | None
    versions: str
    plan: RewriteOptions | None = None
    state: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the answer depends on, as a hash: not on the file's name, nor on where it is."""
        parts = {
            "model": self.file.digest,
            "dims": sorted(self.dims),
            "session": self.session,
            "provider": self.provider,
            "loss": self.loss,
            "state": list(self.state) or "as the file is run",
            "versions": self.versions,
            "plan": None
            if self.plan is None
            else {f.name: _plain(getattr(self.plan, f.name)) for f in fields(self.plan)},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes as it is: bytes of a whole step, resident ones included.

    ``peak_with_workspace_bytes`` and ``floor_with_workspace_bytes`` are what budgets are held
    against. ``exact``: no assumption says that a run may take more or less. ``state_in_place``: new
    weights are counted over the old ones.
    """

    peak_bytes: int
    peak_with_workspace_bytes: int
    floor_bytes: int
    floor_with_workspace_bytes: int
    exact: bool
    assumptions: tuple[str, ...] = ()
    state_in_place: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that keeps its budget: fields as in the JSON of ``rewrite``.

    ``budget_bytes`` is less the reserve.
    """

    budget_bytes: int
    predicted_peak_bytes: int
    predicted_peak_with_workspace_bytes: int
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    recomputed_nodes: int
    recomputing_loops: int
    assumptions: tuple[str, ...] = ()

    @property
    def recomputes(self) -> bool:
        """Whether anything is computed twice; else the budget is kept by what is free."""
        return bool(self.recomputed_nodes or self.recomputing_loops)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer: message, hint and exit code of an error."""

    message: str
    hint: str
    exit_code: int

    @property
    def infeasible(self) -> bool:
        """Whether that is an answer: no plan keeps the budget."""
        return self.exit_code == EXIT_INFEASIBLE


Answer = Footprint | Planned | Failure
_KINDS: dict[str, type[Any]] = {"footprint": Footprint, "planned": Planned, "failure": Failure}


def answer_json(answer: Answer) -> dict[str, object]:
    """An answer as it is kept."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(answer, kind))
    return {"kind": kind, **asdict(answer)}


def answer_from(kept: Mapping[str, object]) -> Answer:
    """The answer that was kept.

    Raises:
        ValueError: it is not one.
    """
    values = dict(kept)
    kind = _KINDS.get(str(values.pop("kind", "")))
    if kind is None or values.keys() != {f.name for f in fields(kind)}:
        raise ValueError("not an answer of this version")
    if "assumptions" in values:
        given = values["assumptions"]
        if not isinstance(given, list):
            raise ValueError("assumptions are a list")
        values["assumptions"] = tuple(map(str, given))
    for name, value in values.items():
        if name.endswith("_bytes") and type(value) is not int:
            raise ValueError(f"{name} is not a number of bytes")
    answer: Answer = kind(**values)
    return answer


def versions() -> str:
    """What figures and plans depend on beside the model: memplan, its accounting, the runtime."""
    runtime = installed_runtime() or "no onnxruntime"
    return f"memplan {__version__}, accounting {ACCOUNTING_VERSION}, {runtime}"


def _plain(value: object) -> object:
    """A value of the options as JSON has it."""
    if isinstance(value, SizeSpec):
        return [value.nbytes, str(value.fraction)]
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return str(value) if isinstance(value, Path) else value
