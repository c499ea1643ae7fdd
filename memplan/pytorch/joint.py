"""Autograd's own backward, captured whole: one graph of forward and backward operators.

PyTorch's AOTAutograd traces the user's module (:mod:`memplan.pytorch.live`) with the inputs of the
exported forward program, whose sizes and symbols are those of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export._trace import _ignore_backend_decomps
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule, Node
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts

from memplan.errors import MemplanError, ModelError
from memplan.pytorch.backward_rules import backward_table
from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.live import live
from memplan.pytorch.meta import MadeOnCpu, on_cpu
from memplan.pytorch.places import of_node
from memplan.pytorch.prepared_step import PreparedStep
from memplan.pytorch.program import friendly_table
from memplan.pytorch.scopes import label_backward
from memplan.pytorch.surrogate_exports import BACKWARD_THROUGH
from memplan.pytorch.torch_errors import refusal
from memplan.pytorch.trace import STORED, quiet

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
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_CHANGED = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}


def joint(
    program: ExportedProgram,
    prepared: PreparedStep,
    trainable: Collection[str],
    state: HiddenState,
    *,
    seeded: bool,
) -> ExportedProgram:
    """The step with the gradients of parameters.

    Args:
        program: what torch exported of the forward part.
        prepared: the step.
        state: what it finds in Python.
        trainable: parameters to differentiate by, under the names in the program.
        seeded: the gradient of the loss, with which autograd begins, is the last input, and not 1.

    Raises:
        ModelError: torch cannot differentiate it, or has no decomposition of an operator.
    """
    try:
        with quiet(), _ignore_backend_decomps():
            found = _traced(program, prepared, trainable, state, seeded)
    except MemplanError:
        raise
    except Exception as error:
        raise refusal("autograd's backward cannot be captured", error, prepared.module) from error
    _without_copies(found.graph_module)
    return found


def _traced(
    program: ExportedProgram,
    prepared: PreparedStep,
    trainable: Collection[str],
    state: HiddenState,
    seeded: bool,
) -> ExportedProgram:
    from torch._functorch.aot_autograd import _aot_export_function

    specs, values = _given(program, trainable)
    mode = detect_fake_mode(values)
    assert mode is not None
    without_values = any(value.is_meta for value in values)
    with mode, MadeOnCpu() if without_values else nullcontext():
        values = [on_cpu(value) for value in values]
        module, meta, *_ = _aot_export_function(
            live(prepared, specs, state),
            tuple(values),
            decompositions={**friendly_table(), **backward_table()},
            no_tangents=not seeded,
            trace_joint=True,
        )
    assert isinstance(module, GraphModule)
    label_backward(module)
    if mode.shape_env is not None:  # also writes sizes with the operators that ONNX has
        insert_deferred_runtime_asserts(module, mode.shape_env, "joint", export=True)
    outputs = _flatten(module, specs, list(meta.mutated_inp_runtime_indices), seeded)
    inputs, constants = _lifted(module, specs)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=constants,
    )


def _given(
    program: ExportedProgram, trainable: Collection[str]
) -> tuple[list[InputSpec], list[Tensor]]:
    """Parameters, buffers and batch, which require a gradient where one is wanted."""
    places = program.graph.find_nodes(op="placeholder")
    specs: list[InputSpec] = []
    values: list[Tensor] = []
    for node, spec in zip(places, program.graph_signature.input_specs, strict=True):
        if spec.kind in (*STORED, InputKind.USER_INPUT):
            trained = spec.kind is InputKind.PARAMETER and spec.target in trainable
            specs.append(spec)
            values.append(node.meta["val"] if trained else node.meta["val"].detach())
    return specs, values


def _flatten(
    module: GraphModule, specs: Sequence[InputSpec], changed: Sequence[int], seeded: bool
) -> list[OutputSpec]:
    """Let a graph of inputs and tangents, whose results are nested, be one of inputs alone whose
    results stand one behind the other, in place; what these are.

    Raises:
        NotImplementedError: an operator has an effect, which would have to be ordered.
    """
    graph = module.graph
    for node in graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            raise NotImplementedError(f"{node.args[1]} has an effect beside its result")
    given, ends = graph.find_nodes(op="placeholder"), graph.output_node()
    for tangent in () if seeded else given[len(specs) :]:
        graph.erase_node(tangent)
    results = list(ends.args[0])
    gradients = results[-len(specs) :]
    found: list[tuple[Node, OutputKind, str | None]] = []
    for k, node in zip(changed, results, strict=False):
        found.append((node, _CHANGED[specs[k].kind], specs[k].target or given[k].name))
    loss, *metrics = results[len(changed) : -len(specs)]
    found.append((loss, OutputKind.LOSS_OUTPUT, None))
    found += [(node, OutputKind.USER_OUTPUT, None) for node in metrics]
    for spec, node in zip(specs, gradients, strict=True):
        if node is not None:
            found.append((node, OutputKind.GRADIENT_TO_PARAMETER, spec.target))
    ends.args = (tuple(node for node, *_ in found),)
    return [OutputSpec(kind, TensorArgument(n.name), target) for n, kind, target in found]


def _lifted(
    module: GraphModule, specs: Sequence[InputSpec]
) -> tuple[list[InputSpec], dict[str, Tensor]]:
    """Let constants be inputs, in place; what the inputs are, and the constants by name."""
    graph = module.graph
    given = graph.find_nodes(op="placeholder")
    kinds = [(spec.kind, spec.target, spec.persistent) for spec in specs]
    kinds += [(InputKind.USER_INPUT, None, None)] * (len(given) - len(specs))  # the seed
    inputs = [
        InputSpec(kind, TensorArgument(node.name), target, persistent)
        for node, (kind, target, persistent) in zip(given, kinds, strict=True)
    ]
    constants: dict[str, Tensor] = {}
    places: dict[str, Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        value, name = getattr(module, str(node.target), None), f"live_{node.target}"
        if not isinstance(value, Tensor):
            continue
        if name not in places:
            with graph.inserting_before(given[0]):
                places[name] = graph.placeholder(name)
            places[name].meta = {"val": value}
            spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(places[name].name), name)
            inputs.insert(len(constants), spec)
            constants[name] = value.detach()
        node.replace_all_uses_with(places[name])
        graph.erase_node(node)
    return inputs, constants


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
