"""A product by a mask that joins two: what the products by both give.

Where one or both of two masks hold, ``g·0·1``, ``g·1·0`` and ``g·0·0`` have the bits of ``g·0``:
times 1 is the number itself, NaN included; times a zero that is not negative keeps the sign of
what is there, and what is not finite gives NaN the first time and keeps it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.equivalence.loop_call import Call
from memplan.equivalence.normal_forms import Applied
from memplan.equivalence.terms import Terms

_FACTORS = 2


def either_mask(call: Call) -> int | None:
    """``Mul(Mul(g, Where(a, 0, 1)), Where(b, 0, 1))`` of ``Mul(g, Where(Or(a, b), 0, 1))``."""
    if call.applied is None or len(call.reads) != _FACTORS:
        return None
    terms, (source, factor) = call.terms, call.reads
    choice = terms.made_by(factor, 0)
    if (
        choice is None
        or (choice.domain, choice.op) != ("", "Where")
        or not _is_choice(terms, choice)
    ):
        return None
    either = terms.made_by(choice.reads[0], 0)
    if either is None or (either.domain, either.op) != ("", "Or"):
        return None
    product = source
    for mask in either.reads:
        chosen = terms.output(replace(choice, reads=(mask, *choice.reads[1:])), 0)
        product = terms.output(replace(call.applied, reads=(product, chosen)), 0)
    return product


def _is_choice(terms: Terms, choice: Applied) -> bool:
    """Whether it is 0 where the mask holds and 1 elsewhere."""
    zero, one = (terms.value(read) for read in choice.reads[1:])
    if zero is None or one is None or zero.dtype.kind != "f" or zero.size != 1 or one.size != 1:
        return False
    return zero.item() == 0 and not np.signbit(zero).any() and one.item() == 1
