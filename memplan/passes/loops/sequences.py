"""What a tensor of the graph holds slice by slice: seen through copies, reversals and shifts, or as
a product of which a step can compute its slice.

The *shift* of a state by a step, its values before every step, is ``Concat`` of its initial value
and all but the last of its values behind the steps. :class:`Shift` says how it is written, for
those who recognise one and those who build one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import helper

from memplan.passes.loops.call import LoopCall, State, Values
from memplan.proto.loop_node import Slices
from memplan.shapes.fold import whole_numbers
from memplan.shapes.tensor_type import Dim

T = TypeVar("T")
Makers = Mapping[str, onnx.NodeProto]
"""The node that makes a tensor, by the tensor's name."""
END = 2**31 - 1
"""The end of a slice that goes to the last element."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A state before every step: ``after``, the state behind every step, without the slice of the
    last step, and beside it the initial value with a new axis."""

    after: Slices

    @property
    def axes(self) -> list[int]:
        """Axes of the ``Unsqueeze`` and of the ``Slice``."""
        return [self.after.axis]

    @property
    def bounds(self) -> tuple[list[int], list[int]]:
        """Starts and ends of the ``Slice``; where the loop stacks from the last place on, the last
        step has the first slice."""
        return ([1], [END]) if self.after.reversed_ else ([0], [-1])

    def parts(self, initial: T, others: T) -> list[T]:
        """What the ``Concat`` reads, in order: the initial value belongs to the first step."""
        return [others, initial] if self.after.reversed_ else [initial, others]


def sources(found: Slices, steps: int, makers: Makers, values: Values) -> Iterator[Slices]:
    """``found`` itself and what it is a copy or a reversal of, nearest first."""
    while True:
        yield found
        maker = makers.get(found.name)
        if maker is None:
            return
        if maker.op_type == "Identity":
            found = Slices(maker.input[0], found.axis, found.reversed_)
        elif _reverses(maker, found.axis, steps, values):
            found = found.backwards(maker.input[0])
        else:
            return


def _reverses(node: onnx.NodeProto, axis: int, steps: int, values: Values) -> bool:
    """Whether a node gives its input's slices along ``axis`` from last to first."""
    if node.op_type == "Gather":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0)
        order = whole_numbers(values.get(node.input[1]))
        count = len(order or ())
        return along == axis and count == steps and order == list(range(count))[::-1]
    if node.op_type != "Slice" or len(node.input) < 5:
        return False
    starts, ends, axes, strides = (whole_numbers(values.get(name)) for name in node.input[1:5])
    if not starts or not ends or axes != [axis] or strides != [-1]:
        return False
    return (starts[0] == -1 or starts[0] >= steps - 1) and ends[0] < -steps


def shifted_state(
    found: Slices, call: LoopCall, makers: Makers, values: Values
) -> tuple[State, Slices] | None:
    """The state of which ``found`` holds the shift, and the slices that such a tensor has; None if
    it is not a shift of what ``call`` stacked."""
    maker = makers.get(found.name)
    if maker is None or maker.op_type != "Concat" or len(maker.input) != 2:
        return None
    axis = next((a.i for a in maker.attribute if a.name == "axis"), 0)
    if axis != found.axis:
        return None
    for state in call.states:
        for inner, item in call.stacked:
            if inner != state.after or item.axis != axis:
                continue
            shift = Shift(item)
            initial, others = shift.parts(*maker.input)
            if _all_but_last(others, shift, call.steps, makers, values) and _with_axis(
                initial, state.initial, shift, makers, values
            ):
                return state, Slices(found.name, axis, item.reversed_)
    return None


def _all_but_last(name: str, shift: Shift, steps: int, makers: Makers, values: Values) -> bool:
    maker = makers.get(name)
    if maker is None or maker.op_type != "Slice" or maker.input[0] != shift.after.name:
        return False
    given = [whole_numbers(values.get(each)) for each in maker.input[1:]]
    if len(given) < 3 or given[2] != shift.axes or (len(given) > 3 and given[3] != [1]):
        return False
    starts, ends = given[:2]
    if starts != shift.bounds[0] or not ends:
        return False
    if shift.after.reversed_:
        return ends[0] >= steps
    return ends[0] in (-1, steps - 1)


def _with_axis(name: str, initial: str, shift: Shift, makers: Makers, values: Values) -> bool:
    maker = makers.get(name)
    return (
        maker is not None
        and maker.op_type == "Unsqueeze"
        and maker.input[0] == initial
        and len(maker.input) > 1
        and whole_numbers(values.get(maker.input[1])) == shift.axes
    )


# -- products before a loop ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Projection:
    """A sequence that is the product of a sequence ``source`` and weights: a slice of the one and
    ``weights`` (a matrix, for Gemm a bias too) give the slice of the other."""

    product: onnx.NodeProto
    source: str
    weights: Sequence[str]

    def step_node(self, formal: str, inner: str, name: str) -> onnx.NodeProto:
        """The node ``name`` that makes the slice ``inner`` of a slice ``formal`` of the source."""
        node = helper.make_node(self.product.op_type, [formal, *self.weights], [inner], name=name)
        node.attribute.extend(self.product.attribute)
        return node


def projection_of(
    maker: onnx.NodeProto,
    makers: Callable[[str], onnx.NodeProto | None],
    shape: Callable[[str], tuple[Dim, ...] | None],
) -> Projection | None:
    """How ``maker`` makes a sequence as a product along axis 0; None if it does not.

    That is ``MatMul(X, W)``, or ``Reshape(Gemm(Reshape(X), W, b))`` as LSTM, GRU and RNN are
    written out, of X and the result with three axes and the same first two.

    Args:
        maker: the node that makes the sequence.
        makers: gives the node that makes a tensor.
        shape: gives the shape of a tensor, None where it is not known.
    """
    product, source, weights = maker, maker.input[0], list(maker.input[1:])
    if maker.op_type == "Reshape":
        flat = makers(maker.input[0])
        before = makers(flat.input[0]) if flat is not None and flat.op_type == "Gemm" else None
        if flat is None or before is None or before.op_type != "Reshape":
            return None
        if any(item.name == "transA" and item.i for item in flat.attribute):
            return None
        product, source, weights = flat, before.input[0], list(flat.input[1:])
    elif maker.op_type != "MatMul":
        return None
    whole, given = shape(maker.output[0]), shape(source)
    if whole is None or given is None or {len(whole), len(given)} != {3} or whole[:2] != given[:2]:
        return None
    ranks = [None if (found := shape(name)) is None else len(found) for name in weights]
    if ranks not in ([2], [2, 0], [2, 1]):
        return None
    return Projection(product, source, weights)
