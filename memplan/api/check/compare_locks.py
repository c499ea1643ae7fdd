"""A lock entry against the model of today: pure values, nothing is read or printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
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
    NEW = "new"
    REMOVED = "removed"


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
    an orphan was to be looked at. ``base`` is the model of the commit to compare with, None where
    it has none or ``base_problem`` says why it is not known. ``strict``: a lock that allows more
    than is needed fails.
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
    base: Current | None = None
    base_problem: str = ""
    strict: bool = False

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
        """The largest peak that passes: the lock's limit (without a lock that compares, the peak
        of the base) or the cap for all, the lower one."""
        before = self.before
        limits = (self.max_peak_bytes, before.limit_bytes if before else None)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def before(self) -> LockEntry | None:
        """What the model is held against: its entry in the lock, or the base."""
        now = self.now.entry if self.now else None
        return _agreed(self.locked, now, self.base)

    @property
    def explained_by(self) -> LockEntry | None:
        """What tells best what has changed: the base, unless it needs as much as today."""
        now = self.now.entry if self.now else None
        if (
            self.base is not None
            and now is not None
            and now.peak_bytes > self.base.entry.peak_bytes
        ):
            return self.base.entry
        return self.before

    @property
    def growth_bytes(self) -> int:
        """Today's peak less that of :attr:`before`; 0 where one of them is not known."""
        if self.now is None or self.before is None:
            return 0
        return self.now.entry.peak_bytes - self.before.peak_bytes

    @property
    def since_base_bytes(self) -> int:
        """Today's peak less that of the base; 0 where one of them is not known."""
        if self.now is None or self.base is None:
            return 0
        return self.now.entry.peak_bytes - self.base.entry.peak_bytes

    @property
    def too_loose(self) -> bool:
        """The lock allows more than the model needs."""
        return self.status is Status.IMPROVED and self.before is self.locked

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
        return self.status in FAILING or (self.strict and self.too_loose)


def compare(
    locked: LockEntry | None,
    now: Current,
    file: Path,
    line: int = 0,
    max_peak_bytes: int | None = None,
    base: Current | None = None,
) -> CheckEntry:
    """The result for a model that could be analyzed, and is in the lock or at the base."""
    return CheckEntry(
        path=now.entry.path,
        file=file,
        status=_status(locked, now.entry, max_peak_bytes, base),
        locked=locked,
        now=now,
        line=line,
        max_peak_bytes=max_peak_bytes,
        base=base,
    )


def _status(
    locked: LockEntry | None, now: LockEntry, max_peak_bytes: int | None, base: Current | None
) -> Status:
    if max_peak_bytes is not None and now.peak_bytes > max_peak_bytes:
        return Status.REGRESSED
    agreed = _agreed(locked, now, base)
    if agreed is not None and now.peak_bytes > agreed.limit_bytes:
        return Status.REGRESSED
    if locked is not None and _accounting_changed(locked, now):
        return Status.ACCOUNTING
    if agreed is None:
        return Status.ORPHAN
    return Status.IMPROVED if now.peak_bytes < agreed.peak_bytes else Status.OK


def _agreed(
    locked: LockEntry | None, now: LockEntry | None, base: Current | None
) -> LockEntry | None:
    """What a model is held against: the lock, which was reviewed; the base where the lock says
    nothing, or nothing that compares. The base gets the tolerance that a lock has."""
    if locked is not None and (now is None or not _accounting_changed(locked, now)):
        return locked
    if base is None:
        return None
    return base.entry if locked is None else replace(base.entry, tolerance=locked.tolerance)


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
        ("state", locked.state, locked.state if now.state_unsaid else new.state),
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
    unlisted, gone = _largest_unlisted(locked), _renamed(had, has)
    found = []
    for family in now.families:
        key = _key(family.tensors)
        more = family.tensors.count - had[key]
        if key not in had and more > 0:
            same = min(more, gone[key[1:]])
            gone[key[1:]] -= same
            more -= same
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


def _renamed(had: Counter[_Key], has: Counter[_Key]) -> Counter[tuple[str, int]]:
    """Tensors of the lock that are gone by name, by class and size: others of that class and size
    may be the same ones under names of another exporter, and explain no growth."""
    gone: Counter[tuple[str, int]] = Counter()
    for (name, kind, size), count in had.items():
        gone[kind, size] += max(0, count - has[name, kind, size])
    return gone


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
