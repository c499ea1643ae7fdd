"""Nodes as the file has them: their operator, their bodies, and the names that they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

_STANDARD = ("", "ai.onnx")
_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


def is_standard(domain: str) -> bool:
    """Whether it is the domain of ONNX's own operators, which has two names."""
    return domain in _STANDARD


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of a node's operator; that of ONNX's own operators is empty."""
    return "" if is_standard(node.domain) else node.domain


def operator_key(node: onnx.NodeProto) -> str:
    """``domain:Op``, the key of the operator registries."""
    return f"{domain_of(node)}:{node.op_type}"


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether the node is a ``Constant``, which the runtime makes an initializer when it loads."""
    return node.op_type == "Constant" and is_standard(node.domain)


def describe_node(node: onnx.NodeProto, index: int) -> str:
    """A node as people can find it: its name, or its place and type when it has none."""
    return f"{node.name} ({node.op_type})" if node.name else f"node {index} ({node.op_type})"


class Described:
    """A node as :func:`describe_node` has it, behind a prefix. It is put into words only when it is
    printed: every node of a file is checked, and hardly any is at fault."""

    __slots__ = ("index", "node", "prefix")

    def __init__(self, prefix: str, node: onnx.NodeProto, index: int) -> None:
        self.prefix, self.node, self.index = prefix, node, index

    def __str__(self) -> str:
        return f"{self.prefix}{describe_node(self.node, self.index)}"


def subgraphs(node: onnx.NodeProto) -> Sequence[onnx.GraphProto]:
    """The bodies that ``node`` carries in its attributes (If, Loop, Scan)."""
    attributes = node.attribute
    if not attributes:  # most nodes of a large graph, asked many times
        return ()
    bodies: list[onnx.GraphProto] = []
    for attribute in attributes:
        kind = attribute.type
        if kind == _GRAPH:
            bodies.append(attribute.g)
        elif kind == _GRAPHS:
            bodies.extend(attribute.graphs)
    return bodies


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes in the bodies of ``node``, at any depth."""
    for body in subgraphs(node):
        yield from all_nodes(body.node)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Some nodes, and behind each those in its bodies."""
    for node in nodes:
        yield node
        yield from inner_nodes(node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and those in its nodes at any depth."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from all_graphs(body)


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Outer tensors that the bodies of ``node`` read, in order of first use."""
    bodies = subgraphs(node)
    return tuple(dict.fromkeys(n for body in bodies for n in free_names(body))) if bodies else ()


def free_names(body: onnx.GraphProto) -> tuple[str, ...]:
    """Names that a body reads and does not define itself, in order of first use."""
    own = {value.name for value in body.input}
    own |= {tensor.name for tensor in body.initializer}
    free: dict[str, None] = {}
    for node in body.node:
        for name in reads_of(node):
            if name not in own:
                free.setdefault(name)
        own.update(node.output)
    for value in body.output:
        if value.name not in own:
            free.setdefault(value.name)
    return tuple(free)


def reads_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names that a node reads, by input slot, and then those that its bodies read."""
    return (*(name for name in node.input if name), *captured_names(node))


def names_read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Names that some nodes or their bodies read."""
    return {name for node in nodes for name in reads_of(node)}
