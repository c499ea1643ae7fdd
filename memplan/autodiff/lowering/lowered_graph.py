"""A training graph of onnxruntime-training → the same in standard operators, with its contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from memplan.autodiff.blunt import make_blunt
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.lowering.boundary import YIELD, Boundary
from memplan.autodiff.lowering.convert import at_opset, keep_domains
from memplan.autodiff.lowering.interface import (
    Accumulator,
    accumulators,
    drop_accumulators,
    drop_buffers,
    offer_values,
    renew_statistics,
)
from memplan.autodiff.lowering.ort_checkpoint import Checkpoint, apply_checkpoint
from memplan.autodiff.lowering.recurrent_lowering import RECURRENT, Recurrent
from memplan.autodiff.lowering.update import Folded, fold_updates
from memplan.autodiff.lowering.walk import LOSSES, PlacedNode, Walk, require_lowerings
from memplan.autodiff.optimizers.optimizer import Optimizer
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.ir.contract import Contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.proto.edit import drop_named, live_nodes, remove_unread, replace_nodes
from memplan.proto.metadata import (
    APART,
    FORWARD_KEY,
    PHASE_KEY,
    STATE,
    get_metadata,
    node_metadata,
    set_metadata,
)
from memplan.proto.model_checks import find_fault, require_valid
from memplan.proto.nodes import domain_of
from memplan.shapes.infer import stated_types
from memplan.shapes.prepare import FUNCTION_OPS, inline_functions, name_nodes
from memplan.shapes.shape_checks import check_stated
from memplan.shapes.tensor_type import FLOATS, UNKNOWN, TensorType, value_info
from memplan.shapes.training_ops import differentiated

_BACKWARD_NAME = "_Grad/"  # in names of backward nodes, behind that of the forward node


@dataclass(frozen=True, slots=True)
class LoweringRequest:
    """The loss where a user names it, the optimizer, and values of parameters."""

    loss: str | None = None
    optimizer: Optimizer | None = None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """A training graph in standard operators.

    ``replaced`` counts the foreign operators by name. ``fed`` are gradients of outputs that are
    graph inputs, ``seeded`` is the output whose gradient is 1 by ORTModule's boundary. ``taken``
    maps parameters to the tensors that are their gradients.
    """

    model: onnx.ModelProto
    contract: Contract
    replaced: Mapping[str, int]
    fed: tuple[str, ...] = ()
    seeded: str | None = None
    taken: Mapping[str, str] = field(default_factory=dict)


def lower_model(model: onnx.ModelProto, request: LoweringRequest) -> Lowered:
    """Lower a model; it is not changed.

    Raises:
        ModelError: an operator has no lowering, does not fit its inputs, or there is no gradient
            for the optimizer.
        UsageError: the loss is not a scalar output of the forward part.
    """
    return _GraphLowering(model, request).run()


class _GraphLowering:
    def __init__(self, model: onnx.ModelProto, request: LoweringRequest) -> None:
        self.request = request
        self.model = _prepared(model)
        self.graph = self.model.graph
        self.boundary = Boundary(request.loss)
        self.new_values: dict[str, str] = {}
        self.statistics: frozenset[str] = frozenset()
        self.accumulators: tuple[Accumulator, ...] = ()
        self.fed: tuple[str, ...] = ()
        self.updates = Folded()

    def run(self) -> Lowered:
        self._open_interface()
        recurrent = Recurrent(self.graph)
        walk = Walk(self.model, {YIELD: self.boundary.entry, **recurrent.entries})
        walk.run()
        self.fed = tuple(walk.renamed.get(name, name) for name in self.boundary.fed)
        gradients = self._gradients(walk.emitter)
        taken = {base: name for name, base in gradients.items()}
        if self.request.optimizer is not None:
            self._update(walk, self.request.optimizer, gradients)
            gradients = {}
        loss = self._loss(walk.emitter)
        made = list(walk.nodes())
        self._assemble(walk, made, loss, gradients)
        contract = self._contract(loss, gradients)
        told = {**contract.as_metadata(), STATE: APART}  # as its own sessions were fed
        set_metadata(self.model, {**get_metadata(self.model), **told})
        make_blunt(self.model)
        _require_sound(self.model)
        seeded = self.boundary.seeded
        return Lowered(self.model, contract, walk.replaced, self.fed, seeded, taken)

    # -- before the walk -------------------------------------------------------------------------

    def _open_interface(self) -> None:
        graph = self.graph
        found = self.accumulators = tuple(accumulators(graph))
        drop_accumulators(graph, found)
        renewed = renew_statistics(graph)
        self.statistics = frozenset(renewed.values())
        self.new_values |= renewed
        stored = {tensor.name for tensor in graph.initializer}
        trained = {differentiated(value.name) for value in graph.output}
        offer_values(graph, [n for n in stored if n in trained or n in self.statistics])
        if self.request.checkpoint is not None:
            apply_checkpoint(graph, self.request.checkpoint)
        name_nodes(graph)

    # -- behind it -------------------------------------------------------------------------------

    def _gradients(self, emitter: Emitter) -> dict[str, str]:
        """Graph outputs and the inputs that they are gradients of. One of another type is an output
        like others, unless an optimizer is to use it.

        Raises:
            ModelError: a gradient has not the shape of what it is named for, or, for an optimizer,
                not its type.
        """
        given = {value.name for value in self.graph.input}
        found = {}
        for value in self.graph.output:
            base = differentiated(value.name)
            if base is None or base not in given:
                continue
            own, other = (emitter.types.get(name, UNKNOWN) for name in (value.name, base))
            same = own.dtype == other.dtype
            if not same and self.request.optimizer is None:
                continue
            if not same or not _may_agree(own, other):
                raise ModelError(
                    f"'{value.name}' has another type or shape than '{base}', which it is named "
                    "to be the gradient of",
                    "export the model again; the file is damaged or was edited",
                )
            found[value.name] = base
        return found

    def _update(self, walk: Walk, optimizer: Optimizer, gradients: Mapping[str, str]) -> None:
        if not gradients:
            raise ModelError(
                "the optimizer has nothing to update: the file has no gradient of a graph input",
                "give the training model, not the evaluation model",
            )
        values = {base: walk.emitter.tensor(name) for name, base in gradients.items()}
        self.updates = fold_updates(walk.emitter, optimizer, values, self.graph.node)
        self.new_values |= self.updates.new_values
        drop_named(self.graph.output, gradients)

    def _loss(self, emitter: Emitter) -> str | None:
        """The loss output: as named, as the boundary has it, or the scalar whose gradient is stored
        (which is 1), or the first one.

        Raises:
            UsageError: the named one is not there.
        """
        names = [*self.boundary.outputs, *(value.name for value in self.graph.output)]
        scalars = [n for n in dict.fromkeys(names) if _is_scalar(emitter.types.get(n, UNKNOWN))]
        scalars = [n for n in scalars if n not in self.new_values]
        if self.request.loss is not None:
            if self.request.loss not in scalars:
                raise UsageError(
                    f"--loss {self.request.loss}: no scalar output of the forward part",
                    "scalar outputs: " + (", ".join(scalars[:8]) or "none"),
                )
            return self.request.loss
        if self.boundary.outputs:
            return self.boundary.seeded
        scalars = [n for n in scalars if differentiated(n) is None]
        stored = {tensor.name for tensor in self.graph.initializer}
        begun = [name for name in scalars if f"{name}_grad" in stored]
        return next(iter((*begun, *scalars)), None)

    def _assemble(
        self, walk: Walk, made: list[PlacedNode], loss: str | None, gradients: Mapping[str, str]
    ) -> None:
        """Put nodes, inputs, outputs and types into the model."""
        graph, emitter, updates = self.graph, walk.emitter, self.updates
        replace_nodes(graph, [item.node for item in made])
        keep_domains(self.model, {domain_of(node) for node in graph.node})
        graph.initializer.extend(emitter.initializers.values())
        for name, found in emitter.inputs.items():
            graph.input.append(value_info(walk.renamed.get(name, name), found))
        there = {value.name for value in graph.output}
        names = [n for n in dict.fromkeys(self.boundary.outputs) if n not in there]
        names = sorted(names, key=lambda name: name != loss)
        names += [value.name for value in graph.output]
        types = {name: emitter.types.get(name, UNKNOWN) for name in names}
        for name, value in updates.outputs.items():
            types[name] = value.type
        del graph.output[:]
        graph.output.extend(_output(name, found) for name, found in types.items())
        _name_outputs(graph, {n: walk.named(value) for n, value in updates.outputs.items()})
        remove_unread(graph)
        drop_buffers(graph, self.accumulators)
        _state_types(graph, emitter, walk.renamed)
        self._mark_phases(made, loss, gradients)

    def _mark_phases(
        self, made: list[PlacedNode], loss: str | None, gradients: Mapping[str, str]
    ) -> None:
        """Say of every node behind the forward part what it is, and what it belongs to."""
        origins = {item.node.name: item.origin for item in made}
        ends = (loss or "", *self.boundary.outputs, *self._plain(gradients))
        forward = {node.name for node in live_nodes(self.graph.node, ends)}
        names = {node.name for node in self.graph.node} | set(filter(None, origins.values()))
        for node in self.graph.node:
            if node.name in forward or PHASE_KEY in node_metadata(node):
                continue
            update = node.name in self.updates.nodes
            phase = Phase.UPDATE if update else Phase.BACKWARD
            node.metadata_props.add(key=PHASE_KEY, value=phase)
            before, found, _ = (origins.get(node.name) or node.name).partition(_BACKWARD_NAME)
            if found and before in names:
                node.metadata_props.add(key=FORWARD_KEY, value=before)

    def _plain(self, gradients: Mapping[str, str]) -> Iterator[str]:
        """Outputs that are neither gradients nor new values."""
        known = {*gradients, *self.new_values}
        return (value.name for value in self.graph.output if value.name not in known)

    def _contract(self, loss: str | None, gradients: Mapping[str, str]) -> Contract:
        parameters = set(gradients.values()) | set(self.updates.new_values.values())
        parameters -= set(self.updates.roles)
        if self.request.checkpoint is not None:
            parameters |= self.request.checkpoint.values.keys()
        roles: dict[str, Role] = {}
        behind = False  # the exporter puts all weights, frozen ones too, behind what a user feeds
        for value in self.graph.input:
            name = value.name
            behind = behind or name in parameters
            floats = value.type.tensor_type.elem_type in FLOATS
            guessed = behind and floats and self.request.checkpoint is None
            roles[name] = self._input_role(name, name in parameters or guessed)
        for value in self.graph.output:
            name = value.name
            roles[name] = Role.NEW_VALUE if name in self.new_values else Role.OUTPUT
            roles[name] = Role.GRADIENT if name in gradients else roles[name]
        if loss is not None:
            roles[loss] = Role.LOSS
        return Contract(roles, self.new_values, dict(gradients), stated=True)

    def _input_role(self, name: str, weight: bool) -> Role:
        if name in self.updates.roles:
            return self.updates.roles[name]
        if name in self.fed:
            return Role.GRADIENT
        if name in self.statistics:
            return Role.RUNNING_STATISTIC
        return Role.PARAMETER if weight else Role.BATCH


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A flat copy at a new opset, of which every operator is known, and whose own are valid."""
    functions = frozenset(FUNCTION_OPS)
    flat, _ = inline_functions(model, functions)
    result = at_opset(flat)
    result, _ = inline_functions(result, LOSSES)
    name_nodes(result.graph)
    require_lowerings(result, {YIELD, *RECURRENT})
    require_valid(result)
    check_stated(result, stated_types(result.graph))
    return result


def _is_scalar(found: TensorType) -> bool:
    return found.is_float and found.elements == 1


def _may_agree(first: TensorType, second: TensorType) -> bool:
    """Whether two shapes are equal, as far as they are known."""
    if first.shape is None or second.shape is None:
        return True
    pairs = zip(first.shape, second.shape, strict=False)
    sizes = all(a == b or isinstance(a, str) or isinstance(b, str) for a, b in pairs)
    return len(first.shape) == len(second.shape) and sizes


def _output(name: str, found: TensorType) -> onnx.ValueInfoProto:
    if not found.dtype:
        raise ModelError(
            f"the type of the graph output '{name}' is not known",
            "add value_info for it, or run onnx.shape_inference",
        )
    return value_info(name, found)


def _name_outputs(graph: onnx.GraphProto, wanted: Mapping[str, str]) -> None:
    """Let tensors be called what graph outputs are to be called: output → tensor."""
    names = {tensor: output for output, tensor in wanted.items()}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _state_types(graph: onnx.GraphProto, emitter: Emitter, renamed: Mapping[str, str]) -> None:
    """Value infos of all computed tensors that are no outputs."""
    known = {value.name for value in graph.output}
    own = {after: before for before, after in renamed.items()}
    del graph.value_info[:]
    for node in graph.node:
        for name in node.output:
            found = emitter.types.get(name) or emitter.types.get(own.get(name, ""), UNKNOWN)
            if name and name not in known and found.dtype:
                graph.value_info.append(value_info(name, found))


def _require_sound(model: onnx.ModelProto) -> None:
    """Check the result.

    Raises:
        MemplanError: the ONNX checker refuses it; our bug.
    """
    fault = find_fault(model)
    if fault is not None:
        raise MemplanError(
            f"the lowered graph was rejected: {fault}",
            "nothing was written; please report this with the model",
        )
