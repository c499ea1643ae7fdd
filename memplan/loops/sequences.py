"""What a tensor of the graph holds slice by slice: seen through copies, reversals and shifts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from memplan.loops.call import LoopCall, Slices, State, Values

Makers = Mapping[str, onnx.NodeProto]
_CONSTANT_INPUT = 1
_FAR = 2**31 - 2
"""Ends of slices from here on mean: to the end."""


def sources(found: Slices, steps: int, makers: Makers, values: Values) -> Iterator[Slices]:
    """``found`` itself and what it is a copy or a reversal of, nearest first."""
    yield found
    maker = makers.get(found.name)
    if maker is None:
        return
    if maker.op_type == "Identity":
        before = Slices(maker.input[0], found.axis, found.reversed_)
    elif _reverses(maker, found.axis, steps, values):
        before = Slices(maker.input[0], found.axis, not found.reversed_)
    else:
        return
    yield from sources(before, steps, makers, values)


def _reverses(node: onnx.NodeProto, axis: int, steps: int, values: Values) -> bool:
    """Whether a node gives its input's slices along ``axis`` from last to first."""
    if node.op_type == "Gather":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0)
        order = values.get(node.input[1])
        return along == axis and order is not None and order.tolist() == list(range(steps))[::-1]
    if node.op_type != "Slice" or len(node.input) < 5:
        return False
    starts, ends, axes, jumps = (_whole(values, name) for name in node.input[1:5])
    return (
        axes == [axis]
        and jumps == [-1]
        and starts is not None
        and (starts[0] == -1 or starts[0] >= steps - 1)
        and ends is not None
        and ends[0] < -steps
    )


def _whole(values: Values, name: str) -> list[int] | None:
    found = values.get(name)
    return None if found is None else [int(n) for n in np.asarray(found).reshape(-1)]


def shifted_state(
    found: Slices, call: LoopCall, makers: Makers, values: Values
) -> tuple[State, Slices] | None:
    """The state of which ``found`` holds the values *before* each step of ``call``, and the slices
    that such a tensor has: it was put together of the state's initial value and all but the last of
    the values that the loop stacked.
    """
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
            first, rest = maker.input[::-1] if item.reversed_ else maker.input
            if _all_but_last(rest, item, call.steps, makers, values) and _one(
                first, state.initial, axis, makers, values
            ):
                return state, Slices(found.name, axis, item.reversed_)
    return None


def _all_but_last(name: str, item: Slices, steps: int, makers: Makers, values: Values) -> bool:
    maker = makers.get(name)
    if maker is None or maker.op_type != "Slice" or maker.input[0] != item.name:
        return False
    given = [_whole(values, each) for each in maker.input[1:]]
    if len(given) < 3 or given[2] != [item.axis] or (len(given) > 3 and given[3] != [1]):
        return False
    starts, ends = given[:2]
    if starts is None or ends is None:
        return False
    if item.reversed_:  # the last step has the first slice
        return starts == [1] and (ends[0] >= min(steps, _FAR))
    return starts == [0] and ends[0] in (-1, steps - 1)


def _one(name: str, initial: str, axis: int, makers: Makers, values: Values) -> bool:
    maker = makers.get(name)
    return (
        maker is not None
        and maker.op_type == "Unsqueeze"
        and maker.input[0] == initial
        and len(maker.input) > _CONSTANT_INPUT
        and _whole(values, maker.input[_CONSTANT_INPUT]) == [axis]
    )
