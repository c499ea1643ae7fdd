"""A step that was read: its graph, its tensors, its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.export.graph_signature import InputKind

from memplan.errors import ModelError, UsageError
from memplan.ir.roles import Averages
from memplan.pytorch.calls import calls_of
from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.places import lines_of, of_node
from memplan.pytorch.prepared_step import PreparedStep, prepare, user_name
from memplan.pytorch.program import ExportedGraph, decomposed, to_onnx
from memplan.pytorch.tidy import tidy
from memplan.pytorch.torch_checkpoints import regions_of
from memplan.pytorch.torch_errors import BATCH_NORMS
from memplan.pytorch.torch_optimizer import OptimizerSettings, read_optimizer
from memplan.pytorch.torch_step import FROZEN, TorchStep
from memplan.pytorch.trace import export
from memplan.pytorch.update_settings import Treatment, read_averages, read_treatment
from memplan.pytorch.values import content, onnx_type, precision
from memplan.units import counted

_MODAL = (
    *(
        nn.Dropout,
        nn.Dropout1d,
        nn.Dropout2d,
        nn.Dropout3d,
        nn.AlphaDropout,
        nn.FeatureAlphaDropout,
    ),
    *BATCH_NORMS,
    nn.MultiheadAttention,
    nn.RNNBase,
)
"""Modules that compute something else in evaluation mode."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A step, exported once.

    ``trainable`` are the parameters to differentiate by. ``dims`` are sizes of dynamic dimensions
    in the example, ``sizes`` the shapes of the batch with their names. ``given`` are the parameters
    and buffers that are inputs even where nothing renews them, ``averages`` those of the weights
    that the step keeps. ``state`` is what the step found in Python at the beginning.
    """

    prepared: PreparedStep
    program: Any
    optimizer: OptimizerSettings | None
    treatment: Treatment
    trainable: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    dims: Mapping[str, int]
    sizes: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    state: HiddenState
    given: frozenset[str] = frozenset()
    averages: Averages | None = None

    def forward(self) -> ExportedGraph:
        """The forward graph.

        Raises:
            ModelError: an operator has no ONNX form.
        """
        program = decomposed(self.program)
        exported = to_onnx(program, self.prepared)
        told = calls_of(self.program, program), lines_of(program)
        marks = tidy(exported.model, self.prepared.dynamic, regions_of(program), *told)
        return replace(exported, checkpoints=marks)

    @property
    def narrowest(self) -> float:
        """The unit of the narrowest float type that the step computes in, but for what
        ``torch.autocast`` makes narrower."""
        return _narrowest([self.program.graph])

    @property
    def narrowest_cast(self) -> float:
        """The same with that."""
        modules = self.program.graph_module.modules()
        return _narrowest([module.graph for module in modules if hasattr(module, "graph")])

    def place_of(self, name: str) -> str:
        """Where a parameter or buffer is read first: its module and the line of the user's code;
        empty where that is not known."""
        inputs = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        for node, spec in zip(inputs, specs, strict=False):
            if user_name(str(spec.target)) == name:
                return _read_at(node)
        return ""

    def place_of_node(self, name: str) -> str:
        """The module and the line of the user's code that a node was made in, likewise."""
        graphs = [
            part.graph for part in self.program.graph_module.modules() if hasattr(part, "graph")
        ]
        nodes = [node for graph in graphs for node in graph.nodes if node.name == name]
        return next((text for node in nodes if (text := of_node(node))), "")

    def bytes_of(self, name: str) -> Any:
        """A function that gives the elements of a parameter, buffer or state tensor."""
        return partial(content, self.tensors[name])


def _read_at(node: Any) -> str:
    """Where an input of a program is read first."""
    return next((text for user in node.users if (text := of_node(user))), "")


def _narrowest(graphs: Sequence[Any]) -> float:
    values = [node.meta.get("val") for graph in graphs for node in graph.nodes]
    return max((precision(v) for v in values if isinstance(v, Tensor)), default=2.0**-23)


def read_step(step: TorchStep) -> Reading:
    """Export a step and read its optimizer.

    Raises:
        ModelError: torch.export refuses the model.
        UsageError: a part of the step cannot be captured.
    """
    prepared = prepare(step)
    treatment = read_treatment(step)
    parameters = prepared.parameters()
    optimizer = None
    if step.optimizer is not None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        optimizer = read_optimizer(step.optimizer, names)
    able = [name for name, p in parameters.items() if p.requires_grad]
    left = [] if optimizer is None else [name for name in able if name not in optimizer.groups]
    trainable = tuple(name for name in able if name not in left)
    averages = read_averages(step, prepared, trainable)
    tensors: dict[str, Tensor] = {
        user_name(name): tensor for name, tensor in prepared.module.named_buffers()
    }
    tensors |= {name: parameter.detach() for name, parameter in parameters.items()}
    tensors |= optimizer.state if optimizer is not None else {}
    _check_types({**tensors, **prepared.batch})
    _check_one_device({**tensors, **prepared.batch})
    state = HiddenState(prepared)
    program, limits = export(prepared, state)
    _check_constants(program)
    return Reading(
        prepared=prepared,
        program=program,
        optimizer=optimizer,
        treatment=treatment,
        trainable=trainable,
        tensors=tensors,
        dims=_dims(prepared),
        sizes={name: _sizes(prepared, name) for name in prepared.batch},
        notes=(*_mode_notes(step.model), *_left_notes(step, left), *limits),
        state=state,
        given=_given(step, prepared),
        averages=averages,
    )


def _check_types(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not onnx_type(tensor):
            raise UsageError(f"'{name}' has the type {tensor.dtype}, which has no form in ONNX")


def _left_notes(step: TorchStep, left: Sequence[str]) -> tuple[str, ...]:
    """Which parameters the optimizer leaves out, though they require a gradient."""
    if not left:
        return ()
    what = "constants of the graph; --frozen inputs lets them change"
    return (
        f"{counted(len(left), 'parameter')} that require a gradient are in no group of the "
        f"optimizer, and are not trained: {', '.join(left[:3])}"
        + (f" ({what})" if step.frozen == "constants" else ""),
    )


def _given(step: TorchStep, prepared: PreparedStep) -> frozenset[str]:
    """What is an input even where the step does not renew it: what the state dict holds, but for
    tables of integers, which decide on sizes.

    Raises:
        UsageError: the step asks for something else.
    """
    if step.frozen not in FROZEN:
        raise UsageError(f"unknown frozen '{step.frozen}' ({', '.join(FROZEN)})")
    if step.frozen == "constants":
        return frozenset()
    held = prepared.module.state_dict()
    return frozenset(user_name(n) for n, value in held.items() if value.is_floating_point())


def _dims(prepared: PreparedStep) -> dict[str, int]:
    return {
        label: int(prepared.batch[name].shape[axis])
        for name, axes in prepared.dynamic.items()
        for axis, label in axes.items()
    }


def _sizes(prepared: PreparedStep, name: str) -> tuple[str, ...]:
    labels = prepared.dynamic.get(name, {})
    return tuple(labels.get(k, str(n)) for k, n in enumerate(prepared.batch[name].shape))


def _mode_notes(model: nn.Module) -> tuple[str, ...]:
    """Whether something is in evaluation mode that would do more in training mode."""
    still = [m for m in model.modules() if isinstance(m, _MODAL) and not m.training]
    if not still:
        return ()
    kinds = sorted({type(module).__name__ for module in still})
    return (
        f"{counted(len(still), 'module')} ({', '.join(kinds[:3])}) are in evaluation mode, and are "
        "captured so: call model.train() first to train them",
    )


# -- the meta device: shapes and types, and no values ----------------------------------------------


def _check_one_device(tensors: Mapping[str, Tensor]) -> None:
    """Check that all parameters, buffers and inputs are on the meta device, or none.

    Raises:
        UsageError: names one of each.
    """
    without = [name for name, tensor in tensors.items() if tensor.is_meta]
    held = [name for name, tensor in tensors.items() if not tensor.is_meta]
    if without and held:
        raise UsageError(
            f"'{without[0]}' is on the meta device, '{held[0]}' on {tensors[held[0]].device.type}",
            "make model and batch on one device: with torch.device('meta')",
        )


def _check_constants(program: Any) -> None:
    """Check that every constant of an exported program has a value.

    Raises:
        ModelError: names the first that has none, and where it is made.
    """
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.CONSTANT_TENSOR:
            continue
        value = program.constants[spec.target]
        if isinstance(value, Tensor) and value.is_meta:
            where = _read_at(places[spec.arg.name])
            raise ModelError(
                f"the constant '{spec.target}' of shape {list(value.shape)} is on the meta device "
                f"and has no value{f' ({where})' if where else ''}",
                "compute it (torch.full, torch.arange), or make it a buffer of the model, which is "
                "an input then",
            )
