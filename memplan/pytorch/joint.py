"""Autograd's own backward, captured whole: one program of forward and backward operators."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.exported_program import _decompose_exported_program
from torch.export.graph_signature import InputKind

from memplan.errors import ModelError
from memplan.pytorch.backward_rules import backward_table
from memplan.pytorch.errors import hint_for, reason_of
from memplan.pytorch.program import friendly_table
from memplan.pytorch.trace import quiet

aten = torch.ops.aten
_COPIES = (
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
)
_STRIDED = (
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    torch.ops.prims.as_strided_scatter.default,
)
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def joint(program: Any, trainable: Collection[str]) -> Any:
    """The exported forward program with the gradients of parameters.

    Args:
        program: what torch exported; which of its inputs require a gradient is changed.
        trainable: parameters to differentiate by, under the names in the program.

    Raises:
        ModelError: torch cannot differentiate it, or has no decomposition of an operator.
    """
    table = {**friendly_table(), **backward_table()}
    try:
        with quiet():
            _freeze(program, trainable)
        with quiet(), torch.backends.mkldnn.flags(enabled=False):
            result = _decompose_exported_program(
                program,
                cia_to_decomp={},
                python_decomp_table=table,
                joint_loss_index=0,  # among the program's own outputs: it has no other
                decompose_custom_triton_ops=False,
            )
    except Exception as error:
        raise ModelError(
            f"autograd's backward cannot be captured: {reason_of(error)}", hint_for(error)
        ) from error
    _without_copies(result.graph_module)
    return result


def _freeze(program: Any, trainable: Collection[str]) -> None:
    """Let all parameters but ``trainable`` require no gradient, and of these those that the loss
    does not depend on: autograd's export fails where a parameter has none."""
    module = program.graph_module
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    wanted = []
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            if spec.kind is InputKind.PARAMETER and spec.target in trainable:
                wanted.append(node)
            else:
                node.meta["val"] = value.detach()
    values = [node.meta["val"] for node in nodes]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    with mode, torch.enable_grad():
        copies = [v.clone() if isinstance(v, FakeTensor) else v for v in values]
        (loss, *_) = torch.fx.Interpreter(module).run(*copies)
        found = torch.autograd.grad(
            loss, [node.meta["val"] for node in wanted], allow_unused=True
        )
    for node, grad in zip(wanted, found, strict=True):
        if grad is None:
            node.meta["val"] = node.meta["val"].detach()


def _without_copies(module: Any) -> None:
    """Erase copies, and spell views as reshapes, which are right for any layout."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _COPIES:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif node.target in _VIEWS:
            node.target = aten.reshape.default
        elif node.target in _STRIDED:
            _as_reshape(module.graph, node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _as_reshape(graph: Any, node: Any) -> None:
    """Strided pieces that are whole tensors are reshapes."""
    scattered = node.target is not aten.as_strided.default
    source, sizes = node.args[1 if scattered else 0], node.args[2 if scattered else 1]
    value, given = node.meta["val"], node.args[0].meta["val"]
    if math.prod(sizes) != given.numel() or not (scattered or value.is_contiguous()):
        raise ModelError(
            "the backward part takes strided pieces of a tensor, which ONNX has no form for",
            "write the model with reshape and slicing instead of as_strided",
        )
    with graph.inserting_before(node):
        made = graph.call_function(aten.reshape.default, (source, list(value.shape)))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
