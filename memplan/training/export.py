"""The forward part of a trained step, with its weights: a file that others can infer with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.errors import ModelError, UsageError
from memplan.ir.graph import Phase
from memplan.ir.roles import Role, averaged_by
from memplan.proto.edit import copied, live_nodes, replace_nodes
from memplan.proto.metadata import PREFIX
from memplan.proto.nodes import captured_names, is_standard, names_read
from memplan.proto.weights import embed_weights
from memplan.proto.write import check_output, spare, write_model
from memplan.shapes.tensor_type import FLOATS
from memplan.simulate.opened import OpenModel
from memplan.training.evaluation import use_running_statistics, without_counter_masks
from memplan.training.step_file import StepFile, opened_step

Array = npt.NDArray[Any]

_LARGEST_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written at ``path``: its ``outputs``, and the running statistics that were
    not found a place, so that the file normalizes by the batch that it is given."""

    path: Path
    outputs: tuple[str, ...]
    without_place: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about it."""
        if not self.without_place:
            return ()
        names = ", ".join(f"'{name}'" for name in self.without_place[:3])
        how = "normalizes by the batch that it is given"
        return (f"{self.path} {how}: no place was found for {names}",)


def export_forward(
    step: StepFile,
    state: Mapping[str, Array],
    path: PathLike[str] | str,
    outputs: Sequence[str] = (),
    *,
    force: bool = False,
) -> Exported:
    """Write the nodes that make ``outputs``, with state as initializers.

    Dropouts are left out, and batch normalizations use their running statistics, as in evaluation.

    Args:
        step: the step that was trained.
        state: its state.
        path: the file.
        outputs: tensors of the graph; by default its outputs that the forward part makes, or where
            it has none, what the loss is made of.
        force: replace a file that is there.

    Raises:
        UsageError: the file cannot be written, or there is no such tensor.
        ModelError: the forward part has no output; or the file would have more than 2 GiB.
    """
    spare([Path(path)], step.files, "is a file of this step")
    check_output(Path(path), force)
    model = opened_step(step.whole, step.path, step.dims)
    wanted = list(outputs) or _predictions(model, step)
    proto = copied(model.prepared.proto)
    kept = use_running_statistics(proto, wanted, step, model.graph)
    _keep_what_makes(proto, wanted, model)
    _evaluate(proto)
    without_counter_masks(proto.graph)
    _keep_what_makes(proto, wanted, model)
    _fill(proto, step, state)
    if step.folder is not None:
        embed_weights(proto, step.path)
    others = [item for item in proto.metadata_props if not item.key.startswith(PREFIX)]
    del proto.metadata_props[:]
    proto.metadata_props.extend(others)
    if proto.ByteSize() > _LARGEST_BYTES:
        raise ModelError(
            f"{path} would have {proto.ByteSize():,} bytes; a protobuf file holds at most 2 GiB",
            "take state_dict() instead",
        )
    write_model(proto, Path(path), force=force)
    return Exported(Path(path), tuple(wanted), tuple(kept))


def averaged(step: StepFile, state: Mapping[str, Array]) -> dict[str, Array]:
    """State with the averages that stand beside the model in place of its weights.

    Raises:
        UsageError: there are none.
    """
    found = {
        source: state[slot.name]
        for slot in step.named(Role.AVERAGE)
        if (source := averaged_by(slot.name)) in state and source is not None
    }
    if not found:
        raise UsageError("the step keeps no averages of its weights", "capture it with --ema DECAY")
    return {**state, **found}


def _predictions(model: OpenModel, step: StepFile) -> list[str]:
    graph, phases = model.graph, model.phases
    of_labels = _from_labels(model, step)
    made = [
        name
        for name in step.contract.named(Role.OUTPUT)
        if name not in step.metrics
        and (tensor := graph.tensor_named(name)) is not None
        and tensor.producer in phases.forward
        and tensor.id not in of_labels
    ]
    if made:
        return made
    found: dict[str, None] = {}
    for node in graph.nodes:
        if phases.of[node.id] is not Phase.LOSS:
            continue
        for index in node.reads:
            tensor = graph.tensors[index]
            forward = tensor.producer >= 0 and phases.of[tensor.producer] is Phase.FORWARD
            if forward and tensor.dtype in FLOATS:
                found.setdefault(tensor.name)
    if not found:
        raise ModelError(
            f"{step.path}: nothing is known for an output of the forward part",
            "name tensors: export_forward(path, outputs=[...])",
        )
    return list(found)


def _from_labels(model: OpenModel, step: StepFile) -> set[int]:
    """What depends on batch inputs that only the loss reads, and what is made from it."""
    graph, phases = model.graph, model.phases
    batch = {slot.name for slot in step.named(Role.BATCH)}
    found = {
        tensor.id
        for tensor in (graph.tensors[index] for index in graph.inputs)
        if tensor.name in batch
        and all(phases.of[node] is not Phase.FORWARD for node in tensor.readers)
    }
    for node in graph.nodes:
        if not found.isdisjoint(node.reads):
            found.update(node.writes)
    return found


def _keep_what_makes(proto: onnx.ModelProto, wanted: Sequence[str], model: OpenModel) -> None:
    """Remove all nodes, inputs and initializers that ``wanted`` does not depend on."""
    graph = proto.graph
    nodes = live_nodes(graph.node, wanted)
    needed = {*wanted, *names_read(nodes)}
    made = {name for node in nodes for name in node.output}
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    missing = [name for name in wanted if name not in made]
    if missing:
        raise UsageError(f"no node makes '{missing[0]}'", "outputs are tensors of the graph")
    results = [types.get(name) or _stated(name, model) for name in wanted]
    inputs = [value for value in graph.input if value.name in needed]
    initializers = [tensor for tensor in graph.initializer if tensor.name in needed]
    known = [value for value in graph.value_info if value.name in made and value.name not in wanted]
    for field, values in (
        (graph.node, nodes),
        (graph.input, inputs),
        (graph.initializer, initializers),
        (graph.value_info, known),
        (graph.output, results),
    ):
        copies = [copied(value) for value in values]
        del field[:]
        field.extend(copies)


def _stated(name: str, model: OpenModel) -> onnx.ValueInfoProto:
    tensor = model.graph.tensor_named(name)
    if tensor is None:
        raise UsageError(f"the step has no tensor '{name}'")
    return onnx.helper.make_tensor_value_info(name, tensor.dtype, None)


def _evaluate(proto: onnx.ModelProto) -> None:
    """Let operators that know training be in evaluation."""
    kept: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    # Where its name is asked for, or read inside a body, it stays as a copy.
    named = {value.name for value in proto.graph.output}
    named |= {name for node in proto.graph.node for name in captured_names(node)}
    for node in proto.graph.node:
        if is_standard(node.domain) and node.op_type == "Dropout":
            if node.output[0] not in named:
                renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
                continue
            del node.input[1:], node.output[1:]
        if is_standard(node.domain) and node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
        kept.append(node)
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    replace_nodes(proto.graph, kept)


def _fill(proto: onnx.ModelProto, step: StepFile, state: Mapping[str, Array]) -> None:
    """State as initializers; hyperparameters keep their defaults."""
    graph = proto.graph
    inside = {name for name in state if any(value.name == name for value in graph.input)}
    inside |= {t.name for t in graph.initializer if t.name in state}
    inputs = [
        copied(value)
        for value in graph.input
        if value.name not in inside and step.slots[value.name].role is not Role.HYPERPARAMETER
    ]
    others = [copied(tensor) for tensor in graph.initializer if tensor.name not in inside]
    tensors = [
        numpy_helper.from_array(np.ascontiguousarray(value), name)
        for name, value in state.items()
        if name in inside
    ]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(inputs)
    graph.initializer.extend([*others, *tensors])
