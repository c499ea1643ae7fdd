"""Which output belongs to which input, of whatever kind: by what is stated, by name, by order.

For exporters without names the types and shapes of the outputs are held against the inputs.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque

from memplan.ir.graph import ABSENT, Graph, Tensor, TensorKind
from memplan.ir.naming import owner_names
from memplan.ir.stated import NOTHING, Stated, alike
from memplan.shapes.tensor_type import FLOATS

# Operators whose inputs from the second on are weights.
WEIGHTED = frozenset(
    {":MatMul", ":Gemm", ":Conv", ":ConvTranspose", ":LayerNormalization", ":BatchNormalization"}
    | {":InstanceNormalization", ":GroupNormalization", ":RMSNormalization"}
    | {":LSTM", ":GRU", ":RNN"}
)


def pair_outputs(graph: Graph, stated: Stated = NOTHING) -> dict[int, int]:
    """Output id → id of the input or initializer that it is the gradient or new value of.

    What is not ``stated`` is found by name; if nothing is, by shape.
    """
    sources = {
        tensor.name: tensor for tensor in graph.tensors if tensor.kind is not TensorKind.COMPUTED
    }
    told = stated.pairs
    pairs: dict[int, int] = {}
    for output in graph.outputs:
        tensor = graph.tensors[output]
        if tensor.name in told:
            pairs[output] = sources[told[tensor.name]].id
            continue
        base = next((name for name in owner_names(tensor.name) if name in sources), None)
        if base is not None:
            pairs[output] = sources[base].id
    if pairs or not any(is_scalar_float(graph.tensors[t]) for t in graph.outputs):
        return pairs
    return _pair_by_shape(graph)


def is_scalar_float(tensor: Tensor) -> bool:
    return tensor.dtype in FLOATS and math.prod(tensor.shape) == 1


def _pair_by_shape(graph: Graph) -> dict[int, int]:
    """For exporters without names, whose outputs are in the order of the inputs.

    A run of inputs with the types and shapes of all outputs but the numbers: of several, the one
    with the most weights, by their use. Without one, each output takes the first input that is left
    of its type and shape.
    """
    inputs = [graph.tensors[t] for t in graph.inputs if _is_float_array(graph.tensors[t])]
    outputs = [graph.tensors[t] for t in graph.outputs if _is_float_array(graph.tensors[t])]
    runs = [
        run
        for start in range(len(inputs) - len(outputs) + 1)
        if all(map(alike, run := inputs[start : start + len(outputs)], outputs))
    ]
    if runs:
        weights = weights_by_use(graph) if len(runs) > 1 else set[int]()
        best = max(runs, key=lambda run: sum(tensor.id in weights for tensor in run))
        return {made.id: given.id for made, given in zip(outputs, best, strict=True)}
    free: defaultdict[tuple[int, tuple[int, ...]], deque[int]] = defaultdict(deque)
    for tensor in inputs:
        free[tensor.dtype, tensor.shape].append(tensor.id)
    pairs: dict[int, int] = {}
    for tensor in outputs:
        if left := free[tensor.dtype, tensor.shape]:
            pairs[tensor.id] = left.popleft()
    return pairs


def _is_float_array(tensor: Tensor) -> bool:
    return tensor.dtype in FLOATS and bool(tensor.shape)


def weights_by_use(graph: Graph) -> set[int]:
    """Without paired outputs (a forward graph): floats that stand in a weight's place, in bodies
    too."""
    found = {
        t for node in graph.nodes if node.key in WEIGHTED for t in node.inputs[1:] if t != ABSENT
    }
    for node, bodies in graph.bodies.items():
        inside = {
            body.graph.tensors[t].name
            for body in bodies
            if body.graph is not None
            for t in weights_by_use(body.graph)
        }
        found.update(t for t in graph.nodes[node].captured if graph.tensors[t].name in inside)
    return {
        t
        for t in found
        if graph.tensors[t].kind is not TensorKind.COMPUTED and graph.tensors[t].dtype in FLOATS
    }
