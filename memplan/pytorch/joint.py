"""Autograd's own backward, captured whole: one program of forward and backward operators."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.exported_program import _decompose_exported_program
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)

from memplan.errors import ModelError
from memplan.pytorch.backward_rules import backward_table
from memplan.pytorch.errors import refusal
from memplan.pytorch.live import Live, lift, traced_live
from memplan.pytorch.places import of_node
from memplan.pytorch.program import friendly_table
from memplan.pytorch.retrace import traced_once
from memplan.pytorch.scopes import modules_kept
from memplan.pytorch.surrogates import BACKWARD_THROUGH
from memplan.pytorch.trace import Prepared, quiet

aten = torch.ops.aten
_COPIES = (
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    BACKWARD_THROUGH,
)
_STRIDED = (
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    torch.ops.prims.as_strided_scatter.default,
)
_NO_GRADIENT = "did not receive a gradient"
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def joint(program: Any, trainable: Collection[str], live: Prepared | None = None) -> Any:
    """The exported forward program with the gradients of parameters.

    Args:
        program: what torch exported; which of its inputs require a gradient is changed.
        trainable: parameters to differentiate by, under the names in the program.
        live: the step, if its module is to be traced anew, since its backward is not that of the
            program.

    Raises:
        ModelError: torch cannot differentiate it, or has no decomposition of an operator.
    """
    run = None if live is None else Live(program, live)
    try:
        with quiet(), torch.backends.mkldnn.flags(enabled=False), traced_once():
            _freeze(program, trainable)
            try:
                result = _joined(program, run)
            except AssertionError as error:
                if _NO_GRADIENT not in str(error):
                    raise
                _freeze_unreached(program, run)
                result = _joined(program, run)
    except Exception as error:
        raise refusal(
            "autograd's backward cannot be captured", error, live and live.module
        ) from error
    _without_copies(result.graph_module)
    return result


def _joined(program: Any, live: Live | None) -> Any:
    with ExitStack() as stack:
        stack.enter_context(modules_kept())
        constants = stack.enter_context(traced_live(live)) if live is not None else {}
        result = _decompose_exported_program(
            program,
            cia_to_decomp={},
            python_decomp_table={**friendly_table(), **backward_table()},
            joint_loss_index=0,  # among the program's own outputs: it has no other
            decompose_custom_triton_ops=False,
        )
    if live is not None:
        lift(result, constants)
    return result


def seed(program: Any) -> None:
    """Let the gradient of the loss, which autograd begins with, be the last input, in place.

    Raises:
        ModelError: autograd's first node is not there.
    """
    graph, signature = program.graph_module.graph, program.graph_signature
    kinds = [spec.kind for spec in signature.output_specs]
    (outputs,) = next(iter(reversed(graph.nodes))).args
    loss = outputs[kinds.index(OutputKind.LOSS_OUTPUT)]
    ones = [
        node
        for node in graph.nodes
        if node.target is aten.ones_like.default and node.args[0] is loss
    ]
    if len(ones) != 1:
        raise ModelError(
            "where autograd's backward begins was not found, so that its loss cannot be scaled",
            "take the other road: --via grad",
        )
    with graph.inserting_after(_inputs(program)[-1]):
        given = graph.placeholder("loss_gradient")
    given.meta = dict(ones[0].meta)
    ones[0].replace_all_uses_with(given)
    graph.erase_node(ones[0])
    spec = InputSpec(InputKind.USER_INPUT, TensorArgument(given.name), None)
    program._graph_signature = ExportGraphSignature(
        [*signature.input_specs, spec], list(signature.output_specs)
    )
    program.graph_module.recompile()


def _inputs(program: Any) -> list[Any]:
    return [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]


def _freeze(program: Any, trainable: Collection[str]) -> None:
    """Let all parameters but ``trainable`` require no gradient, and of these those that nothing
    reads: autograd's export fails where a parameter has none."""
    for node, spec in zip(_inputs(program), program.graph_signature.input_specs, strict=True):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            wanted = spec.kind is InputKind.PARAMETER and spec.target in trainable
            if not wanted or not node.users:
                node.meta["val"] = value.detach()


def _freeze_unreached(program: Any, live: Live | None) -> None:
    """The same for parameters that are read, but on no way to the loss that has a derivative."""
    nodes = _inputs(program)
    values = [node.meta["val"] for node in nodes]
    wanted = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    with mode, torch.enable_grad():
        copies = [v.clone() if isinstance(v, FakeTensor) else v for v in values]
        run = live or torch.fx.Interpreter(program.graph_module).run
        (loss, *_) = run(*copies)
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    lost = {id(value) for value, grad in zip(wanted, grads, strict=True) if grad is None}
    for node in nodes:
        if id(node.meta["val"]) in lost:
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
    """Strided pieces that are all of a tensor, in its own order, are reshapes."""
    scattered = node.target is not aten.as_strided.default
    source, (sizes, strides) = node.args[int(scattered)], node.args[1 + scattered : 3 + scattered]
    given = node.args[0].meta["val"]
    plain = _in_order(_values(sizes), _values(strides))
    plain = plain and _in_order(list(given.shape), list(given.stride()))
    if math.prod(_values(sizes)) != given.numel() or not plain:
        where = of_node(node)
        raise ModelError(
            "the backward part takes strided pieces of a tensor, which ONNX has no form for"
            f"{f' ({where})' if where else ''}",
            "write the model with reshape and slicing instead of as_strided, or --via grad",
        )
    shape = list(given.shape) if scattered else list(sizes)
    if any(isinstance(size, torch.SymInt) for size in shape):
        shape = [-1] if len(shape) == 1 else shape
    with graph.inserting_before(node):
        made = graph.call_function(aten.reshape.default, (source, shape))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _values(sizes: Sequence[Any]) -> list[Any]:
    """Sizes, where some may be nodes of the graph."""
    return [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in sizes]


def _in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether strides are those of a tensor whose elements lie one behind the other."""
    step: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step = step * size
    return True
