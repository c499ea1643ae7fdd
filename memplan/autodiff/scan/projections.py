"""What comes before a loop and can be recomputed inside it: the product of inputs and weights.

An LSTM's gates take X·Wᵀ + b, computed for all steps at once. Where a step is recomputed in the
backward, keeping that sequence would cost as much as the gates; a step of X and W give its slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.scan.scan_call import slice_type
from memplan.ir.graph import Phase
from memplan.passes.loops.cell import unit_bytes
from memplan.passes.loops.sequences import projection_of
from memplan.proto.loop_node import Slices
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY


@dataclass(frozen=True, slots=True)
class RecomputedSlice:
    """``node`` makes one slice of a sequence from one slice of ``source``, which it reads under
    the name ``formal``."""

    source: Slices
    formal: str
    node: onnx.NodeProto


def recomputed_slice(outer: Emitter, item: Slices, inner: str) -> RecomputedSlice | None:
    """How to make slice ``inner`` of a sequence within a step; None where it is not a product, or
    where that would keep more in memory."""
    maker = outer.makers.get(item.name)
    if maker is None or item.axis != 0:
        return None
    found = projection_of(maker, outer.makers.get, lambda name: outer.tensor(name).type.shape)
    if found is None:
        return None
    whole, given = outer.tensor(item.name).type, outer.tensor(found.source).type
    if unit_bytes(slice_type(given, 0)) > unit_bytes(slice_type(whole, 0)):
        return None
    formal = outer.fresh(f"{inner}/source")
    node = found.step_node(formal, inner, outer.fresh(f"{maker.name}/recompute"))
    helper.set_metadata_props(node, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: maker.name})
    return RecomputedSlice(Slices(found.source, 0, item.reversed_), formal, node)
