"""Torch's exported program → an ONNX graph whose weights are inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from memplan.errors import MemplanError, UsageError
from memplan.proto.opset import OPSET
from memplan.pytorch.aten_forms import aten_forms
from memplan.pytorch.prepared_step import ASSIGNED, PreparedStep, first_names, user_name
from memplan.pytorch.tidy import INTEGER_SEEDS, RANDOM
from memplan.pytorch.torch_errors import refusal
from memplan.pytorch.torch_internals import internal, replaced
from memplan.pytorch.trace import quiet

aten = torch.ops.aten
_WRITTEN_OUT = {
    aten.grid_sampler.default,
    aten.grid_sampler_2d.default,
    aten.upsample_bicubic2d.default,
    aten.upsample_bicubic2d.vec,
    aten.select_scatter.default,
}
"""Operators whose ONNX form has no gradient rule, or is wrong: PyTorch writes them out."""
_ROUNDS = 2
_LARGEST_CONSTANT = 1024
"""Elements; larger constants (masks, zeros) are computed in the graph."""


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """An ONNX graph without weights.

    ``inputs`` are its inputs in order: parameters and buffers under the user's names, then the
    batch. ``renewed`` maps outputs to the buffers, and parameters that are not trained, whose next
    value they are. ``checkpoints`` is how many tensors the author has marked as such.
    """

    model: onnx.ModelProto
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    batch: tuple[str, ...]
    renewed: Mapping[str, str]
    checkpoints: int = 0


@cache
def registry() -> Any:
    """What has ONNX forms: torch's, and instead of some of them our own."""
    from memplan.pytorch.translations import TRANSLATIONS

    with quiet():
        registration = internal("torch.onnx._internal.exporter._registration")
        found = registration.ONNXRegistry.from_torchlib(opset_version=OPSET)
        for operator, own in TRANSLATIONS.items():
            found.register_op(operator, own, is_complex=False)
    return found


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    decomp = internal("torch.onnx._internal.exporter._decomp")
    with quiet():
        known = set(decomp.get_onnx_implemented_overloads(registry())) - _WRITTEN_OUT
        return aten_forms(decomp.create_onnx_friendly_decomposition_table(known))


def decomposed(program: Any) -> Any:
    """The forward program in operators that have an ONNX form; in-place updates are outputs.

    Raises:
        ModelError: torch cannot decompose an operator.
    """
    try:
        with quiet():
            return program.run_decompositions(dict(_decompositions()))
    except MemplanError:
        raise
    except Exception as error:
        raise refusal("torch cannot decompose a part of the model", error) from error


def to_onnx(program: Any, prepared: PreparedStep) -> ExportedGraph:
    """The ONNX graph of a decomposed program.

    Raises:
        ModelError: an operator has no ONNX form.
    """
    interface = _Interface(program, prepared)
    interface.declare()
    model = _translated(interface.program)
    return interface.named(model)


class _Interface:
    """Which input and output of a program is which of the user's tensors."""

    def __init__(self, program: Any, prepared: PreparedStep) -> None:
        self.program = program
        self.graph = program.graph_module.graph
        self.signature = program.graph_signature
        module = prepared.module
        self.prepared = prepared
        self.canonical = {name: user_name(own) for name, own in first_names(module).items()}

    def declare(self) -> None:
        """Say of all parameters and buffers that they are inputs, and of new ones that they are
        outputs."""
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        self.given = [s for s in self.signature.input_specs if s.kind is not InputKind.CUSTOM_OBJ]
        ends = next(iter(reversed(self.graph.nodes)))
        pairs = list(zip(ends.args[0], self.signature.output_specs, strict=True))
        pairs = self._handed_out([p for p in pairs if isinstance(p[0], torch.fx.Node)])
        self.made = [spec for _, spec in pairs]
        inputs = [
            InputSpec(InputKind.USER_INPUT, s.arg, None) if s.kind in kinds else s
            for s in self.given
        ]
        outputs = [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
            for node in self._apart([node for node, _ in pairs])
        ]
        self.program._graph_signature = ExportGraphSignature(inputs, outputs)

    def _handed_out(self, pairs: list[tuple[Any, OutputSpec]]) -> list[tuple[Any, OutputSpec]]:
        """Results without a batch that was written over. What was assigned to a buffer is its next
        value, rather than what was written into it before."""
        beside = iter(("loss", *result_names(self.program)))
        found: list[tuple[Any, OutputSpec]] = []
        for node, spec in pairs:
            name = next(beside) if spec.kind is OutputKind.USER_OUTPUT else ""
            if name.startswith(ASSIGNED):
                target = name.removeprefix(ASSIGNED)
                spec = OutputSpec(OutputKind.BUFFER_MUTATION, spec.arg, target)
                found = [p for p in found if p[1].target != target]
            if spec.kind is not OutputKind.USER_INPUT_MUTATION:
                found.append((node, spec))
        return found

    def _apart(self, nodes: list[Any]) -> list[Any]:
        """The nodes that the program gives out, copied where one is an input or stands twice."""
        ends = next(iter(reversed(self.graph.nodes)))
        found: list[Any] = []
        for node in nodes:
            if node.op == "placeholder" or node in found:
                with self.graph.inserting_before(ends):
                    copy = self.graph.call_function(aten.clone.default, (node,))
                copy.meta = dict(node.meta)
                node = copy
            found.append(node)
        ends.args = (tuple(found),)
        return found

    def named(self, model: Any) -> ExportedGraph:
        """Give inputs and outputs the user's names."""
        given = [s for s in self.given if s.kind is not InputKind.CONSTANT_TENSOR]
        batch = iter(self.prepared.batch)
        inputs: list[str] = []
        parameters: list[str] = []
        buffers: list[str] = []
        for spec in given:
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(next(batch))
                continue
            name = self.canonical[str(spec.target)]
            inputs.append(name)
            (parameters if spec.kind is InputKind.PARAMETER else buffers).append(name)
        metrics = metric_names(self.program, {*inputs, "loss"})
        own = iter(("loss", *metrics))
        outputs: list[str] = []
        renewed: dict[str, str] = {}
        for output in self.made:
            if output.kind is OutputKind.USER_OUTPUT:
                outputs.append(next(own))
                continue
            name = self.canonical[str(output.target)]
            outputs.append(f"{name}_new")
            renewed[outputs[-1]] = name
        _rename(model, inputs, outputs)
        return ExportedGraph(
            model=model.model_proto,
            parameters=tuple(parameters),
            buffers=tuple(buffers),
            batch=tuple(self.prepared.batch),
            renewed=renewed,
        )


def result_names(program: Any) -> tuple[str, ...]:
    """What stands beside the loss: metrics, and what is assigned to buffers."""
    spec = program.call_spec.out_spec
    unflatten = internal("torch.utils._pytree").tree_unflatten
    result = unflatten(list(range(spec.num_leaves)), spec)
    return tuple(result[1]) if isinstance(result, tuple) else ()


def metric_names(program: Any, taken: Collection[str]) -> tuple[str, ...]:
    """What the metrics of a step are called.

    Raises:
        UsageError: an input or output of the step has such a name.
    """
    names = tuple(name for name in result_names(program) if not name.startswith(ASSIGNED))
    for name in names:
        if (
            name in taken
            or name.removesuffix("_new") in taken
            or name.removesuffix("_grad") in taken
        ):
            raise UsageError(
                f"'{name}' names a metric and something else, too", "rename the metric"
            )
    return names


def _rename(model: Any, inputs: list[str], outputs: list[str]) -> None:
    """Name the inputs and outputs of torch's ONNX program; other tensors make way."""
    graph = model.model.graph
    wanted = {*inputs, *outputs}
    for node in graph:
        for value in node.outputs:
            if value.name in wanted:
                value.name = f"{value.name}/value"
    for value in [*graph.initializers.values()]:
        if value.name in wanted:
            value.name = f"{value.name}/value"
    for value, name in zip(graph.inputs, inputs, strict=True):
        value.name = name
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name


def _translated(program: Any) -> Any:
    """Torch's ONNX program, optimized; the program is decomposed already."""
    decompose = "torch.onnx._internal.exporter._fx_passes.decompose_with_registry"
    try:
        with quiet(), replaced(decompose, lambda program, *_a, **_k: program):
            # As torch.onnx.export does it, which builds its registry anew every time.
            result = internal("torch.onnx._internal.exporter._core.export")(
                program, registry=registry(), opset_version=OPSET, optimize=False, verbose=False
            )
            _folded(result.model)
    except MemplanError:
        raise
    except Exception as error:
        raise refusal("torch's exporter has no ONNX form for a part of the model", error) from error
    return result


def _folded(model: Any) -> None:
    """What onnxscript's optimizer does, in place, but for its rules of fusion: those are the
    runtime's business, and take quadratic time."""
    from onnx_ir.passes import Sequential, common
    from onnxscript.optimizer import fold_constants_ir

    Sequential(common.InlinePass(), common.RemoveUnusedFunctionsPass())(model)
    _tell_apart(model)
    for _ in range(_ROUNDS):
        fold_constants_ir(
            model,
            onnx_shape_inference=True,
            input_size_limit=_LARGEST_CONSTANT,
            output_size_limit=_LARGEST_CONSTANT,
            should_fold=_folds,
        )
        common.RemoveUnusedNodesPass()(model)
    Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)


def _tell_apart(model: Any) -> None:
    """Give random operators seeds of their own: two that read the same are not the same."""
    for number, node in enumerate(model.graph.all_nodes()):
        if not node.domain and node.op_type in RANDOM:
            kind = ir.AttrInt64 if node.op_type in INTEGER_SEEDS else ir.AttrFloat32
            node.attributes["seed"] = kind("seed", number)


def _folds(node: Any) -> bool | None:
    """Refuse what draws random numbers, and what would be large before it is computed; None leaves
    it to the optimizer."""
    if node.op_type in RANDOM:
        return False
    for value in node.outputs:
        sizes = [n for n in value.shape or () if isinstance(n, int)]
        if math.prod(sizes) > _LARGEST_CONSTANT:
            return False
    return None
