"""The axis rules of the operator book: of every use, the chunks, run on their own, are the whole.

The pass and the proof read the same lines, so this is what judges them: the runtime.
"""

from pathlib import Path

import numpy as np
import onnx.defs
import pytest
from onnx import helper

from helpers.book_cases import CASES, Case
from helpers.chunking import Array, runs
from helpers.sessions import RAW, session
from memplan.ir.graph import ABSENT
from memplan.ops.book import BOOK, FAMILIES
from memplan.ops.facets import SUM, WHOLE, Use
from memplan.passes.change import facts_of
from memplan.passes.chunk.region import uses
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened


def chunk(case: Case, use: Use, shape: tuple[int, ...], place: int) -> tuple[Array | None, ...]:
    """What the second or first half reads; ``shape`` is that of the whole output."""
    parts: list[Array | None] = []
    for slot, (array, axis) in enumerate(zip(case.given, use.reads, strict=True)):
        if slot == use.shape_slot:
            half = [d // 2 if k == use.makes[0] else d for k, d in enumerate(shape)]
            parts.append(np.asarray(half, np.int64))
        elif slot == use.addend and place:
            parts.append(None)
        elif array is None or axis == WHOLE:
            parts.append(array)
        else:
            parts.append(np.split(array, 2, axis)[place])
    return tuple(parts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_chunks_of_every_use_are_the_whole(case: Case) -> None:
    proto = case.model(case.given)
    whole = list(runs(proto, case.feeds(case.given)).values())
    for value, array in zip(proto.graph.output, whole, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    model = opened(prepare(proto, Path("case.onnx"), {}))
    every = uses(facts_of(model), model.graph.nodes[0])
    assert sorted(use.makes[0] for use in every if not use.sums) == list(case.axes)
    assert sum(use.sums for use in every) == case.sums
    for use in every:
        halves = [chunk(case, use, whole[0].shape, place) for place in (0, 1)]
        made = [session(case.model(half), RAW).run(None, case.feeds(half)) for half in halves]
        for slot, axis in enumerate(use.makes):
            assert model.graph.nodes[0].outputs[slot] != ABSENT
            parts = [outputs[slot] for outputs in made]
            joined = sum(parts) if axis == SUM else np.concatenate(parts, axis)
            np.testing.assert_allclose(joined, whole[slot], rtol=1e-5, atol=1e-6)


def test_every_operator_with_an_axis_rule_has_a_case() -> None:
    assert {case.key for case in CASES} == {key for key, entry in BOOK.items() if entry.axes}


def test_every_operator_has_one_entry() -> None:
    assert len(BOOK) == sum(len(family.OPERATORS) for family in FAMILIES)


@pytest.mark.parametrize("key", [key for key, entry in BOOK.items() if entry.overwrites])
def test_what_may_be_written_over_while_it_is_read_has_one_output(key: str) -> None:
    """A second output could be written before the old value is read for it."""
    domain, _, name = key.partition(":")
    assert onnx.defs.get_schema(name, domain=domain).max_output == 1
