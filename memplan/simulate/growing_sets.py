"""Sets that grow along a graph: every node's set is that of the nodes before it, and a little more.

Sets are nodes of one tree. A set is its parent and one more element, so that a chain of n sets of
up to n elements takes linear memory, and a set that serves many nodes is there once. Ancestors are
found in logarithmic time by jump pointers (Myers, "An applicative random-access stack", 1983).
"""

from __future__ import annotations

from collections.abc import Iterator

EMPTY = 0
"""The empty set."""


class GrowingSets:
    """Sets of integers with weights, by number; a set is never changed once it is made."""

    def __init__(self) -> None:
        self.weight = [0]
        """Sum of the weights of each set's elements."""
        self._parent, self._jump, self._depth = [EMPTY], [EMPTY], [0]
        self._element = [-1]
        self._made: dict[tuple[int, int], int] = {}
        self._places: dict[int, list[int]] = {}

    def add(self, old: int, element: int, weight: int) -> int:
        """The set of ``old`` and ``element``. An element's weight is the same everywhere."""
        if (old, element) in self._made:
            return self._made[old, element]
        if self.contains(old, element):
            return old
        new, jump = len(self._parent), self._jump[old]
        level = (
            self._depth[old] - self._depth[jump]
            == self._depth[jump] - self._depth[self._jump[jump]]
        )
        self._parent.append(old)
        self._jump.append(self._jump[jump] if level and old != EMPTY else old)
        self._depth.append(self._depth[old] + 1)
        self._element.append(element)
        self.weight.append(self.weight[old] + weight)
        self._made[old, element] = new
        self._places.setdefault(element, []).append(new)
        return new

    def union(self, one: int, other: int) -> int:
        """The set of all elements of both."""
        if self._depth[one] < self._depth[other]:
            one, other = other, one
        missing = []
        while not self._is_below(one, other):  # else all of it is in ``one``
            missing.append(other)
            other = self._parent[other]
        for place in reversed(missing):
            weight = self.weight[place] - self.weight[self._parent[place]]
            one = self.add(one, self._element[place], weight)
        return one

    def contains(self, whole: int, element: int) -> bool:
        """Whether ``element`` is in the set."""
        return any(self._is_below(whole, place) for place in self._places.get(element, ()))

    def elements(self, whole: int) -> Iterator[int]:
        """All elements, the latest first."""
        while whole != EMPTY:
            yield self._element[whole]
            whole = self._parent[whole]

    def _is_below(self, lower: int, upper: int) -> bool:
        """Whether ``upper`` is ``lower`` or an ancestor of it."""
        depth = self._depth[upper]
        while self._depth[lower] > depth:
            jump = self._jump[lower]
            lower = jump if self._depth[jump] >= depth else self._parent[lower]
        return lower == upper
