"""Edits of loop nodes: slices that they read, tensors that they stack, and what is then not read.

ONNX Runtime 1.31 computes wrong values where an output of a body is an input of it, or stands twice
among its outputs. :func:`own_output` is the way around that for everybody who writes bodies.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from memplan.ops.book import EFFECT_OPS
from memplan.passes.loops.call import LoopCall
from memplan.proto.edit import remove_unread, replace_nodes
from memplan.proto.graph_edit import GraphEdit
from memplan.proto.loop_node import LOOP_FIXED, Slices, body_of, layout_of
from memplan.proto.names import defined_names
from memplan.proto.nodes import names_read, operator_key


def is_own_output(body: onnx.GraphProto, name: str) -> bool:
    """Whether a tensor may become an output of a body as it is: a node makes it, and it is not an
    output yet."""
    taken = any(value.name == name for value in body.output)
    return not taken and any(name in node.output for node in body.node)


def own_output(body: onnx.GraphProto, inner: str, name: str) -> str:
    """``name``, a copy of a body's tensor that may be an output of it; see the module's text."""
    body.node.append(helper.make_node("Identity", [inner], [name], name=name))
    return name


def append_stacked(
    node: onnx.NodeProto, inner: str, kind: onnx.TypeProto, name: str, *, reversed_: bool = False
) -> Slices:
    """Make a Scan or Loop stack one more tensor of its body along axis 0.

    Args:
        node: the loop.
        inner: the tensor of the body; see :func:`is_own_output`.
        kind: its type.
        name: what all steps together are called in the graph around.
        reversed_: whether a Scan puts the first step last.
    """
    body, layout = body_of(node), layout_of(node)
    slots = len(body.output) - (0 if node.op_type == "Scan" else 1)
    node.output.extend([""] * (slots - len(node.output)))
    node.output.append(name)
    body.output.append(value_info(inner, kind))
    if node.op_type == "Scan":
        add_number(node, "scan_output_axes", 0, slots - layout.states)
        add_number(node, "scan_output_directions", int(reversed_), slots - layout.states)
    return Slices(name, 0, reversed_)


def add_number(node: onnx.NodeProto, attribute: str, number: int, before: int) -> None:
    """Append to a list of axes or directions, whose ``before`` entries are 0 where it is absent."""
    given = next((a for a in node.attribute if a.name == attribute), None)
    if given is not None:
        given.ints.extend([*[0] * (before - len(given.ints)), number])
    elif number:
        node.attribute.append(helper.make_attribute(attribute, [*[0] * before, number]))


def value_info(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    """A tensor of a graph's interface."""
    return onnx.ValueInfoProto(name=name, type=kind)


class LoopEditor:
    """``node`` is changed; ``call`` is how it was read. ``stacked`` grows (body → around)."""

    def __init__(self, node: onnx.NodeProto, call: LoopCall, steps: int, names: LoopNames) -> None:
        self.node = node
        self.names = names
        self.call = call
        self.steps = steps
        self.body = body_of(node)
        self.stacked = list(call.stacked)
        self.states = layout_of(node).states
        self.mirrored = ""

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
        """Stop reading a sequence. ``read``: outer names that somebody reads."""
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
        """Loop: stop handing on a sequence that no step reads any more."""
        names = [value.name for value in self.body.input]
        if inner not in names:
            return
        slot = names.index(inner) - LOOP_FIXED
        copies = {n for n in self.call.copies if self.call.root(n) == inner}
        for node in self.body.node:
            if any(name in copies or name == inner for name in node.input) and not (
                set(node.output) <= copies
            ):
                return
        ends = [value.name for value in self.body.output]
        if self.node.output[slot] in read or sum(end in copies for end in ends) != 1:
            return
        del self.body.input[slot + LOOP_FIXED]
        del self.body.output[slot + 1]
        del self.node.input[slot + LOOP_FIXED]
        del self.node.output[slot]
        self.states -= 1
        for node in [n for n in self.body.node if set(n.output) <= copies]:
            self.body.node.remove(node)

    def add_slice(self, found: Slices, inner: str, kind: onnx.TypeProto) -> list[onnx.NodeProto]:
        """Read a sequence of the forward loop, last step first; the nodes that this takes."""
        if self.call.is_scan:
            self.body.input.append(value_info(inner, kind))
            self.node.input.append(found.name)
            count = self._count()
            add_number(self.node, "scan_input_axes", found.axis, count)
            add_number(self.node, "scan_input_directions", int(not found.reversed_), count)
            self._set_count(count + 1)
            return []
        index, nodes = self.call.counter, list[onnx.NodeProto]()
        if not found.reversed_:
            index, fresh = self.mirrored, not self.mirrored
            if fresh:
                index = self.names.fresh(f"{self.call.counter}/mirrored")
                nodes = self.mirrored_counter(index)
        gather = helper.make_node(
            "Gather", [found.name, index], [inner], name=inner, axis=found.axis
        )
        return [*nodes, gather]

    def mirrored_counter(self, inner: str) -> list[onnx.NodeProto]:
        """Loop: nodes that make ``inner``, T - 1 less the iteration number."""
        last = self.names.fresh(f"{inner}/last")
        self.body.initializer.append(
            helper.make_tensor(last, onnx.TensorProto.INT64, [], [self.steps - 1])
        )
        self.mirrored = self.mirrored or inner
        return [helper.make_node("Sub", [last, self.call.counter], [inner], name=inner)]

    def put_first(self, nodes: list[onnx.NodeProto]) -> None:
        """Put nodes before all others of the body."""
        replace_nodes(self.body, [*nodes, *self.body.node])

    # -- stacking --------------------------------------------------------------------------------

    def add_stacked(self, inner: str, kind: onnx.TypeProto) -> Slices:
        """Stack one more tensor of the body, under a name of its own."""
        kept, outer = self.names.fresh(f"{inner}/kept"), self.names.fresh(f"{inner}/stash")
        found = append_stacked(self.node, own_output(self.body, inner, kept), kind, outer)
        self.names.stacked.append(outer)
        self.stacked.append((inner, found))
        return found

    # -- attributes of a Scan --------------------------------------------------------------------

    def _count(self) -> int:
        return layout_of(self.node).sequences

    def _set_count(self, count: int) -> None:
        next(a for a in self.node.attribute if a.name == "num_scan_inputs").i = count

    def _drop_number(self, attribute: str, slot: int) -> None:
        given = next((a for a in self.node.attribute if a.name == attribute), None)
        if given is not None and slot < len(given.ints):
            del given.ints[slot]


# -- names -----------------------------------------------------------------------------------------


class LoopNames:
    """Names that no tensor of a graph or of its bodies has yet.

    ``stacked`` are names of what loops stack in addition.
    """

    def __init__(self, edit: GraphEdit) -> None:
        self.names = edit.names
        self.outer = set(defined_names(edit.model.graph, bodies=False))
        self.stacked: list[str] = []

    def inner(self, stem: str, body: onnx.GraphProto) -> str:
        """A name for a tensor in ``body``: ``stem`` if neither the body nor the graph around it
        has it (another body may), else a fresh one."""
        if stem in self.outer or stem in set(defined_names(body)):
            return self.fresh(stem)
        self.names.taken.add(stem)
        return stem

    def fresh(self, stem: str) -> str:
        """A name that is nowhere yet."""
        return self.names.fresh(stem)


# -- what nobody reads any more --------------------------------------------------------------------


def sweep(graph: onnx.GraphProto, before: onnx.GraphProto) -> None:
    """Remove what was read in ``before`` only: nodes, stacked tensors, constants."""
    read_before = _read_in(before)
    while True:
        remove_unread(graph, read_before=read_before)
        unread = read_before - _read_in(graph)
        loops = [node for node in graph.node if operator_key(node) in (":Scan", ":Loop")]
        trimmed = [node for node in loops if _drop_stacked(node, unread)]
        if not trimmed:
            break


def _read_in(graph: onnx.GraphProto) -> set[str]:
    return names_read(graph.node) | {value.name for value in graph.output}


def _drop_stacked(node: onnx.NodeProto, unread: Collection[str]) -> bool:
    """Let a loop stop stacking what nobody reads; whether there was such."""
    body, states = body_of(node), layout_of(node).states
    first = 0 if node.op_type == "Scan" else 1
    slots = [k for k in range(states, len(node.output)) if node.output[k] in unread]
    for slot in reversed(slots):
        del node.output[slot], body.output[slot + first]
        for attribute in node.attribute:
            listed = attribute.name in ("scan_output_axes", "scan_output_directions")
            if listed and slot - states < len(attribute.ints):
                del attribute.ints[slot - states]
    if slots:
        sweep_body(body)
    return bool(slots)


def sweep_body(body: onnx.GraphProto) -> None:
    """Remove nodes that no output of the body needs."""
    remove_unread(body, stays=lambda node: operator_key(node) in EFFECT_OPS)
