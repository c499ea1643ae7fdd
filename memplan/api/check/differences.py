"""One peak against another: pure values, nothing is read or printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from memplan.api.check.measure import family_of
from memplan.api.check.peak import TOP_FAMILIES, Peak, TopTensors
from memplan.proto.metadata import IN_PLACE

_RESIDENT = frozenset({"weights", "inputs", "optimizer_state", "constants"})
_Key = tuple[str, str, int]
# In the order in which an update tells them.
_COMPARED = (
    "fingerprint",
    "accounting",
    "session",
    "provider",
    "state",
    "dims",
    "peak_bytes",
    "peak_with_workspace_bytes",
    "peak_node",
    "classes",
    "top",
    "runtime",
    "torch",
    "as_loaded",
)


@dataclass(frozen=True, slots=True)
class NewTensors:
    """``count`` of the ``tensors`` of a family that were not at the peak before.

    ``exact`` is False where some of them may have been there, but too small to be in the lock's
    list. ``grew_from_bytes``: the size that each of them had, None for new ones.
    """

    tensors: TopTensors
    count: int
    exact: bool = True
    grew_from_bytes: int | None = None


def changed_fields(before: Peak, now: Peak) -> tuple[str, ...]:
    """Names of the fields of a lock in which two peaks differ."""
    found = [name for name in _COMPARED if _value(before, name) != _value(now, name)]
    # A version that is not known is not another one.
    for name in ("runtime", "torch"):
        if name in found and None in (getattr(before, name), getattr(now, name)):
            found.remove(name)
    return tuple(found)


def _value(peak: Peak, name: str) -> object:
    return peak.top[:TOP_FAMILIES] if name == "top" else getattr(peak, name)


def comparable(before: Peak, now: Peak) -> bool:
    """Whether both peaks were found by one memory model and, where figures rest on that, with one
    runtime."""
    if before.accounting != now.accounting or less_in_place(before, now):
        return False
    # Equal peaks need no explanation, whatever they rest on.
    return before.rests_on == now.rests_on or before.peak_bytes == now.peak_bytes


def less_in_place(before: Peak, now: Peak) -> bool:
    """Whether a peak may be smaller only because its state lies in place: before that was so by
    itself, new weights were counted beside the old ones, and a lock did not say where."""
    return before.state is None and now.state == IN_PLACE and now.peak_bytes < before.peak_bytes


def class_changes(before: Peak, now: Peak) -> dict[str, int]:
    """By how much each tensor class is more than before, in bytes."""
    names = (*now.classes, *before.classes)
    return {name: now.classes.get(name, 0) - before.classes.get(name, 0) for name in names}


def new_tensors(before: Peak, now: Peak) -> tuple[NewTensors, ...]:
    """Families with more tensors at the peak than before, most added bytes first."""
    had: Counter[_Key] = Counter()
    for tensors in before.top:
        had[_key(tensors)] += tensors.count
    has = Counter({_key(tensors): tensors.count for tensors in now.top})
    unlisted, gone = _largest_unlisted(before), _renamed(had, has)
    found = []
    for tensors in now.top:
        key = _key(tensors)
        more = tensors.count - had[key]
        if key not in had and more > 0:
            same = min(more, gone[key[1:]])
            gone[key[1:]] -= same
            more -= same
        if more <= 0 or (key not in had and tensors.total_bytes <= unlisted):
            continue
        exact = key in had or not unlisted
        found.append(NewTensors(tensors, more, exact, _grew_from(key, had, has)))
    return tuple(sorted(found, key=lambda new: -new.count * new.tensors.nbytes))


def _key(tensors: TopTensors) -> _Key:
    return family_of(tensors.name), tensors.tensor_class, tensors.nbytes


def _largest_unlisted(locked: Peak) -> int:
    """Bound on the bytes of a family that was at the locked peak, but is not in the lock's list."""
    computed = sum(n for name, n in locked.classes.items() if name not in _RESIDENT)
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
