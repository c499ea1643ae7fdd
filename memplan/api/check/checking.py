"""The two runs of ``check``: compare models with a lock, or bring the lock up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from memplan.api.check.compare_locks import CheckEntry, Status, compare, diff
from memplan.api.check.current import Current, UnboundDimsError, measure
from memplan.api.check.hints import accept_command, key_of, seen_from_here
from memplan.api.check.lock import Binding, Lock, LockEntry, read_lock
from memplan.api.check.lock_writer import lock_text, write_lock
from memplan.errors import LockError, MemplanError, ModelError, UsageError
from memplan.processes.locks import updating
from memplan.proto.write import check_output, followed
from memplan.units import printable

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the user asked for.

    ``models`` are files; empty: all of the lock. ``session`` and ``provider`` are None where the
    lock's are to be used; models that are not in the lock then get ``new_session`` and
    ``new_provider``. ``max_peak_bytes`` is the cap for all models.
    """

    lock: Path
    models: tuple[Path, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    session: str | None = None
    provider: str | None = None
    new_session: str = "tuned"
    new_provider: str = "cpu"
    max_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A model that could not be analyzed, by its path in the lock, and why."""

    path: str
    error: MemplanError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What ``check`` found: one entry per model, sorted by path."""

    lock: Path
    entries: tuple[CheckEntry, ...]
    failures: tuple[Unreadable, ...]

    @property
    def failed(self) -> bool:
        """Whether the command exits 1."""
        return any(entry.failed for entry in self.entries)


class Change(StrEnum):
    """What ``--update`` did to an entry."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What ``check --update`` did.

    ``accepted`` is False when the lock was left as it was, because of ``failures`` or because a
    model is above the cap; ``changes`` are then those that would have been made.
    """

    lock: Path
    entries: tuple[CheckEntry, ...]
    changes: tuple[Change, ...]
    failures: tuple[Unreadable, ...]
    accepted: bool

    @property
    def failed(self) -> bool:
        """Whether the command exits 1."""
        return any(entry.over_max_peak for entry in self.entries)


@dataclass(frozen=True, slots=True)
class _Target:
    path: str
    file: Path
    locked: LockEntry | None
    line: int


def run_check(request: CheckRequest, progress: Progress | None = None) -> CheckResult:
    """Compare the models of ``request`` with its lock. Nothing is run and nothing is written.

    Raises:
        LockError: the lock is missing, broken or empty.
        UsageError: an option disagrees with what the lock recorded.
    """
    lock = read_lock(request.lock)
    targets = _targets(request, lock)
    for target in targets:
        _refuse_other_binding(request, target)
    run = _Run(request, progress)
    entries = run.over(targets)
    return CheckResult(request.lock, tuple(entries), tuple(run.failures))


def run_update(request: CheckRequest, progress: Progress | None = None) -> UpdateResult:
    """Record the models of ``request`` in its lock, all of them or none.

    Raises:
        LockError: the lock is broken, or there is none and no model was named.
        UsageError: the lock cannot be written, or a dimension is unknown.
        ModelError: not one file of the lock is there.
    """
    lock = _lock_to_update(request)
    check_output(request.lock, force=True)
    targets = _targets(request, lock)
    if not request.models and not any(os.path.exists(target.file) for target in targets):
        raise ModelError(
            f"none of the models in {request.lock} exists",
            "make them first; a model named on the command line is removed from the lock",
        )
    run = _Run(request, progress, rebind=True)
    entries = run.over(targets)
    changes = tuple(_change(entry) for entry in entries)
    accepted = not run.failures and not any(entry.over_max_peak for entry in entries)
    if accepted:
        _write(request, entries)
        entries = [_accepted(entry) for entry in entries]
    return UpdateResult(request.lock, tuple(entries), changes, tuple(run.failures), accepted)


def files_read(request: CheckRequest) -> list[Path]:
    """The models that ``request`` or its lock names: what is not written over."""
    try:
        locked = [request.lock.parent / path for path in read_lock(request.lock).entries]
    except LockError:  # told when it is read in earnest
        locked = []
    return [*request.models, *locked]


def _lock_to_update(request: CheckRequest) -> Lock:
    if request.models and not os.path.lexists(request.lock):
        return Lock(request.lock, {}, {})
    return read_lock(request.lock)


def _targets(request: CheckRequest, lock: Lock) -> list[_Target]:
    """The models to look at, by path."""
    files = {key_of(file, lock.path): seen_from_here(file) for file in request.models}
    if not request.models:
        if not lock.entries:
            raise LockError(
                f"lock {lock.path} holds no models",
                "record some: memplan check --update MODEL...",
            )
        files = {path: seen_from_here(lock.path.parent / path) for path in lock.entries}
    return [
        _Target(path, files[path], lock.entries.get(path), lock.lines.get(path, 0))
        for path in sorted(files)
    ]


def _refuse_other_binding(request: CheckRequest, target: _Target) -> None:
    """A locked peak says nothing about another session, provider or batch size."""
    locked = target.locked
    if locked is None:
        return
    wanted = _rebound(locked, request)
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
    return f"{printable(dims)}{binding.session} session, {binding.provider}"


def _rebound(locked: LockEntry, request: CheckRequest) -> Binding:
    """The entry's binding with what the command line names."""
    return Binding(
        # A size for a dimension that this model does not have is meant for another model.
        {name: request.dims.get(name, size) for name, size in locked.dims.items()},
        request.session or locked.session,
        request.provider or locked.provider,
    )


class _Run:
    """One pass over the models; what cannot be read is kept for the end."""

    def __init__(
        self, request: CheckRequest, progress: Progress | None, *, rebind: bool = False
    ) -> None:
        self.request = request
        self.progress = progress
        self.rebind = rebind
        self.failures: list[Unreadable] = []
        self.known_dims: set[str] = set()

    def over(self, targets: Iterable[_Target]) -> list[CheckEntry]:
        """The entries of all models that could be read.

        Raises:
            UsageError: no model has a dimension that was bound.
        """
        targets, entries = list(targets), []
        for index, target in enumerate(targets):
            if self.progress is not None:
                self.progress(index, len(targets), printable(target.path))
            try:
                entries.append(self._entry(target))
            except UnboundDimsError as error:
                # An entry of the lock keeps its binding, so that only the new size is to be given.
                given = self._new_binding() if target.locked is None else None
                command = accept_command(self.request.lock, target.file, given, error.names)
                error.hint = f"give it one: {command}"
                self.failures.append(Unreadable(target.path, error))
            except (ModelError, UsageError) as error:
                error.message = _naming(target, printable(error.message))
                self.failures.append(Unreadable(target.path, error))
            except Exception as error:  # a bug met in one model must not hide another's regression
                self.failures.append(Unreadable(target.path, _bug(target, error)))
        unknown = sorted(set(self.request.dims) - self.known_dims)
        if unknown and not self.failures:
            known = ", ".join(sorted(self.known_dims)) or "none"
            raise UsageError(
                f"--dim {unknown[0]}: no model has a dimension of that name",
                f"symbolic dimensions of these models: {printable(known)}",
            )
        return entries

    def _entry(self, target: _Target) -> CheckEntry:
        locked, cap = target.locked, self.request.max_peak_bytes
        if locked is None:
            return self._orphan(target)
        self.known_dims |= set(locked.dims)
        if not os.path.exists(target.file):
            return CheckEntry(
                target.path, target.file, Status.MISSING, locked, None, target.line, cap
            )
        now = self._measure(target, self._binding(locked), locked.tolerance)
        return compare(locked, now, target.file, target.line, cap)

    def _orphan(self, target: _Target) -> CheckEntry:
        now, unbound, asked = None, tuple[str, ...](), self._new_binding()
        try:
            now = self._measure(target, asked)
        except UnboundDimsError as error:
            if self.rebind:
                raise
            unbound = error.names
        return CheckEntry(
            target.path,
            target.file,
            Status.ORPHAN,
            now=now,
            unbound=unbound,
            asked=asked,
            max_peak_bytes=self.request.max_peak_bytes,
        )

    def _new_binding(self) -> Binding:
        """What a model is looked at with that is not in the lock."""
        request = self.request
        return Binding(
            request.dims,
            request.session or request.new_session,
            request.provider or request.new_provider,
        )

    def _binding(self, locked: LockEntry) -> Binding:
        if not self.rebind:
            return locked.binding
        wanted = _rebound(locked, self.request)
        # The model may have got a dimension since; `measure` drops those that it does not have.
        return replace(wanted, dims={**wanted.dims, **self.request.dims})

    def _measure(
        self, target: _Target, binding: Binding, tolerance: str | int | None = None
    ) -> Current:
        try:
            now, symbolic = measure(target.file, target.path, binding, tolerance)
        except UnboundDimsError as error:
            self.known_dims |= error.symbolic
            raise
        self.known_dims |= symbolic
        return now


def _naming(target: _Target, message: str) -> str:
    """``message`` with the model in it: several are looked at."""
    file = printable(str(target.file))
    return message if file in message else f"{file}: {message}"


def _bug(target: _Target, cause: Exception) -> MemplanError:
    message = printable(f"{target.file}: {type(cause).__name__}: {cause}")
    error = MemplanError(message, "this is a bug in memplan; -vv shows where")
    error.__cause__ = cause
    return error


def _change(entry: CheckEntry) -> Change:
    if entry.now is None:
        return Change.REMOVED
    if entry.locked is None:
        return Change.ADDED
    return Change.CHANGED if diff(entry.locked, entry.now).fields else Change.UNCHANGED


def _accepted(entry: CheckEntry) -> CheckEntry:
    """The entry after the lock was written: nothing is left to complain about."""
    return entry if entry.now is None else replace(entry, status=Status.OK)


def _write(request: CheckRequest, entries: Iterable[CheckEntry]) -> None:
    """Put ``entries`` into the lock as it is now: others may have updated it meanwhile."""
    with updating(followed(request.lock)):
        lock = _lock_to_update(request)
        kept = dict(lock.entries)
        for entry in entries:
            if entry.now is None:
                kept.pop(entry.path, None)
            else:
                kept[entry.path] = entry.now.entry
        # An unchanged lock is not touched, so that build tools see no new file.
        if lock_text(kept.values()) != lock.text:
            write_lock(lock.path, kept.values())
