"""Rebuild rules: cheaper or safer ways to make a tensor again than running its producer.

A rule adds dormant nodes to the graph. They do not run unless a plan recomputes the tensor.

Dropout draws random numbers, so it is never run twice. Its output is rebuilt from the mask that
the backward pass keeps anyway, in the order in which ONNX Runtime's kernel computes, so that the
bits are equal: ``y = (cast(mask) · x) / (1 - ratio)`` on the CPU (measured), ``· 1/(1 - ratio)`` on
CUDA (from ``dropout_impl.cu``; not measured).

A tensor may also be copied to the host and read back from there (:mod:`memplan.planning.offload`):
``MemcpyToHost`` is a node of every plan, and the rule is ``MemcpyFromHost``, which needs nothing on
the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind

Array = npt.NDArray[np.generic]
_FLOAT = 1


@dataclass(frozen=True, slots=True)
class Extended:
    """A graph with dormant nodes appended.

    ``makers`` maps tensor id → dormant node that makes it again; ``constants`` are the new
    initializers by name; ``first_dormant`` is the id of the first dormant node. ``copies`` are the
    tensors that may be offloaded: tensor id → how.
    """

    graph: Graph
    makers: Mapping[int, int]
    constants: Mapping[str, Array]
    first_dormant: int
    copies: Mapping[int, HostCopy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """How a tensor is offloaded: the nodes that copy it ``out`` to the host and ``back``, and the
    tensor on the ``host``."""

    out: int
    back: int
    host: int


def extend(
    graph: Graph,
    values: Mapping[str, Array],
    provider: str,
    offload: frozenset[int] = frozenset(),
) -> Extended:
    """Add the rebuild rules that apply to ``graph``.

    Args:
        graph: the graph.
        provider: ``cpu`` or ``cuda``; their kernels round differently.
        values: contents of small constants by tensor name (ratios, training flags).
        offload: tensors that may be copied to the host and read back.
    """
    builder = _Builder(graph, provider)
    for node in graph.nodes:
        if node.key == ":Dropout":
            ratio = _training_ratio(graph, node, values)
            if ratio is not None:
                builder.add_dropout(node, ratio)
    for tensor in sorted(offload):
        builder.add_copies(graph.tensors[tensor])
    return builder.finish()


def _training_ratio(graph: Graph, node: Node, values: Mapping[str, Array]) -> float | None:
    """The ratio of a Dropout in training mode with its mask kept in float32; else None."""
    mask_used = len(node.outputs) > 1 and node.outputs[1] != ABSENT
    if not mask_used or graph.tensors[node.outputs[0]].dtype != _FLOAT:
        return None
    ratio, training = _constant(graph, node, 1, values), _constant(graph, node, 2, values)
    if training is None or not bool(training):
        return None
    return 0.5 if ratio is None and _absent(node, 1) else None if ratio is None else float(ratio)


def _absent(node: Node, slot: int) -> bool:
    return slot >= len(node.inputs) or node.inputs[slot] == ABSENT


def _constant(graph: Graph, node: Node, slot: int, values: Mapping[str, Array]) -> float | None:
    if _absent(node, slot):
        return None
    value = values.get(graph.tensors[node.inputs[slot]].name)
    return None if value is None else float(np.asarray(value).reshape(-1)[0])


class _Builder:
    """Appends tensors and nodes with the next free ids."""

    def __init__(self, graph: Graph, provider: str) -> None:
        self.graph = graph
        self.provider = provider
        self.tensors = list(graph.tensors)
        self.nodes = list(graph.nodes)
        self.makers: dict[int, int] = {}
        self.copies: dict[int, HostCopy] = {}
        self.constants: dict[str, Array] = {}
        self.taken = {tensor.name for tensor in graph.tensors} | {n.name for n in graph.nodes}

    def fresh_stem(self, stem: str) -> str:
        """A stem that no name begins with: a file that was rewritten before has some of them."""
        free, count = stem, 2
        while any(name.startswith(f"{free}_") for name in self.taken):
            free, count = f"{stem}{count}", count + 1
        return free

    def finish(self) -> Extended:
        graph = replace(
            self.graph,
            nodes=tuple(self.nodes),
            tensors=tuple(self.tensors),
            metadata=self.graph.metadata + ({},) * (len(self.nodes) - len(self.graph.nodes)),
        )
        first = len(self.graph.nodes)
        return Extended(graph, self.makers, self.constants, first, self.copies)

    def add_tensor(self, name: str, like: Tensor, kind: TensorKind, producer: int) -> int:
        tensor = replace(
            like,
            id=len(self.tensors),
            name=name,
            kind=kind,
            producer=producer,
            readers=(),
            is_output=False,
        )
        self.tensors.append(tensor)
        return tensor.id

    def add_node(
        self,
        name: str,
        op: str,
        inputs: tuple[int, ...],
        output: int,
        attributes: Mapping[str, object] | None = None,
    ) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index, name, "", op, inputs, (output,), (), dict(attributes or {})))
        return index

    def add_dropout(self, node: Node, ratio: float) -> None:
        source, output = node.inputs[0], self.tensors[node.outputs[0]]
        mask = node.outputs[1]
        kept_share = np.float32(1) - np.float32(ratio)
        op = "Div" if self.provider == "cpu" else "Mul"
        scale = kept_share if op == "Div" else np.float32(1) / kept_share
        stem = self.fresh_stem(f"{node.name}/rebuild")
        scale_name = f"{stem}_scale"
        self.constants[scale_name] = np.asarray(scale, dtype=np.float32)
        scalar = replace(output, shape=(), nbytes=4)
        scale_id = self.add_tensor(scale_name, scalar, TensorKind.INITIALIZER, ABSENT)
        first = len(self.nodes)
        cast = self.add_tensor(f"{stem}_mask", output, TensorKind.COMPUTED, first)
        kept = self.add_tensor(f"{stem}_kept", output, TensorKind.COMPUTED, first + 1)
        self.add_node(f"{stem}_cast", "Cast", (mask,), cast, {"to": _FLOAT})
        self.add_node(f"{stem}_mul", "Mul", (cast, source), kept)
        self.makers[output.id] = self.add_node(f"{stem}_scale", op, (kept, scale_id), output.id)
        self.makers[cast], self.makers[kept] = first, first + 1

    def add_copies(self, tensor: Tensor) -> None:
        first = len(self.nodes)
        stem = self.fresh_stem(f"{tensor.name}/offload")
        host = self.add_tensor(f"{stem}_host", tensor, TensorKind.COMPUTED, first)
        out = self.add_node(f"{stem}_out", "MemcpyToHost", (tensor.id,), host)
        back = self.add_node(f"{stem}_back", "MemcpyFromHost", (host,), tensor.id)
        self.copies[tensor.id] = HostCopy(out, back, host)
