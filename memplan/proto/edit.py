"""Edits of protobuf graphs: copies, other nodes, and what nobody reads any more.

Elements of a protobuf list belong to their message: one that is deleted from it must not be used
again. So what is to stay is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import onnx
from google.protobuf.message import Message

from memplan.proto.nodes import reads_of, subgraphs

AnyMessage = TypeVar("AnyMessage", bound=Message)
Nodes = Callable[[onnx.NodeProto], bool]
"""A set of nodes, as a question."""


def copied(message: AnyMessage) -> AnyMessage:
    """A copy that may be changed and that outlives what it is a part of."""
    copy: AnyMessage = type(message)()
    copy.CopyFrom(message)
    return copy


def renamed(message: AnyMessage, name: str) -> AnyMessage:
    """A copy under another name."""
    copy: Any = copied(message)
    copy.name = name
    return copy  # type: ignore[no-any-return]


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let ``graph`` have copies of these nodes instead of its own, which may be among them."""
    kept = [copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def drop_named(values: Any, names: Container[str]) -> None:
    """Take entries out of a list of inputs, outputs, initializers or value infos, by name."""
    for index in reversed(range(len(values))):
        if values[index].name in names:
            del values[index]


def leave_out(node: onnx.NodeProto, outputs: Container[str], fewest: int = 1) -> None:
    """Let a node not make some of its optional outputs: their names become empty, and an absent
    last output is not listed, but for the ``fewest`` that are."""
    names = ["" if name in outputs else name for name in node.output]
    while len(names) > fewest and not names[-1]:
        names.pop()
    node.output[:] = names


def live_nodes(
    nodes: Sequence[onnx.NodeProto], wanted: Iterable[str], stays: Nodes = lambda _: False
) -> list[onnx.NodeProto]:
    """The nodes that ``wanted`` tensors depend on, in order.

    Args:
        nodes: sorted topologically.
        wanted: names of tensors.
        stays: nodes that are live whoever reads them, and with them what they read: those with
            effects, or those that are not the caller's to remove.
    """
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if stays(node) or any(name in needed for name in node.output if name):
            kept.append(node)
            needed.update(reads_of(node))
    kept.reverse()
    return kept


def remove_unread(
    graph: onnx.GraphProto,
    *,
    stays: Nodes = lambda _: False,
    read_before: Container[str] | None = None,
) -> None:
    """Dead code elimination: remove what no output of ``graph`` depends on, in place.

    That is nodes, initializers (those that are graph inputs too stay: a caller may give them), and
    value infos of tensors that are not there any more.

    Args:
        graph: its nodes are sorted topologically.
        stays: nodes that stay whoever reads them; see :func:`live_nodes`.
        read_before: names that were read before an edit. Then nothing goes but what this edit
            left without a reader: what was dead before is not touched. :func:`names_read` of the
            nodes before the edit gives them.
    """

    def untouched(node: onnx.NodeProto) -> bool:
        dead = read_before is not None and not any(n in read_before for n in node.output if n)
        return dead or stays(node)

    outputs = {value.name for value in graph.output}
    live = live_nodes(graph.node, outputs, untouched)
    if len(live) < len(graph.node):
        replace_nodes(graph, live)
    used = outputs.union(*map(reads_of, graph.node), (value.name for value in graph.input))
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if name not in used and (read_before is None or name in read_before):
            del graph.initializer[index]
    drop_stale_infos(graph)


def drop_stale_infos(graph: onnx.GraphProto) -> None:
    """Remove value infos of tensors that the graph does not define."""
    defined = {name for node in graph.node for name in node.output}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(value.name for value in graph.input)
    drop_named(graph.value_info, {value.name for value in graph.value_info} - defined)


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let ``node`` and its bodies read ``names[x]`` where they read ``x``, in place.

    A body that defines ``x`` itself goes on reading its own. None of the new names may be defined
    in a body.
    """
    for slot, name in enumerate(node.input):
        if name in names:
            node.input[slot] = names[name]
    for body in subgraphs(node):
        _rename_free(body, names)


def _rename_free(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """The same for all nodes of a body; a name is its own from where it is defined."""
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    outer = {old: new for old, new in names.items() if old not in own}
    for node in body.node:
        rename_reads(node, outer)
        for name in node.output:
            outer.pop(name, None)
    for value in body.output:
        value.name = outer.get(value.name, value.name)
