"""Running statistics of batch normalization: which they are, and their new values as outputs.

They are averages over steps and never descend along a gradient. A step in training mode renews
them, and whether the exporter thought of handing the new values out is left to nobody: every one
of them becomes the graph output ``NAME_new``, and ``NAME`` a graph input with its old value as the
default. Inference mode only reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper

from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.edit import rename_reads
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_standard, operator_key, subgraphs
from memplan.units import counted

_OP = "BatchNormalization"
_PLACES = (3, 4)
_RENEWED = (1, 2)
_COPIES = SAME_ELEMENTS | {":Cast"}
# Names that frameworks give them, for graphs in which the operator is written out.
_NAMED = re.compile(
    r"(^|[./_])(running_(mean|var)|moving_(mean|variance)|num_batches_tracked)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """``names`` are all running statistics of a graph, by place or by name.

    ``renewed`` maps those of normalizations in training mode to their graph outputs. ``notes``
    say what a user should know of the others.
    """

    names: frozenset[str] = frozenset()
    renewed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def new_values(self) -> dict[str, str]:
        """Graph output → the statistic whose next value it is."""
        return {new: old for old, new in self.renewed.items()}


def trains(node: onnx.NodeProto) -> bool:
    """Whether a BatchNormalization is in training mode: stated since opset 14, before that by
    further outputs."""
    stated = any(item.name == "training_mode" and item.i for item in node.attribute)
    return stated or any(node.output[1:])


def renew_statistics(graph: onnx.GraphProto) -> Statistics:
    """Find the running statistics, and make the new ones outputs of ``graph``, in place.

    Nodes that read the same statistic renew it one after the other, in order of the graph, as
    frameworks do with a layer that is called twice.
    """
    return _Renewal(graph).run()


class _Renewal:
    """The tensors of one graph: who makes them, and which of them are given from outside."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.makers = {name: node for node in graph.node for name in node.output}
        self.given = {tensor.name for tensor in graph.initializer}
        self.given |= {value.name for value in graph.input}
        self.names = NameAuthority(defined_names(graph))
        self.latest: dict[str, str] = {}
        self.readers: dict[str, list[str]] = {}

    def run(self) -> Statistics:
        found = {name for name in self.given if _NAMED.search(name)}
        fixed, inner = 0, 0
        for node, in_body in _normalizations(self.graph):
            roots = [self._root(node.input[slot]) for slot in _PLACES if slot < len(node.input)]
            found.update(root for root in roots if root is not None)
            if not trains(node):
                fixed += 1
            elif in_body:
                inner += 1
            else:
                self._renew(node)
        shared = {name: nodes for name, nodes in self.readers.items() if len(nodes) > 1}
        renewed = self._hand_out()
        return Statistics(
            frozenset(found), renewed, tuple(_notes(fixed, inner, shared, self._weights(found)))
        )

    def _root(self, name: str) -> str | None:
        """The initializer or graph input behind a statistic; None if it is computed."""
        while name not in self.given:
            node = self.makers.get(name)
            if node is None:
                return None
            if operator_key(node) in _COPIES:
                name = node.input[0]
            elif node.op_type == _OP and name in (node.output[k] for k in _slots(node)):
                name = node.input[_PLACES[list(node.output).index(name) - 1]]
            else:
                return None
        return name

    def _renew(self, node: onnx.NodeProto) -> None:
        """Let a node make its new statistics, from the latest ones."""
        while len(node.output) <= max(_RENEWED):
            node.output.append("")
        for place, slot in zip(_PLACES, _RENEWED, strict=True):
            root = self._root(node.input[place])
            if root is None:
                continue
            if root in self.latest and node.input[place] in self.given:
                node.input[place] = self.latest[root]
            if not node.output[slot]:
                node.output[slot] = self.names.fresh(f"{root}/renewed")
                self.makers[node.output[slot]] = node
            self.latest[root] = node.output[slot]
            self.readers.setdefault(root, []).append(node.name or node.output[0])

    def _hand_out(self) -> dict[str, str]:
        """Make the latest value of each statistic an output, and the statistic an input."""
        graph = self.graph
        held = {value.name for value in graph.output}
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        inputs = {value.name: value for value in graph.input}
        renewed: dict[str, str] = {}
        renamed: dict[str, str] = {}
        for root, last in self.latest.items():
            wanted = f"{root}_new"
            if root in inputs:
                kind = inputs[root].type
            else:
                stored = tensors[root]
                kind = helper.make_tensor_type_proto(stored.data_type, list(stored.dims))
                graph.input.append(onnx.ValueInfoProto(name=root, type=kind))
            renewed[root] = wanted if last == wanted else self.names.fresh(wanted)
            if last not in held:
                renamed[last] = renewed[root]
            elif last != renewed[root]:
                name = renewed[root]
                graph.node.append(helper.make_node("Identity", [last], [name], name=name))
            if renewed[root] not in held:
                graph.output.append(onnx.ValueInfoProto(name=renewed[root], type=kind))
        self._rename({old: new for old, new in renamed.items() if old != new})
        return renewed

    def _rename(self, names: Mapping[str, str]) -> None:
        if not names:
            return
        for node in self.graph.node:
            rename_reads(node, names)
            node.output[:] = [names.get(name, name) for name in node.output]
        for value in self.graph.value_info:
            value.name = names.get(value.name, value.name)

    def _weights(self, found: set[str]) -> list[str]:
        """Statistics that are read as something else, too: an exporter merged equal tensors."""
        others = {
            root
            for node in self.graph.node
            if node.op_type not in _COPIES
            for slot, name in enumerate(node.input)
            if name and not (node.op_type == _OP and slot in _PLACES)
            if (root := self._root(name)) in found and not _NAMED.search(root or "")
        }
        return sorted(name for name in others if name is not None)


def _slots(node: onnx.NodeProto) -> list[int]:
    return [slot for slot in _RENEWED if slot < len(node.output)]


def _normalizations(
    graph: onnx.GraphProto, in_body: bool = False
) -> Iterator[tuple[onnx.NodeProto, bool]]:
    """Every BatchNormalization, and whether it stands in a body."""
    for node in graph.node:
        if node.op_type == _OP and is_standard(node.domain):
            yield node, in_body
        for body in subgraphs(node):
            yield from _normalizations(body, True)


def _notes(
    fixed: int, inner: int, shared: Mapping[str, list[str]], weights: list[str]
) -> Iterator[str]:
    if fixed:
        are = "is" if fixed == 1 else "are"
        yield (
            f"{counted(fixed, _OP + ' node')} {are} in inference mode: normalized by stored "
            "statistics, which no step changes; export the model in training mode to renew them"
        )
    if inner:
        are = "is" if inner == 1 else "are"
        yield (
            f"{counted(inner, _OP + ' node')} {are} in training mode inside a loop or branch: the "
            "new statistics are not outputs"
        )
    if shared:
        first = next(iter(shared))
        yield (
            f"{counted(len(shared), 'running statistic')} of several {_OP} nodes each "
            f"('{first}': {', '.join(shared[first][:3])}): renewed by one after the other; an "
            "exporter that merges equal initializers makes such files of separate layers, too"
        )
    if weights:
        yield (
            f"'{weights[0]}' is read as a running statistic and as a weight, so it is not trained; "
            "an exporter that merges equal initializers makes such files"
        )
