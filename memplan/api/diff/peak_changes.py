"""Two peaks, tensor by tensor: what appeared, grew or lives longer, to the byte.

Every buffer in memory at one of the peaks, and every resident tensor, is in at most one change;
what is in none takes the same bytes at both. So the changes sum to the difference of the peaks,
but for bytes inside the bodies of control-flow nodes, whose tensors have no names here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from memplan.api.analysis import Analysis
from memplan.ir.counterparts import Counterparts
from memplan.ir.graph import ABSENT, Graph
from memplan.ir.modules import NO_MODULE
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Live


class Change(StrEnum):
    """What became of a tensor; the words are part of the JSON contract.

    ``APART`` and ``IN_PLACE``: it has a buffer of its own now, or no longer. ``PEAK_MOVED``: it
    lives as long as before, and the peak is elsewhere. ``RECLASSED``: the same bytes in another
    class.
    """

    APPEARED = "appeared"
    GREW = "grew"
    LONGER = "lives-longer"
    APART = "no-longer-in-place"
    PEAK_MOVED = "peak-moved"
    RECLASSED = "other-class"
    IN_PLACE = "in-place-now"
    SHORTER = "lives-shorter"
    SHRANK = "shrank"
    GONE = "gone"


class How(StrEnum):
    """By what a rewrite took a tensor off the peak."""

    RECOMPUTED = "recomputed"
    REBUILT = "rebuilt"
    PACKED = "packed"
    OFFLOADED = "offloaded"
    CHUNKED = "in-chunks"


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that takes other bytes at the new peak than at the old one.

    ``name`` is its name in the new graph, in the old one if it left the peak; ``old_name`` where
    that was another. ``how`` is known of what a rewrite moved. ``held_by``: who holds it at that
    peak.
    """

    change: Change
    name: str
    tensor_class: str
    module: str
    old_bytes: int
    new_bytes: int
    held_by: str = ""
    how: How | None = None
    old_name: str | None = None

    @property
    def delta_bytes(self) -> int:
        """New less old."""
        return self.new_bytes - self.old_bytes


def peak_changes(old: Analysis, new: Analysis, found: Counterparts) -> tuple[TensorChange, ...]:
    """All changes, most bytes first."""
    comparison = _Comparison(_Peak(old, found.copies[0]), _Peak(new, found.copies[1]), found)
    changes = [*comparison.resident(), *comparison.computed()]
    return tuple(sorted(changes, key=lambda c: (-abs(c.delta_bytes), c.change, c.name)))


class _Peak:
    """An analysis as this module asks it. ``live``: buffer id → the buffer and who holds it."""

    def __init__(self, analysis: Analysis, copy_of: Mapping[int, int]) -> None:
        self.analysis, self.copy_of = analysis, copy_of
        self.graph, self.timeline = analysis.graph, analysis.timeline
        self.explainer = analysis.explainer
        at_peak = self.timeline.live_at(self.timeline.peak_step)
        self.live = {b.id: (b, who) for b, who in zip(at_peak, analysis.at_peak, strict=True)}

    def origin(self, tensor: int) -> int:
        """The tensor itself, or what it is a copy of."""
        return self.copy_of.get(tensor, tensor)

    def buffer(self, tensor: int) -> Buffer | None:
        """Where a tensor lies; None for resident ones, and for a tensor that is ABSENT."""
        place = self.timeline.allocation.buffer_of[tensor] if tensor != ABSENT else ABSENT
        return None if place == ABSENT else self.timeline.allocation.buffers[place]

    def resident(self) -> dict[int, int]:
        """Resident tensors and their bytes, with a second buffer where their state has one."""
        away = self.timeline.away
        found = {
            tensor.id: tensor.nbytes
            for tensor in self.graph.tensors
            if is_resident(tensor) and tensor.id not in away
        }
        if (state := self.graph.state) is not None:
            for output in state.apart:
                place = state.pairs[output]
                found[place] = found.get(place, 0) + self.graph.tensors[place].nbytes
        return found


class _Comparison:
    """``back``: new tensor → its old counterpart."""

    def __init__(self, old: _Peak, new: _Peak, found: Counterparts) -> None:
        self.old, self.new, self.found = old, new, found
        old_pieces, new_pieces = _pieces(old.graph), _pieces(new.graph)
        # A piece is no counterpart of a whole, though all but their sizes may be equal.
        self.tensors = {
            before: after
            for before, after in found.tensors.items()
            if after not in new_pieces or before in old_pieces
        }
        self.back = {after: before for before, after in self.tensors.items()}
        node_back = {after: before for before, after in found.nodes.items()}
        self.old_step = _same_place(new, old, node_back)
        self.new_step = _same_place(old, new, found.nodes)
        self.pieces = frozenset(new_pieces.values())
        self.copies: defaultdict[int, list[int]] = defaultdict(list)
        for copy, of in new.copy_of.items():
            self.copies[of].append(copy)

    def resident(self) -> Iterator[TensorChange]:
        """Weights, inputs, state and constants."""
        before, after = self.old.resident(), self.new.resident()
        for tensor, nbytes in after.items():
            twin = self.back.get(tensor, ABSENT)
            old_bytes = before.pop(twin, 0)
            if nbytes != old_bytes:
                known = twin != ABSENT and old_bytes
                change = Change.APPEARED if not known else _grown(old_bytes, nbytes)
                yield self._of_resident(self.new, tensor, change, old_bytes, nbytes)
        for tensor, nbytes in before.items():
            if nbytes:
                yield self._of_resident(self.old, tensor, Change.GONE, nbytes, 0)

    def _of_resident(
        self, peak: _Peak, tensor: int, change: Change, old_bytes: int, new_bytes: int
    ) -> TensorChange:
        value = peak.graph.tensors[tensor]
        tensor_class = str(peak.explainer.class_of(value))
        return TensorChange(change, value.name, tensor_class, NO_MODULE, old_bytes, new_bytes)

    def computed(self) -> Iterator[TensorChange]:
        """Tensors that were made in the step."""
        pairs = self._pairs()
        for buffer, who in self.new.live.values():
            if buffer.id in pairs:
                before, was = self.old.live[pairs[buffer.id]]
                if buffer.nbytes != before.nbytes:
                    change = _grown(before.nbytes, buffer.nbytes)
                elif who.tensor_class != was.tensor_class:
                    change = Change.RECLASSED
                else:
                    continue
                yield _changed(change, who, before.nbytes, buffer.nbytes, was.name)
            else:
                yield self._entered(buffer, who)
        paired = set(pairs.values())
        for buffer, who in self.old.live.values():
            if buffer.id not in paired:
                yield self._left(buffer, who)

    def _pairs(self) -> dict[int, int]:
        """New buffer → old buffer, for those at both peaks that hold the same tensor."""
        pairs: dict[int, int] = {}
        by_root, by_member = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for buffer, _ in self.old.live.values():
            by_root[self.old.origin(buffer.root)].append(buffer.id)
            for member in buffer.members:
                by_member[self.old.origin(member)].append(buffer.id)
        taken: set[int] = set()
        for known, roots_only in ((by_root, True), (by_member, False)):
            for buffer, _ in self.new.live.values():
                members = (buffer.root,) if roots_only else buffer.members
                if buffer.id in pairs:
                    continue
                for member in members:
                    twin = self.back.get(self.new.origin(member), ABSENT)
                    free = next((b for b in known.get(twin, ()) if b not in taken), None)
                    if free is not None:
                        pairs[buffer.id] = free
                        taken.add(free)
                        break
        return pairs

    def _entered(self, buffer: Buffer, who: Live) -> TensorChange:
        """A buffer at the new peak alone."""
        twin = self.back.get(self.new.origin(buffer.root), ABSENT)
        before = self.old.buffer(twin)
        change, old_name = Change.APPEARED, None
        if before is not None:
            old_name = self.old.graph.tensors[twin].name
            if before.id in self.old.live:
                change = Change.APART
            elif _is_live(before, self.old_step):
                change = Change.PEAK_MOVED
            else:
                change = Change.LONGER
        return _changed(change, who, 0, buffer.nbytes, old_name)

    def _left(self, buffer: Buffer, who: Live) -> TensorChange:
        """A buffer at the old peak alone."""
        twin = self.tensors.get(self.old.origin(buffer.root), ABSENT)
        after = self.new.buffer(twin)
        if after is None:
            how = How.CHUNKED if who.name in self.pieces else None
            return _changed(Change.GONE, who, buffer.nbytes, 0, None, how)
        twins = [self.tensors.get(self.old.origin(t), ABSENT) for t in buffer.members]
        copies = [copy for twin in twins for copy in self.copies.get(twin, ())]
        places = [after, *filter(None, map(self.new.buffer, copies))]
        if any(place.id in self.new.live for place in places):
            change = Change.IN_PLACE
        elif any(_is_live(place, self.new_step) for place in places):
            change = Change.PEAK_MOVED
        else:
            change = Change.SHORTER
        how = _how(self.new.graph, copies) if change is Change.SHORTER else None
        if how is None and change is Change.SHORTER and who.name in self.pieces:
            how = How.CHUNKED
        return _changed(change, who, buffer.nbytes, 0, None, how)


def _changed(
    change: Change,
    who: Live,
    old_bytes: int,
    new_bytes: int,
    old_name: str | None,
    how: How | None = None,
) -> TensorChange:
    return TensorChange(
        change=change,
        name=who.name,
        tensor_class=str(who.tensor_class),
        module=who.module,
        old_bytes=old_bytes,
        new_bytes=new_bytes,
        held_by=who.held_by,
        how=how,
        old_name=old_name if old_name != who.name else None,
    )


def _grown(old_bytes: int, new_bytes: int) -> Change:
    return Change.GREW if new_bytes > old_bytes else Change.SHRANK


def _is_live(buffer: Buffer, step: int) -> bool:
    return buffer.birth <= step < buffer.death


def _same_place(peak: _Peak, other: _Peak, nodes: Mapping[int, int]) -> int:
    """The step of ``other`` that corresponds to the peak: that of the last node up to it which is
    in both graphs; -1 if there is none."""
    order = peak.timeline.order
    for step in range(min(peak.timeline.peak_step, len(order) - 1), -1, -1):
        if (twin := nodes.get(order[step])) is not None:
            return other.timeline.allocation.step_of[twin]
    return -1


def _pieces(graph: Graph) -> dict[int, str]:
    """Tensors that are parts of others, and of which (:mod:`memplan.passes.chunk.chunk_writer`)."""
    found = {}
    for tensor in graph.tensors:
        whole, _, number = tensor.name.rpartition("/chunk")
        if whole and number.partition("_")[0].isdecimal():
            found[tensor.id] = whole
    return found


def _how(graph: Graph, copies: list[int]) -> How | None:
    """What the copies of a tensor say that became of it."""
    for copy in copies:
        told = graph.metadata[graph.tensors[copy].producer]
        of = told.get("memplan.of", "")
        if told.get("memplan.role") == "reload":
            return How.OFFLOADED
        # Nodes that a plan adds have no node that they are copies of (memplan.planning.forms).
        if "/pack" in of:
            return How.PACKED
        return How.REBUILT if "/rebuild" in of else How.RECOMPUTED
    return None
