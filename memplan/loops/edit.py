"""Changes of one loop node: slices that it reads, tensors that it stacks."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from memplan.loops.call import LoopCall, Slices, body_of
from memplan.loops.names import Names

_LOOP_FIXED = 2


def value_info(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    """A tensor of a graph's interface."""
    return onnx.ValueInfoProto(name=name, type=kind)


class LoopEditor:
    """``node`` is changed; ``call`` is how it was read. ``stacked`` grows (body → around)."""

    def __init__(self, node: onnx.NodeProto, call: LoopCall) -> None:
        self.node = node
        self.call = call
        self.body = body_of(node)
        self.stacked = list(call.stacked)
        scanned = self._count() if call.is_scan else _LOOP_FIXED
        self.states = len(node.input) - scanned
        self.index = ""

    # -- reading ---------------------------------------------------------------------------------

    def lifted(self, inner: str) -> list[onnx.NodeProto]:
        """Take the node that reads a slice out of a Loop's body, and what makes its index, to be
        put first."""
        if self.call.is_scan:
            return []
        makers = {name: k for k, node in enumerate(self.body.node) for name in node.output}
        places, waiting = set[int](), [inner]
        while waiting:
            place = makers.get(waiting.pop())
            if place is not None and place not in places:
                places.add(place)
                waiting += self.body.node[place].input
        return [self.body.node.pop(k) for k in sorted(places, reverse=True)][::-1]

    def drop_slice(self, inner: str, read: Collection[str]) -> None:
        """Read a sequence no more. ``read``: outer names that somebody reads."""
        if self.call.is_scan:
            slot = [value.name for value in self.body.input].index(inner)
            del self.body.input[slot]
            del self.node.input[slot]
            self._set_count(self._count() - 1)
            for name in ("scan_input_axes", "scan_input_directions"):
                self._drop_number(name, slot - self.states)
            return
        place = next(k for k, node in enumerate(self.body.node) if inner in node.output)
        gather = self.body.node.pop(place)
        self._drop_state(self.call.root(gather.input[0]), read)

    def _drop_state(self, inner: str, read: Collection[str]) -> None:
        """Loop: hand a sequence on no more that no step reads any longer."""
        names = [value.name for value in self.body.input]
        if inner not in names:
            return
        slot = names.index(inner) - _LOOP_FIXED
        copies = {n for n in self.call.copies if self.call.root(n) == inner}
        for node in self.body.node:
            if any(name in copies or name == inner for name in node.input) and not (
                set(node.output) <= copies
            ):
                return
        ends = [value.name for value in self.body.output]
        if self.node.output[slot] in read or sum(end in copies for end in ends) != 1:
            return
        del self.body.input[slot + _LOOP_FIXED]
        del self.body.output[slot + 1]
        del self.node.input[slot + _LOOP_FIXED]
        del self.node.output[slot]
        self.states -= 1
        for node in [n for n in self.body.node if set(n.output) <= copies]:
            self.body.node.remove(node)

    def add_slice(
        self, found: Slices, inner: str, kind: onnx.TypeProto, names: Names
    ) -> list[onnx.NodeProto]:
        """Read a sequence of the forward loop, last step first; the nodes that this takes."""
        if self.call.is_scan:
            self.body.input.append(value_info(inner, kind))
            self.node.input.append(found.name)
            count = self._count()
            self._add_number("scan_input_axes", found.axis, count)
            self._add_number("scan_input_directions", int(not found.reversed_), count)
            self._set_count(count + 1)
            return []
        index, nodes = self.call.counter, list[onnx.NodeProto]()
        if not found.reversed_:
            index, fresh = self.index, not self.index
            if fresh:
                index = names.fresh(f"{self.call.counter}/mirrored")
                nodes = self.mirrored_counter(names, index)
        gather = helper.make_node(
            "Gather", [found.name, index], [inner], name=inner, axis=found.axis
        )
        return [*nodes, gather]

    def mirrored_counter(self, names: Names, inner: str) -> list[onnx.NodeProto]:
        """Loop: nodes that make ``inner``, T - 1 less the iteration number."""
        last = names.fresh(f"{inner}/last")
        self.body.initializer.append(
            helper.make_tensor(last, onnx.TensorProto.INT64, [], [self.call.steps - 1])
        )
        self.index = self.index or inner
        return [helper.make_node("Sub", [last, self.call.counter], [inner], name=inner)]

    def put_first(self, nodes: list[onnx.NodeProto]) -> None:
        """Put nodes before all others of the body."""
        rest = [onnx.NodeProto.FromString(n.SerializeToString()) for n in self.body.node]
        del self.body.node[:]
        self.body.node.extend([*nodes, *rest])

    # -- stacking --------------------------------------------------------------------------------

    def add_stacked(self, inner: str, kind: onnx.TypeProto, names: Names) -> Slices:
        """Stack one more tensor of the body.

        It gets a node and a name of its own: ONNX Runtime 1.31 computes wrong values where an
        output of a body is an input of it, or stands twice among its outputs.
        """
        kept, outer = names.fresh(f"{inner}/kept"), names.fresh(f"{inner}/stash")
        self.body.node.append(helper.make_node("Identity", [inner], [kept], name=kept))
        before = len(self.body.output) - self.states - (not self.call.is_scan)
        self.body.output.append(value_info(kept, kind))
        self.node.output.extend([""] * (self.states + before - len(self.node.output)))
        self.node.output.append(outer)
        if self.call.is_scan:
            self._add_number("scan_output_axes", 0, before)
            self._add_number("scan_output_directions", 0, before)
        names.stacked.append(outer)
        found = Slices(outer, 0, False)
        self.stacked.append((inner, found))
        return found

    # -- attributes of a Scan --------------------------------------------------------------------

    def _count(self) -> int:
        return int(next(a.i for a in self.node.attribute if a.name == "num_scan_inputs"))

    def _set_count(self, count: int) -> None:
        next(a for a in self.node.attribute if a.name == "num_scan_inputs").i = count

    def _add_number(self, attribute: str, number: int, before: int) -> None:
        given = next((a for a in self.node.attribute if a.name == attribute), None)
        if given is not None:
            given.ints.append(number)
        elif number:
            self.node.attribute.append(helper.make_attribute(attribute, [*[0] * before, number]))

    def _drop_number(self, attribute: str, slot: int) -> None:
        given = next((a for a in self.node.attribute if a.name == attribute), None)
        if given is not None and slot < len(given.ints):
            del given.ints[slot]
