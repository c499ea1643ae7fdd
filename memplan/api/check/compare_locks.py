"""A lock entry against the model of today: pure values, nothing is read or printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from memplan.api.check.current import Current, Family, family_of
from memplan.api.check.lock import Binding, LockEntry, TopTensors

_RESIDENT = frozenset({"weights", "inputs", "optimizer_state", "constants"})
_Key = tuple[str, str, int]


class Status(StrEnum):
    """How a model stands; the words are part of the JSON contract."""

    OK = "ok"
    REGRESSED = "regressed"
    IMPROVED = "improved"
    MISSING = "missing"
    ORPHAN = "orphan"
    ACCOUNTING = "accounting-changed"


FAILING = frozenset({Status.REGRESSED, Status.MISSING, Status.ORPHAN})


@dataclass(frozen=True, slots=True)
class ClassDelta:
    """Bytes of one tensor class at the peak, locked and now."""

    name: str
    locked_bytes: int
    now_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Now less locked."""
        return self.now_bytes - self.locked_bytes


@dataclass(frozen=True, slots=True)
class FamilyDelta:
    """``count`` tensors of ``family`` that the lock does not have at the peak.

    ``exact`` is False where some of them may have been there, but too small to be in the lock's
    list. ``grew_from_bytes``: the size that each of them had in the lock, None for new ones.
    """

    family: Family
    count: int
    exact: bool
    grew_from_bytes: int | None


@dataclass(frozen=True, slots=True)
class LockDiff:
    """What changed in an entry: names of fields, and classes and families in detail."""

    fields: tuple[str, ...]
    classes: tuple[ClassDelta, ...]
    families: tuple[FamilyDelta, ...]


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """The result for one model.

    ``path`` is its path in the lock, ``file`` the same file as seen from the current folder,
    ``line`` the lock's line of its table (0: none). ``locked`` is None for an orphan, ``now`` for
    a missing model and for an orphan whose dimensions (``unbound``) nobody gave. ``asked`` is how
    an orphan was to be looked at.
    """

    path: str
    file: Path
    status: Status
    locked: LockEntry | None = None
    now: Current | None = None
    line: int = 0
    max_peak_bytes: int | None = None
    unbound: tuple[str, ...] = ()
    asked: Binding | None = None

    @property
    def locked_peak_bytes(self) -> int | None:
        """The peak in the lock."""
        return self.locked.peak_bytes if self.locked else None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of today."""
        return self.now.entry.peak_bytes if self.now else None

    @property
    def delta_bytes(self) -> int | None:
        """Now less locked, where there are both."""
        if self.locked is None or self.now is None:
            return None
        return self.now.entry.peak_bytes - self.locked.peak_bytes

    @property
    def limit_bytes(self) -> int | None:
        """The largest peak that passes: the lock's limit or the cap for all, the lower one."""
        limits = [self.max_peak_bytes] if self.max_peak_bytes is not None else []
        if self.locked is not None and not self.accounting_changed:
            limits.append(self.locked.limit_bytes)
        return min(limits, default=None)

    @property
    def accounting_changed(self) -> bool:
        """The lock was made with another memory model, or with another runtime where figures rest
        on that, so that its peak cannot be compared."""
        if self.locked is None or self.now is None:
            return False
        return _accounting_changed(self.locked, self.now.entry)

    @property
    def over_max_peak(self) -> bool:
        """The peak is above the cap for all models."""
        peak, cap = self.peak_bytes, self.max_peak_bytes
        return peak is not None and cap is not None and peak > cap

    @property
    def failed(self) -> bool:
        """Whether this entry makes the command exit 1."""
        return self.status in FAILING


def compare(
    locked: LockEntry, now: Current, file: Path, line: int = 0, max_peak_bytes: int | None = None
) -> CheckEntry:
    """The result for a model that is in the lock and could be analyzed."""
    return CheckEntry(
        path=locked.path,
        file=file,
        status=_status(locked, now.entry, max_peak_bytes),
        locked=locked,
        now=now,
        line=line,
        max_peak_bytes=max_peak_bytes,
    )


def _status(locked: LockEntry, now: LockEntry, max_peak_bytes: int | None) -> Status:
    if max_peak_bytes is not None and now.peak_bytes > max_peak_bytes:
        return Status.REGRESSED
    if _accounting_changed(locked, now):
        return Status.ACCOUNTING
    if now.peak_bytes > locked.limit_bytes:
        return Status.REGRESSED
    return Status.IMPROVED if now.peak_bytes < locked.peak_bytes else Status.OK


def _accounting_changed(locked: LockEntry, now: LockEntry) -> bool:
    if locked.accounting != now.accounting:
        return True
    # Equal peaks need no explanation, whatever they rest on.
    return locked.rests_on != now.rests_on and locked.peak_bytes != now.peak_bytes


def _runtimes(locked: LockEntry, now: LockEntry) -> tuple[str | None, str | None]:
    """Both runtimes; the same twice where one of them is not known."""
    known = locked.runtime is not None and now.runtime is not None
    return (locked.runtime, now.runtime) if known else (None, None)


def diff(locked: LockEntry, now: Current) -> LockDiff:
    """What changed, beyond the peak."""
    new = now.entry
    pairs = (
        ("fingerprint", locked.fingerprint, new.fingerprint),
        ("accounting", locked.accounting, new.accounting),
        ("session", locked.session, new.session),
        ("provider", locked.provider, new.provider),
        ("dims", locked.dims, new.dims),
        ("peak_bytes", locked.peak_bytes, new.peak_bytes),
        (
            "peak_with_workspace_bytes",
            locked.peak_with_workspace_bytes,
            new.peak_with_workspace_bytes,
        ),
        ("peak_node", locked.peak_node, new.peak_node),
        ("classes", locked.classes, new.classes),
        ("top", locked.top, new.top),
        ("runtime", *_runtimes(locked, new)),
        ("as_loaded", locked.as_loaded, new.as_loaded),
    )
    names = dict.fromkeys((*new.classes, *locked.classes))
    return LockDiff(
        fields=tuple(name for name, before, after in pairs if before != after),
        classes=tuple(
            ClassDelta(name, locked.classes.get(name, 0), new.classes.get(name, 0))
            for name in names
        ),
        families=_new_families(locked, now),
    )


def _new_families(locked: LockEntry, now: Current) -> tuple[FamilyDelta, ...]:
    """Families with more tensors at the peak than in the lock, most added bytes first."""
    had: Counter[_Key] = Counter()
    for tensors in locked.top:
        had[_key(tensors)] += tensors.count
    has = Counter({_key(family.tensors): family.tensors.count for family in now.families})
    unlisted = _largest_unlisted(locked)
    found = []
    for family in now.families:
        key = _key(family.tensors)
        more = family.tensors.count - had[key]
        if more <= 0 or (key not in had and family.tensors.total_bytes <= unlisted):
            continue
        exact = key in had or not unlisted
        found.append(FamilyDelta(family, more, exact, _grew_from(key, had, has)))
    return tuple(sorted(found, key=lambda d: -d.count * d.family.tensors.nbytes))


def _key(tensors: TopTensors) -> _Key:
    return family_of(tensors.name), tensors.tensor_class, tensors.nbytes


def _largest_unlisted(locked: LockEntry) -> int:
    """Bound on the bytes of a family that was at the locked peak, but is not in the lock's list."""
    computed = sum(nbytes for name, nbytes in locked.classes.items() if name not in _RESIDENT)
    listed = [tensors.total_bytes for tensors in locked.top]
    if sum(listed) >= computed:
        return 0
    return min([*listed, computed - sum(listed)])


def _grew_from(key: _Key, had: Counter[_Key], has: Counter[_Key]) -> int | None:
    """The size that a family had before, if that size is gone or rarer now."""
    family, tensor_class, nbytes = key
    smaller = [
        size
        for (name, kind, size), count in had.items()
        if (name, kind) == (family, tensor_class)
        and size < nbytes
        and has[name, kind, size] < count
    ]
    return max(smaller, default=None)
