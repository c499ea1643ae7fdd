"""Dropout's output from its mask: a rebuild rule, cheaper and safer than running it again.

Dropout draws random numbers, so it is never run twice. Its output is rebuilt from the mask that
the backward pass keeps anyway, in the order in which ONNX Runtime's kernel computes, so that the
bits are equal: ``y = (cast(mask) · x) / (1 - ratio)`` on the CPU (measured), ``· 1/(1 - ratio)`` on
CUDA (from ``dropout_impl.cu``; not measured). On WebGPU Dropout runs on the CPU and its rebuild
would not, so there is none.
"""

from __future__ import annotations

import numpy as np

from memplan.ir.graph import ABSENT, Node, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.planning.forms.dormant import Dormant

_FLOAT = 1


def add_dropouts(builder: Dormant, facts: Facts) -> None:
    """Let the output of every Dropout be made of its mask, where that has the same bits."""
    for node in facts.graph.nodes if builder.provider != "webgpu" else ():
        ratio = _training_ratio(facts, node) if node.key == ":Dropout" else None
        if ratio is not None:
            _add_dropout(builder, node, ratio)


def _training_ratio(facts: Facts, node: Node) -> float | None:
    """The ratio of a Dropout in training mode with its mask kept in float32; else None."""
    mask_used = len(node.outputs) > 1 and node.outputs[1] != ABSENT
    if not mask_used or facts.graph.tensors[node.outputs[0]].dtype != _FLOAT:
        return None
    ratio, training = (facts.value(node, slot) for slot in (1, 2))
    if training is None or not training.reshape(-1)[0]:
        return None
    if ratio is None:
        return 0.5 if facts.absent(node, 1) else None
    return float(ratio.reshape(-1)[0])


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
