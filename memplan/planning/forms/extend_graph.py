"""The graph with all forms and rules that a plan may use."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.ir.graph import Graph
from memplan.ir.graph_facts import Array, Facts
from memplan.planning.forms.dormant import Dormant, Extended
from memplan.planning.forms.dropout_rule import add_dropouts
from memplan.planning.forms.on_host import add_copies
from memplan.planning.forms.packed_masks import OLDEST_OPSET, PACKED, add_packs
from memplan.proto.opset import default_opset
from memplan.shapes.prepare import PreparedModel

NO_KINDS: frozenset[str] = frozenset()


def kinds_for(prepared: PreparedModel, kinds: frozenset[str]) -> frozenset[str]:
    """Which of these kinds of forms hold for a file: packing needs shapes that hold in every
    run, and operators that add bytes."""
    if not prepared.exact:
        kinds -= {PACKED}
    return kinds if default_opset(prepared.proto) >= OLDEST_OPSET else kinds - {PACKED}


def extend(
    graph: Graph,
    values: Mapping[str, Array],
    provider: str,
    kinds: frozenset[str] = NO_KINDS,
    offload: frozenset[int] = frozenset(),
) -> Extended:
    """Add the rebuild rules that apply to ``graph``, and forms of some kinds.

    Args:
        graph: the graph.
        values: contents of small constants by tensor name (ratios, training flags).
        provider: ``cpu`` or ``cuda``; their kernels round differently.
        kinds: of forms, all of which hold for the graph (:func:`kinds_for`).
        offload: tensors that may be copied to the host and read back.
    """
    builder, facts = Dormant(graph, provider), Facts(graph, values, exact=False)
    add_dropouts(builder, facts)
    if PACKED in kinds:
        add_packs(builder)
    for tensor in sorted(offload):
        add_copies(builder, builder.tensors[tensor])
    return builder.finish()
