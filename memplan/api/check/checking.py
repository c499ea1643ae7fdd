"""The two runs of ``check``: compare models with a lock, or bring the lock up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from memplan.api.check.base import BaseCommit, BaseModels, BaseProblem, opened_base
from memplan.api.check.compare_locks import CheckEntry, Status, compare, diff
from memplan.api.check.current import Current, UnboundDimsError, measure
from memplan.api.check.hints import accept_command
from memplan.api.check.lock import Binding, Lock, LockEntry, read_lock
from memplan.api.check.lock_writer import lock_text, write_lock
from memplan.api.check.targets import (
    CheckRequest,
    Target,
    lock_to_read,
    rebound,
    refuse_other_binding,
    targets,
)
from memplan.errors import LockError, MemplanError, ModelError, UsageError
from memplan.processes.locks import updating
from memplan.proto.write import check_output, followed
from memplan.units import printable

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A model that could not be analyzed, by its path in the lock, and why."""

    path: str
    error: MemplanError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What ``check`` found: one entry per model, sorted by path. ``base`` is the commit that was
    compared with, ``has_lock`` whether there is a lock."""

    lock: Path
    entries: tuple[CheckEntry, ...]
    failures: tuple[Unreadable, ...]
    base: BaseCommit | None = None
    has_lock: bool = True

    @property
    def against(self) -> str:
        """What the base is, to stand behind a figure."""
        if self.base is None:
            return ""
        return f"at the merge-base with {printable(self.base.ref)}, {self.base.short}"

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


def run_check(request: CheckRequest, progress: Progress | None = None) -> CheckResult:
    """Compare the models of ``request`` with its lock, its base or both. Nothing is run and nothing
    is written.

    Raises:
        LockError: the lock is missing, broken or empty.
        UsageError: an option disagrees with what the lock recorded; the base is no commit.
        RuntimeUnavailableError: git, or the history that tells the base, is not there.
    """
    with ExitStack() as stack:
        base = None
        if request.base is not None:
            opened = opened_base(request.base, request.lock, request.models)
            base = stack.enter_context(opened)
        lock = lock_to_read(request, base)
        chosen = targets(request, lock, base)
        for target in chosen:
            refuse_other_binding(request, target)
        if base is not None:
            base.look_at(target.file for target in chosen)
        run = _Run(request, progress, base=base)
        entries = [replace(entry, strict=request.strict) for entry in run.over(chosen)]
        commit = base.commit if base is not None else None
    return CheckResult(
        request.lock, tuple(entries), tuple(run.failures), commit, bool(lock.text or base is None)
    )


def run_update(request: CheckRequest, progress: Progress | None = None) -> UpdateResult:
    """Record the models of ``request`` in its lock, all of them or none.

    Raises:
        LockError: the lock is broken, or there is none and no model was named.
        UsageError: the lock cannot be written, or a dimension is unknown.
        ModelError: not one file of the lock is there.
    """
    lock = _lock_to_update(request)
    check_output(request.lock, force=True)
    chosen = targets(request, lock)
    if not request.models and not any(os.path.exists(target.file) for target in chosen):
        raise ModelError(
            f"none of the models in {request.lock} exists",
            "make them first; a model named on the command line is removed from the lock",
        )
    run = _Run(request, progress, rebind=True)
    entries = run.over(chosen)
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


class _Run:
    """One pass over the models; what cannot be read is kept for the end."""

    def __init__(
        self,
        request: CheckRequest,
        progress: Progress | None,
        *,
        rebind: bool = False,
        base: BaseModels | None = None,
    ) -> None:
        self.request = request
        self.base = base
        self.progress = progress
        self.rebind = rebind
        self.failures: list[Unreadable] = []
        self.known_dims: set[str] = set()

    def over(self, chosen: Sequence[Target]) -> list[CheckEntry]:
        """The entries of all models that could be read.

        Raises:
            UsageError: no model has a dimension that was bound.
        """
        entries = []
        for index, target in enumerate(chosen):
            if self.progress is not None:
                self.progress(index, len(chosen), printable(target.path))
            try:
                entries.append(self._entry(target))
            except UnboundDimsError as error:
                # An entry of the lock keeps its binding, so that only the new size is to be given.
                given = self._new_binding(target) if target.locked is None else None
                command = accept_command(self.request.lock, target.file, given, error.names)
                if self.base is not None and target.locked is None:
                    command = f"--dim {printable(error.names[0])}=..."
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

    def _entry(self, target: Target) -> CheckEntry:
        locked, cap = target.locked, self.request.max_peak_bytes
        if locked is None:
            return self._orphan(target) if self.base is None else self._with_base(target, self.base)
        self.known_dims |= set(locked.dims)
        if not os.path.exists(target.file):
            return CheckEntry(
                target.path, target.file, Status.MISSING, locked, None, target.line, cap
            )
        now = self._measure(target, self._binding(locked), locked.tolerance)
        base, problem = None, ""
        if self.base is not None:
            try:
                base = self._at_base(self.base, target, locked.binding, now)
            except BaseProblem as error:  # the lock decides, and the report says what is missing
                problem = error.problem
        entry = compare(locked, now, target.file, target.line, cap, base)
        return replace(entry, base_problem=problem)

    def _with_base(self, target: Target, models: BaseModels) -> CheckEntry:
        """The result for a model that is not in the lock: the base decides."""
        asked, now = self._new_binding(target), None
        if os.path.exists(target.file) or not models.has(target.file):
            now = self._measure(target, asked)
        try:
            base = self._at_base(models, target, asked, now)
        except BaseProblem as error:
            if now is None:  # what it needed once decides nothing
                return CheckEntry(target.path, target.file, Status.REMOVED)
            place = f"{printable(target.path)} at the base, {models.commit.short}"
            raise ModelError(f"{place}: {error.problem}", error.hint) from None
        if now is None:
            return CheckEntry(target.path, target.file, Status.REMOVED, base=base)
        entry = compare(None, now, target.file, 0, self.request.max_peak_bytes, base)
        return replace(entry, status=Status.NEW) if entry.status is Status.ORPHAN else entry

    def _at_base(
        self, models: BaseModels, target: Target, binding: Binding, now: Current | None
    ) -> Current | None:
        there = models.lock.entries.get(target.path) if models.lock is not None else None
        if there is not None and target.locked is not None:
            binding = replace(there.binding, state=binding.state)
        return models.current(target.file, target.path, binding, now)

    def _orphan(self, target: Target) -> CheckEntry:
        now, unbound, asked = None, tuple[str, ...](), self._new_binding(target)
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

    def _new_binding(self, target: Target) -> Binding:
        """What a model is looked at with that is not in the lock: as the base's lock has it, else
        as was asked for."""
        request = self.request
        if self.base is not None and self.base.lock is not None:
            there = self.base.lock.entries.get(target.path)
            if there is not None:
                return _recorded_anew(rebound(there.binding, request))
        return Binding(
            request.dims,
            request.session or request.new_session,
            request.provider or request.new_provider,
            request.state or "",
        )

    def _binding(self, locked: LockEntry) -> Binding:
        if not self.rebind:
            return locked.binding
        wanted = _recorded_anew(rebound(locked.binding, self.request))
        # The model may have got a dimension since; `measure` drops those that it does not have.
        return replace(wanted, dims={**wanted.dims, **self.request.dims})

    def _measure(
        self, target: Target, binding: Binding, tolerance: str | int | None = None
    ) -> Current:
        try:
            now, symbolic = measure(target.file, target.path, binding, tolerance)
        except UnboundDimsError as error:
            self.known_dims |= error.symbolic
            raise
        self.known_dims |= symbolic
        return now


def _recorded_anew(binding: Binding) -> Binding:
    """A binding for a model that is not held against a lock that does not tell the state."""
    return replace(binding, state=binding.state or "")


def _naming(target: Target, message: str) -> str:
    """``message`` with the model in it: several are looked at."""
    file = printable(str(target.file))
    return message if file in message else f"{file}: {message}"


def _bug(target: Target, cause: Exception) -> MemplanError:
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
