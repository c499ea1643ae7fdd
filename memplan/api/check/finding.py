"""What a check finds of one model: its peak held against one thing.

That is its entry in the lock, which was reviewed; the model at the base where the lock has no
entry, or none that compares; else nothing but the cap for all models. What follows from it (the
kind of finding, its limit, its causes) is settled in :func:`hold`, and every report reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from memplan.api.check.causes import Cause, causes
from memplan.api.check.differences import changed_fields, comparable
from memplan.api.check.hints import accept_command, shown
from memplan.api.check.peak import Binding, Peak
from memplan.errors import MemplanError
from memplan.units import printable


class Kind(StrEnum):
    """How a model stands, the worst first. The words are part of the JSON contract, two of them as
    the kind of a finding only (:attr:`Finding.status`)."""

    REGRESSED = "regressed"
    OVER_CAP = "over-max-peak"
    MISSING = "missing"
    ORPHAN = "orphan"
    TOO_LOOSE = "too-loose"
    UNREADABLE = "unreadable"
    ACCOUNTING = "accounting-changed"
    IMPROVED = "improved"
    NEW = "new"
    REMOVED = "removed"
    OK = "ok"


FAILING = frozenset({Kind.REGRESSED, Kind.OVER_CAP, Kind.MISSING, Kind.ORPHAN, Kind.TOO_LOOSE})
_STATUS = {Kind.OVER_CAP: Kind.REGRESSED, Kind.TOO_LOOSE: Kind.IMPROVED}
_RANK = {kind: rank for rank, kind in enumerate(Kind)} | {Kind.OVER_CAP: 0}


@dataclass(frozen=True, slots=True)
class Target:
    """A model to look at: its path in the ``lock``, its file as seen from here, its entry, and how
    it is looked at."""

    path: str
    file: Path
    lock: Path
    locked: Peak | None
    binding: Binding

    @property
    def place(self) -> str:
        """Where its entry stands, or would."""
        line = self.locked.line if self.locked is not None else 0
        return f"{shown(self.lock)}:{line}" if line else shown(self.lock)


@dataclass(frozen=True, slots=True)
class Finding:
    """A model, by its path in the lock and its ``file`` as seen from here.

    ``source`` is where what it is held against stands: in the lock, or at the base. ``accept`` is
    the command that records it. ``explained`` is what tells best why it needs more: the base,
    unless that needs as much as today; None where it does not need more. ``base_problem`` says why
    the base is not known, ``error`` why the model is not.
    """

    path: str
    file: Path
    kind: Kind
    source: str = ""
    accept: str = ""
    now: Peak | None = None
    locked: Peak | None = None
    base: Peak | None = None
    against: Peak | None = None
    explained: Peak | None = None
    causes: tuple[Cause, ...] = ()
    cap_bytes: int | None = None
    base_problem: str = ""
    error: MemplanError | None = None

    @property
    def name(self) -> str:
        """The path as it may be shown."""
        return printable(self.path)

    @property
    def line(self) -> int:
        """The line of its table in the lock; 0: it has none."""
        return self.locked.line if self.locked is not None else 0

    @property
    def status(self) -> Kind:
        """The word for it in the JSON contract."""
        return _STATUS.get(self.kind, self.kind)

    @property
    def failed(self) -> bool:
        """Whether it makes the command exit 1."""
        return self.kind in FAILING

    @property
    def limit_bytes(self) -> int | None:
        """The largest peak that passes: of what the model is held against, or the cap for all, the
        lower one."""
        limits = (self.cap_bytes, self.against.limit_bytes if self.against else None)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def over_cap_bytes(self) -> int:
        """By how much the peak is above the cap for all models."""
        if self.now is None or self.cap_bytes is None:
            return 0
        return max(0, self.now.peak_bytes - self.cap_bytes)

    @property
    def change_bytes(self) -> int:
        """Today's peak less that of what the model is held against; where that is the same, less
        that of the base."""
        peaks = [peak.peak_bytes for peak in (self.against, self.base) if peak is not None]
        changes = [self.now.peak_bytes - before for before in peaks] if self.now else []
        return next(filter(None, changes), 0)


def hold(
    target: Target,
    now: Peak,
    base: Peak | None = None,
    *,
    base_at: str = "",
    base_problem: str = "",
    cap_bytes: int | None = None,
    strict: bool = False,
) -> Finding:
    """What is found of a model that could be analyzed.

    Args:
        target: the model, with its entry in the lock.
        now: the model today.
        base: the model at the base.
        base_at: what the base is; empty where there is none.
        base_problem: why the base is not known.
        cap_bytes: the cap for all models.
        strict: a lock that allows more than is needed fails.
    """
    locked = target.locked
    kept = locked is not None and comparable(locked, now)
    against = locked if kept else base
    if base is not None and locked is not None and not kept:
        against = replace(base, tolerance=locked.tolerance)
    explained = base if base is not None and now.peak_bytes > base.peak_bytes else against
    if explained is not None and now.peak_bytes <= explained.peak_bytes:
        explained = None
    if against is not None and now.peak_bytes > against.limit_bytes:
        kind = Kind.REGRESSED
    elif locked is None and not base_at:
        kind = Kind.ORPHAN
    elif cap_bytes is not None and now.peak_bytes > cap_bytes:
        kind = Kind.OVER_CAP
    elif locked is not None and not kept:
        kind = Kind.ACCOUNTING
    elif against is None:
        kind = Kind.NEW
    elif now.peak_bytes < against.peak_bytes:
        kind = Kind.TOO_LOOSE if strict and kept else Kind.IMPROVED
    else:
        kind = Kind.OK
    return Finding(
        path=target.path,
        file=target.file,
        kind=kind,
        source=base_at if base_at and not kept else target.place,
        accept=accept_command(target.lock, target.file, None if locked else now.binding),
        now=now,
        locked=locked,
        base=base,
        against=against,
        explained=explained,
        causes=causes(explained, now) if explained is not None else (),
        cap_bytes=cap_bytes,
        base_problem=base_problem,
    )


class Change(StrEnum):
    """What ``--update`` does to an entry."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


def change_of(finding: Finding) -> Change:
    """What recording a finding does to the lock."""
    if finding.now is None:
        return Change.REMOVED
    if finding.locked is None:
        return Change.ADDED
    changed = changed_fields(finding.locked, finding.now)
    return Change.CHANGED if changed else Change.UNCHANGED


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """What fails before what does not, the largest change first; then by path."""
    return sorted(findings, key=_rank)


def _rank(finding: Finding) -> tuple[int, int, str]:
    change = abs(finding.change_bytes)
    if finding.failed:  # by how much it grew, or is above the cap for all
        change = max(finding.change_bytes, finding.over_cap_bytes)
    return _RANK[finding.kind], -change, finding.path
