"""Which modules are to be checkpointed, so that a framework that recomputes whole modules holds
least.

A checkpointed module keeps what goes into it, and makes all that it recomputes again at once. So a
small module keeps too much (its input was to be recomputed), and a large one makes too much. Of the
cuts through the tree of modules that come of one limit on what is made at once, that with the
fewest bytes is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memplan.report.policies.plan_calls import PlannedCall, without_number

_FEW = 4
"""Of bytes: what is a fourth of them or less does not count, such as the mean of each row."""


@dataclass(frozen=True, slots=True)
class Region:
    """A module to be checkpointed: its path, and its calls, relative to it and in their order."""

    path: str
    calls: tuple[tuple[str, PlannedCall], ...]


@dataclass(slots=True)
class _Module:
    """A module in the tree: the modules called in it, and all calls made in it, in their order."""

    path: str = ""
    depth: int = 0
    inner: dict[str, _Module] = field(default_factory=dict)
    calls: list[PlannedCall] = field(default_factory=list)
    again: int = 0


def regions(calls: Sequence[PlannedCall]) -> tuple[Region, ...]:
    """The modules to be checkpointed, in the order of their first calls."""
    root = _tree(calls)
    limits = sorted({module.again for module in _below(root)}, reverse=True)
    cuts = [cut for limit in limits if (cut := tuple(_cut(root, limit)))]
    if not cuts:
        return ()
    best = min(cuts, key=lambda cut: (_bytes(cut, root), len(cut)))
    return tuple(_region(module) for module in best)


def _tree(calls: Sequence[PlannedCall]) -> _Module:
    root = _Module()
    for call in calls:
        module = root
        again = call.beside + (0 if call.kept else call.nbytes)
        module.again += again
        module.calls.append(call)
        for depth, name in enumerate(map(without_number, call.modules), 1):
            path = f"{module.path}.{name}" if module.path else name
            module = module.inner.setdefault(name, _Module(path, depth))
            module.again += again
            module.calls.append(call)
    return root


def _below(module: _Module) -> Iterator[_Module]:
    """The modules inside of one that recompute anything."""
    for inner in module.inner.values():
        if inner.again:
            yield inner
            yield from _below(inner)


def _cut(module: _Module, limit: int) -> Iterator[_Module]:
    """The outermost modules that make no more than ``limit`` bytes again at once, but for those
    that make nothing again but their result, which is held anyhow."""
    for inner in module.inner.values():
        if 0 < inner.again <= limit or (inner.again and not any(_below(inner))):
            if _gains(inner):
                yield inner
        elif inner.again:
            yield from _cut(inner, limit)


def _gains(module: _Module) -> bool:
    """Whether checkpointing holds less: what goes out of a module is held anyhow."""
    last = module.calls[-1]
    return any(not call.kept for call in module.calls[:-1]) or last.beside * _FEW > last.nbytes


def _bytes(cut: Sequence[_Module], root: _Module) -> int:
    """What is made at once, what goes from region to region, and what no region holds."""
    most, ends = 0, 0
    for module in cut:
        most = max(most, module.again)
        ends += 0 if module.calls[-1].kept else module.calls[-1].nbytes
    return most + ends + root.again - sum(module.again for module in cut)


def _region(module: _Module) -> Region:
    found = module.calls
    # A module that is called twice is checkpointed twice, by one policy.
    several = any(name != without_number(name) for c in found for name in c.modules[: module.depth])
    calls = []
    for call in found:
        names = call.modules[module.depth :]
        inner = ".".join(map(without_number, names[:-1])) if names else ""
        last = without_number(names[-1]) if names and several else "".join(names[-1:])
        calls.append((f"{inner}.{last}" if inner else last, call))
    return Region(module.path, tuple(calls))
