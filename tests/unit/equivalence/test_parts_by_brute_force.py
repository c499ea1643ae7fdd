"""The proof of chunks against brute force: every way to cut an operator into two halves.

The proof goes by the same axis rules as the pass (:mod:`memplan.ops.book`), so each way in which
the inputs of a case may be cut and its result put together is tried on the runtime: what gives
another result must be refused, and what the book says must be followed.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from helpers.book_cases import CASES, Case, as_model
from helpers.chunking import Array
from helpers.proofs import proof
from helpers.sessions import RAW, session
from memplan.ops.book import operator
from memplan.ops.facets import SUM, WHOLE
from memplan.ops.instance import Instance

NONE = -1
Cuts = tuple[int, ...]
Halves = list[tuple[Array | None, ...]]


def cuts(case: Case) -> Iterator[Cuts]:
    """An axis for every input, or WHOLE; at least one is cut."""
    choices = [
        (WHOLE,)
        if array is None or slot in case.fixed
        else (WHOLE, *(axis for axis, size in enumerate(array.shape) if size % 2 == 0))
        for slot, array in enumerate(case.given)
    ]
    yield from (found for found in product(*choices) if any(axis != WHOLE for axis in found))


def orders(cut: Cuts) -> Iterator[int]:
    """The input whose halves change places, NONE, or any that is cut behind another."""
    yield NONE
    yield from [slot for slot, axis in enumerate(cut) if axis != WHOLE][1:]


def halves(case: Case, cut: Cuts, swapped: int) -> Halves:
    """What the first and the second half read."""
    pairs = [
        (array, array) if array is None or axis == WHOLE else np.split(array, 2, axis)
        for array, axis in zip(case.given, cut, strict=True)
    ]
    return [
        tuple(pair[place ^ (slot == swapped)] for slot, pair in enumerate(pairs))
        for place in (0, 1)
    ]


def joins(parts: list[Array], whole: Array) -> Iterator[tuple[int, bool]]:
    """Every way to put two results together to the shape of the whole: an axis or SUM, and whether
    that is the whole."""
    if parts[0].dtype != np.bool_ and parts[0].shape == whole.shape == parts[1].shape:
        yield SUM, np.allclose(parts[0] + parts[1], whole, 1e-4, 1e-5, equal_nan=True)
    for axis in range(whole.ndim):
        try:
            joined = np.concatenate(parts, axis)
        except ValueError:
            continue
        if joined.shape == whole.shape:
            yield axis, np.allclose(joined, whole, 1e-4, 1e-5, equal_nan=True)


def in_halves(
    case: Case, cut: Cuts, swapped: int, target: int, kind: onnx.ValueInfoProto
) -> onnx.ModelProto:
    """The model that cuts, computes both halves and puts them together along ``target``."""
    model = case.model(case.given)
    graph, nodes = model.graph, []
    for place in (0, 1):
        node = case.node(case.given)
        node.name, node.output[:] = f"n{place}", [f"{o}_{place}" for o in node.output]
        for slot, axis in enumerate(cut):
            array = case.given[slot]
            if axis == WHOLE or array is None:
                continue
            half, own = array.shape[axis] // 2, place ^ (slot == swapped)
            for name, value in (("s", own * half), ("e", (own + 1) * half), ("a", axis)):
                made = numpy_helper.from_array(
                    np.asarray([value], np.int64), f"{name}{slot}{place}"
                )
                graph.initializer.append(made)
            given = [f"i{slot}", *(f"{name}{slot}{place}" for name in "sea")]
            nodes.append(helper.make_node("Slice", given, [f"h{slot}{place}"], name=given[1]))
            node.input[slot] = f"h{slot}{place}"
        nodes.append(node)
    made = ["o0_0", "o0_1"]
    if target == SUM:
        nodes.append(helper.make_node("Add", made, ["o0"], name="joined"))
    else:
        nodes.append(helper.make_node("Concat", made, ["o0"], name="joined", axis=target))
    constants = list(graph.initializer)
    return as_model(helper.make_graph(nodes, "g", list(graph.input), [kind], constants))


def stated(case: Case) -> set[tuple[Cuts, int]]:
    """What the book says: cuts of the inputs and where the result goes."""
    rule = operator(case.key).axes
    assert rule is not None

    def contents(slot: int) -> list[int] | None:
        array = case.given[slot]
        return None if array is None or slot not in case.fixed else [int(v) for v in array.flat]

    inputs = [None if array is None else _Spec(array) for array in case.given]
    instance = Instance(case.attributes, inputs, [None] * case.outputs, contents=contents)
    found = (use for use in rule(instance) if use.shape_slot < 0 and use.addend < 0)
    return {(use.reads, use.makes[0]) for use in found}


class _Spec:
    """An array as a tensor."""

    def __init__(self, array: Array) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, 1, array.nbytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_not_the_whole_is_refused_and_what_the_book_says_is_followed(case: Case) -> None:
    runner = session(case.model(case.given, sized=False), RAW)
    whole = runner.run(["o0"], case.feeds(case.given))[0]
    kind = helper.make_tensor_value_info(
        "o0", helper.np_dtype_to_tensor_dtype(whole.dtype), whole.shape
    )
    reference = case.model(case.given)
    del reference.graph.output[:]
    reference.graph.output.append(kind)
    said = stated(case)
    for cut, swapped in ((each, slot) for each in cuts(case) for slot in orders(each)):
        try:
            parts = [runner.run(["o0"], case.feeds(h))[0] for h in halves(case, cut, swapped)]
        except Exception:
            continue
        for target, right in joins(parts, whole):
            if right and (swapped != NONE or (cut, target) not in said):
                continue
            found = proof(reference, in_halves(case, cut, swapped, target, kind))
            assert (found.reason is None) == right, (cut, swapped, target, found.reason)
            assert not found.proved
