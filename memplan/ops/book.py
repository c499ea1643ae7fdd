"""The operator book: what every operator is, one entry each, by family.

Passes, chunks, the proof, the simulator and the cost model read it alike; what the runtime was
measured to do stands in tables beside it (:mod:`memplan.ops.memory`).
``tests/unit/ops/test_book.py`` tries every axis rule on ONNX Runtime, as a wrong one would mislead
both the passes and the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memplan.ops import (
    elementwise_ops,
    moving_ops,
    normalization_ops,
    other_ops,
    product_ops,
    recurrent_ops,
    reduction_ops,
    window_ops,
)
from memplan.ops.facets import Operator

FAMILIES = (
    elementwise_ops,
    product_ops,
    normalization_ops,
    reduction_ops,
    moving_ops,
    window_ops,
    recurrent_ops,
    other_ops,
)

BOOK: Mapping[str, Operator] = {
    key: entry for family in FAMILIES for key, entry in family.OPERATORS.items()
}
"""By key, ``domain:Op``."""

_NOT_LISTED = Operator()


def operator(key: str) -> Operator:
    """The entry of an operator; of one that is not in the book, the careful answers."""
    return BOOK.get(key, _NOT_LISTED)


def _those(facet: Callable[[Operator], bool]) -> frozenset[str]:
    return frozenset(key for key, entry in BOOK.items() if facet(entry))


VIEWS = _those(lambda entry: entry.view)
SAME_ELEMENTS = VIEWS | {":Identity"}
"""Their first output has the elements of their first input, in order."""
MOVING = _those(lambda entry: entry.moves)
ALONE = _those(lambda entry: entry.alone)
SHAPE_READERS = _those(lambda entry: entry.reads_shape)
PRODUCTS = _those(lambda entry: entry.product)
RANDOM_OPS = _those(lambda entry: entry.random)
EFFECT_OPS = _those(lambda entry: entry.effects)
CONTROL_FLOW_OPS = _those(lambda entry: entry.body)
