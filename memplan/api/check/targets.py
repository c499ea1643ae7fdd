"""Which models a check looks at, and how: those that are named, or those of the lock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memplan.api.check.base import BaseModels
from memplan.api.check.hints import accept_command, key_of, seen_from_here
from memplan.api.check.lock import Binding, Lock, LockEntry, read_lock
from memplan.errors import LockError, UsageError
from memplan.units import printable


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the user asked for.

    ``models`` are files; empty: all of the lock. ``session`` and ``provider`` are None where the
    lock's are to be used; models that are not in the lock then get ``new_session`` and
    ``new_provider``. ``state`` is ``apart``, empty (as the models are run) or None, likewise.
    ``max_peak_bytes`` is the cap for all models. ``base`` is a commit to compare with, too;
    ``strict``: a lock that allows more than is needed fails.
    """

    lock: Path
    models: tuple[Path, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    session: str | None = None
    provider: str | None = None
    state: str | None = None
    new_session: str = "tuned"
    new_provider: str = "cpu"
    max_peak_bytes: int | None = None
    base: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A model to look at: its path in the lock, its file as seen from here, its entry and the line
    of that (0: none)."""

    path: str
    file: Path
    locked: LockEntry | None
    line: int


def lock_to_read(request: CheckRequest, base: BaseModels | None) -> Lock:
    """The lock to compare with; an empty one where a base takes its place.

    Raises:
        LockError: it is broken, or there is none and nothing says which models to look at.
    """
    if base is None or os.path.lexists(request.lock):
        return read_lock(request.lock)
    if not request.models and base.lock is None:
        raise LockError(
            f"lock {request.lock} does not exist, here or at the base",
            f"name the models: memplan check --base {base.commit.ref} MODEL...",
        )
    return Lock(request.lock, {}, {})


def targets(request: CheckRequest, lock: Lock, base: BaseModels | None = None) -> list[Target]:
    """The models to look at, by path.

    Raises:
        LockError: no model is named, and the lock holds none.
    """
    files = {key_of(file, lock.path): seen_from_here(file) for file in request.models}
    if not request.models:
        there = base.lock.entries if base is not None and base.lock is not None else {}
        paths = {**lock.entries, **there}
        if not paths:
            raise LockError(
                f"lock {lock.path} holds no models",
                "record some: memplan check --update MODEL...",
            )
        files = {path: seen_from_here(lock.path.parent / path) for path in paths}
    return [
        Target(path, files[path], lock.entries.get(path), lock.lines.get(path, 0))
        for path in sorted(files)
    ]


def refuse_other_binding(request: CheckRequest, target: Target) -> None:
    """A locked peak says nothing about another session, provider or batch size.

    Raises:
        UsageError: one was asked for.
    """
    locked = target.locked
    if locked is None:
        return
    wanted = rebound(locked.binding, request)
    if wanted == locked.binding:
        return
    raise UsageError(
        f"{printable(target.path)} is locked with {describe(locked.binding)}, "
        f"not with {describe(wanted)}",
        "leave the option out, or record the model with it: "
        + accept_command(request.lock, target.file, wanted, locked=locked.binding),
    )


def describe(binding: Binding) -> str:
    """A binding in words."""
    dims = "".join(f"{name}={size}, " for name, size in sorted(binding.dims.items()))
    state = f", state {binding.state}" if binding.state else ""
    return f"{printable(dims)}{binding.session} session, {binding.provider}{state}"


def rebound(locked: Binding, request: CheckRequest) -> Binding:
    """A recorded binding with what the command line names."""
    return Binding(
        # A size for a dimension that this model does not have is meant for another model.
        {name: request.dims.get(name, size) for name, size in locked.dims.items()},
        request.session or locked.session,
        request.provider or locked.provider,
        locked.state if request.state is None else request.state,
    )
