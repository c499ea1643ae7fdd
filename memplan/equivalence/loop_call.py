"""What a rule looks at: an operator that is applied, and what is known of what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from memplan.equivalence.normal_forms import Applied
from memplan.equivalence.terms import ABSENT, UNKNOWN, Fact, Terms
from memplan.shapes.fold import whole_numbers


@dataclass(frozen=True, slots=True)
class Call:
    """An operator that is applied: ``reads`` are terms, ABSENT where an input is left out.

    ``result``: what is known of the first output beforehand, of the reference. ``applied``: the
    operator as it is compared; None where a rule is only tried.
    """

    op: str
    reads: tuple[int, ...]
    attributes: Mapping[str, Any]
    opset: int
    terms: Terms
    result: Fact = UNKNOWN
    applied: Applied | None = None

    def read(self, slot: int) -> int:
        """The term in an input slot."""
        return self.reads[slot] if slot < len(self.reads) else ABSENT

    def fact(self, slot: int = 0) -> Fact:
        """What is known of an input."""
        return self.terms.fact(self.read(slot))

    def ints(self, slot: int, attribute: str = "") -> list[int] | None:
        """Whole numbers from a constant input or, in older opsets, from an attribute."""
        if self.read(slot) == ABSENT:
            given = self.attributes.get(attribute)
            return None if given is None else [int(v) for v in np.atleast_1d(given)]
        return whole_numbers(self.terms.value(self.read(slot)))


def attributes_of(applied: Applied) -> Mapping[str, Any]:
    """The attributes of an operator that was applied, as Python values; tensors left out."""
    found: dict[str, Any] = {}
    for entry in applied.attributes:
        if isinstance(entry, tuple) and not entry[1].startswith("tensor "):
            attribute = onnx.AttributeProto.FromString(bytes.fromhex(entry[1]))
            found[attribute.name] = onnx.helper.get_attribute_value(attribute)
    return found
