"""Which models a check looks at, and how: those that are named, or those of the lock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from memplan.api.check.base import BaseModels
from memplan.api.check.finding import Target
from memplan.api.check.hints import DEFAULTS, accept_command, key_of, seen_from_here
from memplan.api.check.lock import Lock, read_lock
from memplan.api.check.peak import Binding
from memplan.errors import LockError, UsageError
from memplan.units import printable


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the user asked for.

    ``models`` are files; empty: all of the lock. ``session``, ``provider`` and ``state``
    (``apart``, or empty: as the models are run) are None where the lock's are to be used, and the
    defaults for a model that is in no lock. ``max_peak_bytes`` is the cap for all models. ``base``
    is a commit to compare with, too; ``strict``: a lock that allows more than is needed fails.
    """

    lock: Path
    models: tuple[Path, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    session: str | None = None
    provider: str | None = None
    state: str | None = None
    max_peak_bytes: int | None = None
    base: str | None = None
    strict: bool = False


def lock_of(request: CheckRequest, base: BaseModels | None = None, *, update: bool = False) -> Lock:
    """The lock; an empty one where it is still to be made, or a base takes its place.

    Raises:
        LockError: it is broken, or there is none and nothing says which models to look at.
    """
    if os.path.lexists(request.lock) or not (request.models if update else base):
        return read_lock(request.lock)
    if base is not None and not request.models and base.lock is None:
        raise LockError(
            f"lock {request.lock} does not exist, here or at the base",
            f"name the models: memplan check --base {base.commit.ref} MODEL...",
        )
    return Lock(request.lock, {})


def targets(
    request: CheckRequest, lock: Lock, base: BaseModels | None = None, *, update: bool = False
) -> list[Target]:
    """The models to look at, by path.

    Raises:
        LockError: no model is named, and the lock holds none.
        UsageError: a locked model was asked for with another binding than is recorded, which its
            peak says nothing about; with ``update`` it is recorded anew.
    """
    files = {key_of(file, lock.path): seen_from_here(file) for file in request.models}
    there = base.lock.entries if base is not None and base.lock is not None else {}
    if not request.models:
        paths = {**lock.entries, **there}
        if not paths:
            raise LockError(
                f"lock {lock.path} holds no models",
                "record some: memplan check --update MODEL...",
            )
        files = {path: seen_from_here(lock.path.parent / path) for path in paths}
    found = []
    for path, file in sorted(files.items()):
        locked, recorded = lock.entries.get(path), lock.entries.get(path) or there.get(path)
        binding = _asked(request, recorded.binding if recorded else None)
        target = Target(path, file, lock.path, locked, binding)
        if locked is not None and not update:
            _refuse_other_binding(request, target, locked.binding)
            target = replace(target, binding=locked.binding)
        found.append(target)
    return found


def _asked(request: CheckRequest, recorded: Binding | None) -> Binding:
    """How a model is looked at that is recorded anew, or in no lock but the base's."""
    wanted = _rebound(recorded or DEFAULTS, request)
    # The model may have got a dimension since; those that it does not have are left out later.
    return replace(wanted, dims={**wanted.dims, **request.dims})


def _refuse_other_binding(request: CheckRequest, target: Target, locked: Binding) -> None:
    wanted = _rebound(locked, request)
    if wanted != locked:
        raise UsageError(
            f"{printable(target.path)} is locked with {_words(locked)}, not with {_words(wanted)}",
            "leave the option out, or record the model with it: "
            + accept_command(request.lock, target.file, wanted, locked=locked),
        )


def _words(binding: Binding) -> str:
    dims = "".join(f"{name}={size}, " for name, size in sorted(binding.dims.items()))
    state = f", state {binding.state}" if binding.state else ""
    return f"{printable(dims)}{binding.session} session, {binding.provider}{state}"


def _rebound(recorded: Binding, request: CheckRequest) -> Binding:
    """A recorded binding with what the command line names."""
    return Binding(
        # A size for a dimension that this model does not have is meant for another model.
        {name: request.dims.get(name, size) for name, size in recorded.dims.items()},
        request.session or recorded.session,
        request.provider or recorded.provider,
        recorded.state if request.state is None else request.state,
    )
