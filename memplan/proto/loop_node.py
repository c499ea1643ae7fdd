"""A ``Scan`` or ``Loop`` node, read as ONNX's operator documentation defines it.

This is the one place that knows which inputs and outputs of these nodes are states and which are
sequences, along which axis and in which direction a step takes its slice, and what stands where in
the body:

===========  =========================================  ==========================================
             ``Scan`` (since opset 9)                   ``Loop``
===========  =========================================  ==========================================
inputs       states, ``num_scan_inputs`` sequences      trip count, condition, states
body inputs  states, slices                             iteration number, condition, states
outputs      last states, stacked tensors               the same
body outputs states, slices                             condition, states, slices
===========  =========================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.errors import ModelError

LOOP_FIXED = 2
"""A Loop's trip count and condition, before its states; in the body, the iteration number."""

MOST_TRIPS = 2**31
"""Exporters write the largest integer for a loop that only its condition ends."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The tensor ``name`` of the graph around a loop, a slice along ``axis`` per step.

    ``reversed_``: the first step has the last slice. ``name`` is empty where an optional output is
    left out.
    """

    name: str
    axis: int
    reversed_: bool

    def backwards(self, name: str | None = None) -> Slices:
        """The same from the last step on; of the tensor ``name`` if one is given."""
        return Slices(self.name if name is None else name, self.axis, not self.reversed_)


@dataclass(frozen=True, slots=True)
class LoopLayout:
    """What the attributes of a Scan or Loop say.

    ``fixed`` inputs stand before the ``states`` states; ``sequences`` inputs are behind them. Axes
    are as they are written: negative ones count from the end, missing ones are 0, like directions.
    """

    fixed: int
    states: int
    sequences: int
    input_axes: tuple[int, ...] = ()
    input_directions: tuple[int, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_directions: tuple[int, ...] = ()

    @property
    def first_sequence(self) -> int:
        """The slot of the first sequence among the inputs of the node and of the body."""
        return self.fixed + self.states

    def input_axis(self, slot: int) -> int:
        """The axis of sequence ``slot``."""
        return self.input_axes[slot] if slot < len(self.input_axes) else 0

    def output_axis(self, slot: int) -> int:
        """The axis of stacked output ``slot``."""
        return self.output_axes[slot] if slot < len(self.output_axes) else 0

    def input_reversed(self, slot: int) -> bool:
        """Whether the first step reads the last slice of sequence ``slot``."""
        return slot < len(self.input_directions) and bool(self.input_directions[slot])

    def output_reversed(self, slot: int) -> bool:
        """Whether the first step writes the last slice of stacked output ``slot``."""
        return slot < len(self.output_directions) and bool(self.output_directions[slot])


def loop_layout(op: str, attributes: Mapping[str, object], inputs: int) -> LoopLayout:
    """The layout of a Scan or Loop.

    Args:
        op: ``Scan`` or ``Loop``.
        attributes: integers and lists of integers by name; others are not read.
        inputs: how many inputs the node has.
    """
    if op == "Loop":
        return LoopLayout(LOOP_FIXED, max(0, inputs - LOOP_FIXED), 0)

    def numbers(name: str) -> tuple[int, ...]:
        given = attributes.get(name)
        return tuple(int(n) for n in given) if isinstance(given, list | tuple) else ()

    count = attributes.get("num_scan_inputs", 0)
    sequences = count if isinstance(count, int) else 0
    return LoopLayout(
        0,
        inputs - sequences,
        sequences,
        numbers("scan_input_axes"),
        numbers("scan_input_directions"),
        numbers("scan_output_axes"),
        numbers("scan_output_directions"),
    )


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A Scan or Loop node.

    ``initials`` are names of the states' first values, ``finals`` of the last ones, ``sequences``
    what a Scan reads slice by slice and ``stacked`` what the loop writes so; all are names of the
    graph around. The properties are names in the body, which may grow after it was read.
    """

    node: onnx.NodeProto
    body: onnx.GraphProto
    layout: LoopLayout
    initials: tuple[str, ...]
    sequences: tuple[Slices, ...]
    finals: tuple[str, ...]
    stacked: tuple[Slices, ...]

    @property
    def is_scan(self) -> bool:
        """Whether it is a Scan, not a Loop."""
        return self.node.op_type == "Scan"

    @property
    def state_inputs(self) -> tuple[str, ...]:
        """The states as a step finds them."""
        span = slice(self.layout.fixed, self.layout.first_sequence)
        return tuple(value.name for value in self.body.input[span])

    @property
    def slice_inputs(self) -> tuple[str, ...]:
        """The step's slices of the sequences."""
        return tuple(value.name for value in self.body.input[self.layout.first_sequence :])

    @property
    def state_outputs(self) -> tuple[str, ...]:
        """The states as a step leaves them."""
        first = 0 if self.is_scan else 1
        return tuple(v.name for v in self.body.output[first : first + self.layout.states])

    @property
    def slice_outputs(self) -> tuple[str, ...]:
        """The step's slices of what is stacked."""
        first = self.layout.states + (0 if self.is_scan else 1)
        return tuple(value.name for value in self.body.output[first:])


def _unknown(_: str) -> int:
    return 0


def body_of(node: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a Scan or Loop.

    Raises:
        ModelError: it has none.
    """
    for attribute in node.attribute:
        if attribute.name == "body":
            found: onnx.GraphProto = attribute.g
            return found
    raise ModelError(f"{node.op_type} '{node.name}' lacks its body")


def layout_of(node: onnx.NodeProto) -> LoopLayout:
    """The layout of a Scan or Loop node."""
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.type in kinds}
    return loop_layout(node.op_type, given, len(node.input))


def read_loop(node: onnx.NodeProto, rank: Callable[[str], int] = _unknown) -> LoopNode:
    """The parts of a Scan or Loop node.

    Args:
        node: the node.
        rank: the ranks of tensors of the graph around, from which negative axes are counted from
            the front; 0 where it is not known, which leaves them.

    Raises:
        ModelError: it has no body.
    """
    body, layout = body_of(node), layout_of(node)
    behind = len(body.output) - (0 if node.op_type == "Scan" else 1)
    outputs = [*node.output, *[""] * (behind - len(node.output))]

    def from_front(name: str, axis: int) -> int:
        return axis + rank(name) if axis < 0 else axis

    return LoopNode(
        node,
        body,
        layout,
        tuple(node.input[layout.fixed : layout.first_sequence]),
        tuple(
            Slices(name, from_front(name, layout.input_axis(k)), layout.input_reversed(k))
            for k, name in enumerate(node.input[layout.first_sequence :])
        ),
        tuple(outputs[: layout.states]),
        tuple(
            Slices(name, from_front(name, layout.output_axis(k)), layout.output_reversed(k))
            for k, name in enumerate(outputs[layout.states :])
        ),
    )


def scan_attributes(
    body: onnx.GraphProto, inputs: Sequence[Slices], outputs: Sequence[Slices]
) -> dict[str, object]:
    """The attributes of a Scan with this body; lists that are all 0 are left out."""
    lists = {
        "scan_input_axes": [item.axis for item in inputs],
        "scan_input_directions": [int(item.reversed_) for item in inputs],
        "scan_output_axes": [item.axis for item in outputs],
        "scan_output_directions": [int(item.reversed_) for item in outputs],
    }
    kept = {name: numbers for name, numbers in lists.items() if any(numbers)}
    return {"body": body, "num_scan_inputs": len(inputs), **kept}
