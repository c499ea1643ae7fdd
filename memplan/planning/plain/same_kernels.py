"""Do plain sessions round alike in two files? Asked of what the runtime holds of each.

A plain session fuses nodes, cancels transpositions and changes layouts file by file. A node that
rounds computes the same bits where it is the same operator on tensors of the same shapes; the proof
says that both files compute the same apart from that.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import onnx

from memplan.ir.build_graph import plain_attributes
from memplan.ir.graph import Graph, Node, TensorKind
from memplan.ops.book import MOVING
from memplan.ops.memory import packable
from memplan.shapes.tensor_type import FLOATS

_FENCED = ("memplan/", "/recompute")


def unlike_nodes(original: Graph, rewritten: Graph) -> int:
    """How many rounding nodes a plain session runs of the rewritten file and not of the original.

    Recomputed nodes and what is there for fences and pins are left out; so is what the original has
    besides, of which nothing that is left may depend.

    Args:
        original: what the session holds of the original.
        rewritten: what it holds of the rewritten file.
    """
    return (_rounding(rewritten) - _rounding(original)).total()


def _rounding(graph: Graph, around: frozenset[str] = frozenset()) -> Counter[tuple[object, ...]]:
    """The nodes that may round, by what they are; those of bodies, too. ``around``: constants of
    the graphs around."""
    own = (t.name for t in graph.tensors if t.kind is TensorKind.INITIALIZER)
    constants = around.union(own)
    found = Counter(
        _kind(graph, node, constants)
        for node in graph.nodes
        if node.key not in MOVING
        and any(graph.tensors[t].dtype in FLOATS for t in node.writes)
        and not _ours(graph, node)
    )
    for index, bodies in graph.bodies.items():
        if not _ours(graph, graph.nodes[index]):
            for body in bodies:
                found += _rounding(body.graph, constants) if body.graph else Counter()
    return found


def _ours(graph: Graph, node: Node) -> bool:
    role = graph.metadata[node.id].get("memplan.role")
    return role is not None or node.name.startswith(_FENCED[0]) or _FENCED[1] in node.name


def _kind(graph: Graph, node: Node, constants: frozenset[str]) -> tuple[object, ...]:
    reads = tuple((graph.tensors[t].dtype, graph.tensors[t].shape) for t in node.reads)
    writes = tuple((graph.tensors[t].dtype, graph.tensors[t].shape) for t in node.writes)
    defaults = _defaults(node.op, node.domain)
    stated = {k: v for k, v in node.attributes.items() if k not in defaults or v != defaults[k]}
    # A weight that is a constant is packed, and multiplied in other bits than one that is computed.
    packed = tuple(graph.tensors[t].name in constants for t in packable(node))
    return node.key, repr(sorted(stated.items())), reads, writes, packed


@cache
def _defaults(op: str, domain: str) -> dict[str, object]:
    """Of attributes: a session states them, and a file may leave them out."""
    if not onnx.defs.has(op, domain):
        return {}
    every = onnx.defs.get_schema(op, domain).attributes.values()
    stated = [each.default_value for each in every if each.default_value.type]
    node = onnx.NodeProto(op_type=op, domain=domain, attribute=stated)
    return plain_attributes(node)
