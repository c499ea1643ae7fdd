"""How much work a file may cause: small files stay small.

A few kilobytes can ask for gigabytes: functions that call each other twice, vectors that double,
loops that are unrolled. Each limit here is far above what exporters write (the reason stands with
it) and is checked before the work. What only finds a shape is left out above its limit; anything
else is a :class:`~memplan.errors.ModelError` that names the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from memplan.errors import ModelError
from memplan.proto.nodes import all_nodes, is_standard

MOST_NESTED = 24
"""Bodies within bodies. Each takes three protobuf messages, and protobuf reads 100."""
MOST_NAME = 65_000
"""Bytes of a name. Arrays of runs are kept in archives under them, which allow 65,535."""
MOST_OUTPUTS = 1 << 16
"""Graph outputs. For every node it is known which of them are held: a bit each, 512 MB here."""
INLINED_NODES, INLINED_FACTOR = 20_000, 100
"""Nodes after inlining: so many, or so many times those of the file. A function of an exporter
has some ten nodes, and calls few others."""
INLINED_BYTES = 256 << 20
"""Bytes of inlined nodes: a constant in a function is copied at every call."""
MOST_PROPAGATED = 1 << 20
"""Elements of vectors whose values ONNX propagates through a graph: it takes 100 bytes for each.
Shapes have less than ten."""
MOST_FOLDED = 1 << 22
"""Elements of small tensors that are evaluated to find shapes: 32 MB."""
MOST_CONSTANT = 1 << 22
"""Elements of a constant that a gradient puts into the file: 16 to 32 MB. It is enough for four
million steps of a Loop, or to resize an axis from 2,048 to 2,048."""
MOST_TEXT = 1 << 16
"""Characters of the scopes of a node that are parsed; paths of layers have a hundred."""


def require(count: int, most: int, what: str, hint: str = "") -> None:
    """Check a count against its limit.

    Raises:
        ModelError: ``what`` (which follows the count) and the limit.
    """
    if count > most:
        raise ModelError(
            f"{count:,} {what}; memplan takes at most {most:,}",
            hint or "the file is damaged, or was made to be hard to read",
        )


@dataclass(frozen=True, slots=True)
class _Size:
    """Of nodes, with all that is inlined for them."""

    nodes: int = 0
    nbytes: int = 0


def require_inlinable(model: onnx.ModelProto) -> None:
    """Check what inlining the model's own functions would make, without doing it: in linear time.

    A function that calls itself is left to the inliner, which refuses it.

    Raises:
        ModelError: more nodes or bytes than the limits.
    """
    functions = {(_domain(f.domain), f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], _Size] = {}
    for key in _callees_first(functions):
        sizes[key] = _inlined(functions[key].node, sizes)
    total = _inlined(model.graph.node, sizes)
    written = sum(1 for f in model.functions for _ in all_nodes(f.node))
    written += sum(1 for _ in all_nodes(model.graph.node))
    hint = "functions call each other too often; inline them before, or export fewer"
    most = max(INLINED_NODES, INLINED_FACTOR * written)
    require(total.nodes, most, "nodes after inlining the model's functions", hint)
    require(total.nbytes, INLINED_BYTES, "bytes of nodes after inlining functions", hint)


def _domain(domain: str) -> str:
    return "" if is_standard(domain) else domain


def _inlined(nodes: Sequence[onnx.NodeProto], sizes: dict[tuple[str, str], _Size]) -> _Size:
    count = nbytes = 0
    for node in all_nodes(nodes):
        called = sizes.get((_domain(node.domain), node.op_type))
        count += called.nodes if called is not None else 1
        nbytes += called.nbytes if called is not None else 0
    return _Size(count, nbytes + sum(node.ByteSize() for node in nodes))


def _callees_first(
    functions: dict[tuple[str, str], onnx.FunctionProto],
) -> list[tuple[str, str]]:
    """The functions, each behind those that it calls; calls that close a cycle are ignored."""
    calls = {
        key: [
            called
            for node in all_nodes(function.node)
            if (called := (_domain(node.domain), node.op_type)) in functions
        ]
        for key, function in functions.items()
    }
    order: dict[tuple[str, str], None] = {}
    seen: set[tuple[str, str]] = set()
    for start in functions:
        stack = [(start, False)]
        while stack:
            key, done = stack.pop()
            if done:
                order[key] = None
            elif key not in seen:
                seen.add(key)
                stack.append((key, True))
                stack.extend((called, False) for called in calls[key] if called not in seen)
    return list(order)
