"""A ``Scan`` or ``Loop`` as the finder of pairs sees it: by what its steps read and write.

What ONNX says of the node is read by :mod:`memplan.proto.loop_node`. Here a ``Loop`` that reads a
sequence with ``Gather`` at the iteration number, as JAX exports have it, becomes like a Scan, and a
state that no step changes an invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from memplan.proto.loop_node import LOOP_FIXED, LoopNode, Slices, read_loop
from memplan.proto.nodes import operator_key
from memplan.shapes.fold import small_constants
from memplan.shapes.tensor_type import UNKNOWN, TensorType

Values = Mapping[str, npt.NDArray[np.generic]]
"""Contents of small constants by name."""
Types = Mapping[str, TensorType]
"""Types of a graph's tensors by name."""
SCAN_SINCE = 9
"""From this opset on a Scan has no batch axis of its own."""


@dataclass(frozen=True, slots=True)
class State:
    """``before`` and ``after`` are names in the body, ``initial`` is one of the graph around."""

    before: str
    after: str
    initial: str


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A loop. Names of the body are roots: a chain of copies is known by what it starts from.

    ``index`` is the node's place in the graph, ``Constant`` nodes not counted; ``steps`` how often
    it runs. ``slices`` (body → around) are read step by step,
    ``stacked`` (body, around) written; ``invariants`` (body → around) are the same at every step.
    ``counter`` is a Loop's iteration number, empty for a Scan. ``types`` are those of the body's
    tensors, as far as they are known; ``copies`` leads from each copy to its source.
    """

    node: onnx.NodeProto
    index: int
    steps: int
    body: onnx.GraphProto
    types: Types
    slices: Mapping[str, Slices]
    states: tuple[State, ...]
    invariants: Mapping[str, str]
    stacked: tuple[tuple[str, Slices], ...]
    counter: str
    copies: Mapping[str, str]

    @property
    def is_scan(self) -> bool:
        """Whether it is a Scan, not a Loop."""
        return self.node.op_type == "Scan"

    def root(self, name: str) -> str:
        """What a chain of copies in the body starts from."""
        return root_of(name, self.copies)


def root_of(name: str, copies: Mapping[str, str]) -> str:
    """What a chain of copies starts from."""
    while name in copies:
        name = copies[name]
    return name


def copies_in(body: onnx.GraphProto, types: Types) -> dict[str, str]:
    """Copy → source: ``Identity``, and ``Cast`` to the type that the source has anyway."""
    found = {}
    for node in body.node:
        if node.op_type == "Identity":
            found[node.output[0]] = node.input[0]
        elif node.op_type == "Cast":
            source, result = (types.get(name) for name in (node.input[0], node.output[0]))
            if source is not None and result is not None and source.dtype == result.dtype:
                found[node.output[0]] = node.input[0]
    return found


@dataclass(frozen=True, slots=True)
class LoopReader:
    """Reads the loops of one graph.

    ``types`` and ``values`` are those of the graph's tensors. ``bodies`` has the types inside the
    loops that are read, and ``trips`` how often they run, both by the node's place among those that
    are not ``Constant``.
    """

    opset: int
    types: Types
    values: Values
    bodies: Mapping[int, Types]
    trips: Mapping[int, int]

    def read(self, proto: onnx.NodeProto, index: int) -> LoopCall | None:
        """The loop ``proto``; None if its condition may end it, or if it is not a loop."""
        if operator_key(proto) not in (":Scan", ":Loop"):
            return None
        types = self.bodies[index]
        loop = read_loop(proto, self._rank)
        copies = copies_in(loop.body, types)
        if loop.is_scan:
            return self._scan(loop, index, types, copies)
        return self._loop(loop, index, types, copies)

    def _rank(self, name: str) -> int:
        return len(self.types.get(name, UNKNOWN).shape or ())

    def _scan(
        self, loop: LoopNode, index: int, types: Types, copies: Mapping[str, str]
    ) -> LoopCall | None:
        if self.opset < SCAN_SINCE or not loop.sequences:
            return None
        states = zip(loop.state_inputs, loop.state_outputs, loop.initials, strict=True)
        return LoopCall(
            node=loop.node,
            index=index,
            steps=self.trips[index],
            body=loop.body,
            types=types,
            slices=dict(zip(loop.slice_inputs, loop.sequences, strict=True)),
            states=tuple(State(b, root_of(a, copies), i) for b, a, i in states),
            invariants={},
            stacked=_stacked(loop, copies),
            counter="",
            copies=copies,
        )

    def _loop(
        self, loop: LoopNode, index: int, types: Types, copies: Mapping[str, str]
    ) -> LoopCall | None:
        body, steps = loop.body, self.trips[index]
        if len(body.input) != LOOP_FIXED + len(loop.initials):
            return None
        counter, going = (value.name for value in body.input[:LOOP_FIXED])
        condition = loop.node.input[1] if len(loop.node.input) > 1 else ""
        if condition and not np.all(self.values.get(condition, np.asarray(False))):
            return None
        if root_of(body.output[0].name, copies) != going:  # the condition may end the loop
            return None
        rows = list(zip(loop.state_inputs, loop.state_outputs, loop.initials, strict=False))
        same = {inner: outer for inner, after, outer in rows if root_of(after, copies) == inner}
        return LoopCall(
            node=loop.node,
            index=index,
            steps=steps,
            body=body,
            types=types,
            slices=_Gathers(body, counter, steps, same, types, copies, self.values).found(),
            states=tuple(State(b, root_of(a, copies), i) for b, a, i in rows if b not in same),
            invariants=same,
            stacked=_stacked(loop, copies),
            counter=counter,
            copies=copies,
        )


def _stacked(loop: LoopNode, copies: Mapping[str, str]) -> tuple[tuple[str, Slices], ...]:
    rows = zip(loop.slice_outputs, loop.stacked, strict=False)
    return tuple((root_of(inner, copies), outer) for inner, outer in rows if outer.name)


@dataclass(frozen=True, slots=True)
class _Gathers:
    """The sequences that a Loop's body reads with ``Gather`` along axis 0, at the iteration number
    ``counter`` or at that counted from the end."""

    body: onnx.GraphProto
    counter: str
    steps: int
    invariants: Mapping[str, str]
    types: Types
    copies: Mapping[str, str]
    values: Values

    def found(self) -> dict[str, Slices]:
        """Name of the slice in the body → the sequence around."""
        body, copies = self.body, self.copies
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {name for node in body.node for name in node.output}
        mirrored = self._mirrored()
        found = {}
        for node in body.node:
            index = root_of(node.input[1], copies) if node.op_type == "Gather" else ""
            if index != self.counter and index not in mirrored:
                continue
            data = root_of(node.input[0], copies)
            outer = self.invariants.get(data, "" if data in own else data)
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            shape = self.types.get(data, UNKNOWN).shape
            if outer and axis == 0 and shape and shape[0] == self.steps:
                found[node.output[0]] = Slices(outer, 0, index in mirrored)
        return found

    def _mirrored(self) -> set[str]:
        """Names of the iteration number counted from the end: T - 1 less that from the start."""
        known = small_constants(self.body)
        numbers = {**self.values, **known}
        return {
            node.output[0]
            for node in self.body.node
            if node.op_type == "Sub"
            and root_of(node.input[1], self.copies) == self.counter
            and np.array_equal(
                numbers.get(node.input[0], np.asarray(-1)).reshape(-1), [self.steps - 1]
            )
        }
