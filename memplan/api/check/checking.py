"""The two runs of ``check``: compare models with a lock, or bring the lock up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from memplan.api.check.base import BaseCommit, BaseModels, opened_base
from memplan.api.check.finding import Finding, Kind, Target, hold
from memplan.api.check.hints import accept_command
from memplan.api.check.lock import Lock, lock_text, write_lock
from memplan.api.check.measure import UnboundDimsError, measure
from memplan.api.check.peak import Peak
from memplan.api.check.targets import CheckRequest, lock_of, targets
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.processes.locks import updating
from memplan.proto.paths import on_disk
from memplan.proto.write import check_output, followed
from memplan.units import printable

Progress = Callable[[int, int, str], None]
Guard = Callable[[Iterable[Path]], None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What ``check`` found: one finding per model, sorted by path. ``base`` is the commit that was
    compared with, ``has_lock`` whether there is a lock.

    ``updated`` is None for a comparison; False: ``--update`` left the lock as it was, because a
    model could not be read or is above the cap.
    """

    lock: Path
    findings: tuple[Finding, ...]
    base: BaseCommit | None = None
    has_lock: bool = True
    updated: bool | None = None

    @property
    def entries(self) -> list[Finding]:
        """The models that could be analyzed."""
        return [finding for finding in self.findings if finding.error is None]

    @property
    def errors(self) -> dict[str, MemplanError]:
        """Why others could not be, by path."""
        return {each.path: each.error for each in self.findings if each.error is not None}

    @property
    def failed(self) -> bool:
        """Whether the command exits 1."""
        if self.updated is not None:
            return any(finding.over_cap_bytes for finding in self.findings)
        return any(finding.failed for finding in self.findings)


def run_check(
    request: CheckRequest, progress: Progress | None = None, guard: Guard | None = None
) -> CheckResult:
    """Compare the models of ``request`` with its lock, its base or both. Nothing is run and nothing
    is written.

    Args:
        request: what was asked.
        progress: told of every model: its number from 0, how many there are, its path.
        guard: given the files that no result may be written over, before any model is read.

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
        lock = lock_of(request, base)
        _guard(guard, request, lock)
        chosen = targets(request, lock, base)
        if base is not None:
            base.look_at(target.file for target in chosen)
        findings = _Run(request, base=base).over(chosen, progress)
        commit = base.commit if base is not None else None
    return CheckResult(request.lock, tuple(findings), commit, bool(lock.text or base is None))


def run_update(
    request: CheckRequest, progress: Progress | None = None, guard: Guard | None = None
) -> CheckResult:
    """Record the models of ``request`` in its lock, all of them or none; the arguments are those of
    :func:`run_check`.

    Raises:
        LockError: the lock is broken, or there is none and no model was named.
        UsageError: the lock cannot be written, or a dimension is unknown.
        ModelError: not one file of the lock is there.
    """
    lock = lock_of(request, update=True)
    _guard(guard, request, lock)
    check_output(request.lock, force=True)
    chosen = targets(request, lock, update=True)
    if not request.models and not any(os.path.exists(on_disk(target.file)) for target in chosen):
        raise ModelError(
            f"none of the models in {request.lock} exists",
            "make them first; a model named on the command line is removed from the lock",
        )
    findings = _Run(request, update=True).over(chosen, progress)
    accepted = not any(each.error is not None or each.over_cap_bytes for each in findings)
    if accepted:
        _write(request, findings)
        # Nothing is left to complain about.
        findings = [f if f.now is None else replace(f, kind=Kind.OK) for f in findings]
    return CheckResult(request.lock, tuple(findings), updated=accepted)


def _guard(guard: Guard | None, request: CheckRequest, lock: Lock) -> None:
    if guard is not None:
        guard((*request.models, *(lock.path.parent / path for path in lock.entries)))


@dataclass(slots=True)
class _Run:
    """One pass over the models; what cannot be read is a finding like others."""

    request: CheckRequest
    update: bool = False
    base: BaseModels | None = None

    def over(self, chosen: Sequence[Target], progress: Progress | None) -> list[Finding]:
        """The findings of all models.

        Raises:
            UsageError: no model has a dimension that was bound.
        """
        findings, known = [], set[str]()
        for index, target in enumerate(chosen):
            if progress is not None:
                progress(index, len(chosen), printable(target.path))
            try:
                findings.append(self._finding(target, known))
            except Exception as error:  # a bug met in one model must not hide another's regression
                told = self._told(target, error)
                findings.append(Finding(target.path, target.file, Kind.UNREADABLE, error=told))
        unknown = sorted(set(self.request.dims) - known)
        if unknown and not any(finding.error for finding in findings):
            raise UsageError(
                f"--dim {unknown[0]}: no model has a dimension of that name",
                "symbolic dimensions of these models: "
                + printable(", ".join(sorted(known)) or "none"),
            )
        return findings

    def _told(self, target: Target, error: Exception) -> MemplanError:
        """The error of one model among several, with the model in it."""
        file = printable(str(target.file))
        if not isinstance(error, MemplanError):
            message = printable(f"{target.file}: {type(error).__name__}: {error}")
            bug = MemplanError(message, "this is a bug in memplan; -vv shows where")
            bug.__cause__ = error
            return bug
        message = printable(error.message)
        error.message = message if file in message else f"{file}: {message}"
        if isinstance(error, UnboundDimsError):
            # An entry of the lock keeps its binding, so that only the new size is to be given.
            binding = target.binding if target.locked is None else None
            command = accept_command(self.request.lock, target.file, binding, error.names)
            if self.base is not None and target.locked is None:
                command = f"--dim {printable(error.names[0])}=..."
            error.hint = f"give it one: {command}"
        return error

    def _finding(self, target: Target, known: set[str]) -> Finding:
        """What is found of one model; ``known`` gets the names of its dimensions."""
        request, locked = self.request, target.locked
        plain = Finding(target.path, target.file, Kind.MISSING, cap_bytes=request.max_peak_bytes)
        if locked is not None:
            known.update(locked.dims)
        if not os.path.exists(on_disk(target.file)):
            if locked is not None:
                return replace(
                    plain,
                    source=target.place,
                    accept=accept_command(target.lock, target.file),
                    locked=locked,
                    against=locked,
                )
            if self.base is not None and self.base.has(target.file):
                return self._removed(target, self.base, plain)
        try:
            tolerance = locked.tolerance if locked is not None else None
            now, symbolic = measure(target.file, target.path, target.binding, tolerance)
        except UnboundDimsError as error:
            known.update(error.symbolic)
            if locked is not None or self.base is not None or self.update:
                raise
            accept = accept_command(target.lock, target.file, target.binding, error.names)
            return replace(plain, kind=Kind.ORPHAN, source=target.place, accept=accept)
        known.update(symbolic)
        base, base_at, problem = None, "", ""
        if self.base is not None:
            base_at = self.base.commit.place
            try:
                base = _at_base(self.base, target, now)
            except MemplanError as error:
                if locked is None:
                    place = f"{printable(target.path)} at the base, {self.base.commit.short}"
                    error.message = f"{place}: {error.message}"
                    raise
                problem = error.message  # the lock decides, and the report says what is missing
        return hold(
            target,
            now,
            base,
            base_at=base_at,
            base_problem=problem,
            cap_bytes=request.max_peak_bytes,
            strict=request.strict,
        )

    def _removed(self, target: Target, models: BaseModels, plain: Finding) -> Finding:
        try:
            base = _at_base(models, target, None)
        except MemplanError:  # what it needed once decides nothing
            base = None
        source = models.commit.place
        return replace(plain, kind=Kind.REMOVED, source=source, base=base, against=base)


def _at_base(models: BaseModels, target: Target, now: Peak | None) -> Peak | None:
    """What the model needs at the base, with the sizes that its lock has there."""
    there = models.lock.entries.get(target.path) if models.lock is not None else None
    binding = target.binding
    if there is not None and target.locked is not None:
        binding = replace(there.binding, state=binding.state)
    return models.current(target.file, target.path, binding, now)


def _write(request: CheckRequest, findings: Iterable[Finding]) -> None:
    """Put ``findings`` into the lock as it is now: others may have updated it meanwhile."""
    with updating(followed(request.lock)):
        lock = lock_of(request, update=True)
        kept = dict(lock.entries)
        for finding in findings:
            if finding.now is None:
                kept.pop(finding.path, None)
            else:
                kept[finding.path] = finding.now
        # An unchanged lock is not touched, so that build tools see no new file.
        if lock_text(kept.values()) != lock.text:
            write_lock(lock.path, kept.values())
