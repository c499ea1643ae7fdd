"""Rebuild rules: cheaper or safer ways to make a tensor again than running its producer.

A rule adds dormant nodes to the graph. They do not run unless a plan recomputes the tensor.

Dropout draws random numbers, so it is never run twice. Its output is rebuilt from the mask that
the backward pass keeps anyway, in the order in which ONNX Runtime's kernel computes, so that the
bits are equal: ``y = (cast(mask) · x) / (1 - ratio)`` on the CPU (measured), ``· 1/(1 - ratio)`` on
CUDA (from ``dropout_impl.cu``; not measured).

A mask that was drawn cannot be made again at all; it may be kept packed
(:mod:`memplan.planning.packed_masks`).

A tensor may also be copied to the host and read back from there (:mod:`memplan.planning.offload`):
``MemcpyToHost`` is a node of every plan, and the rule is ``MemcpyFromHost``, which needs nothing on
the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind
from memplan.planning.dormant import ON_HOST, Array, Dormant, Extended
from memplan.planning.packed_masks import add_packs
from memplan.solver.problem import Form

_FLOAT = 1


def extend(
    graph: Graph,
    values: Mapping[str, Array],
    provider: str,
    *,
    packs: bool = False,
    offload: frozenset[int] = frozenset(),
) -> Extended:
    """Add the rebuild rules that apply to ``graph``.

    Args:
        graph: the graph.
        provider: ``cpu`` or ``cuda``; their kernels round differently.
        values: contents of small constants by tensor name (ratios, training flags).
        packs: also that masks which were drawn may be kept packed; the graph is of opset 14 or
            later, and its shapes hold in every run.
        offload: tensors that may be copied to the host and read back.
    """
    builder = Dormant(graph, provider)
    for node in graph.nodes:
        if node.key == ":Dropout":
            ratio = _training_ratio(graph, node, values)
            if ratio is not None:
                _add_dropout(builder, node, ratio)
    if packs:
        add_packs(builder)
    for tensor in sorted(offload):
        _add_copies(builder, builder.tensors[tensor])
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


def _add_dropout(builder: Dormant, node: Node, ratio: float) -> None:
    """Dropout's output from its mask."""
    source, output = node.inputs[0], builder.tensors[node.outputs[0]]
    mask = node.outputs[1]
    kept_share = np.float32(1) - np.float32(ratio)
    op = "Div" if builder.provider == "cpu" else "Mul"
    scale = kept_share if op == "Div" else np.float32(1) / kept_share
    stem = builder.fresh_stem(f"{node.name}/rebuild")
    scale_id = builder.add_constant(f"{stem}_scale", np.asarray(scale, dtype=np.float32), output)
    first = len(builder.nodes)
    cast = builder.add_tensor(f"{stem}_mask", output, TensorKind.COMPUTED, first)
    kept = builder.add_tensor(f"{stem}_kept", output, TensorKind.COMPUTED, first + 1)
    builder.add_node(f"{stem}_cast", "Cast", (mask,), (cast,), {"to": _FLOAT})
    builder.add_node(f"{stem}_mul", "Mul", (cast, source), (kept,))
    made = builder.add_node(f"{stem}_scale", op, (kept, scale_id), (output.id,))
    builder.makers[output.id] = made
    builder.makers[cast], builder.makers[kept] = first, first + 1


def _add_copies(builder: Dormant, tensor: Tensor) -> None:
    """A tensor to the host and back."""
    first = len(builder.nodes)
    stem = builder.fresh_stem(f"{tensor.name}/offload")
    host = builder.add_tensor(f"{stem}_host", tensor, TensorKind.COMPUTED, first)
    out = builder.add_node(f"{stem}_out", "MemcpyToHost", (tensor.id,), (host,))
    back = builder.add_node(f"{stem}_back", "MemcpyFromHost", (host,), (tensor.id,))
    builder.forms.append(Form(ON_HOST, tensor.id, (out,), back))
