"""Trained values in a forward file that the user names, which others can infer with: what ``grad``
was given, or the network in evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.api.source import Model, as_file, shown_path
from memplan.autodiff.statistics import trains
from memplan.errors import ModelError, UsageError
from memplan.ir.roles import Role, averaged_by
from memplan.proto.nodes import is_standard
from memplan.proto.read import read_model
from memplan.proto.weights import plan_weights, write_with_weights
from memplan.proto.write import check_output, keep_apart, spare
from memplan.shapes.tensor_type import FLOATS
from memplan.training.step_file import Slot
from memplan.units import listed

Array = npt.NDArray[Any]

_INPUTS_APART = 4  # since this IR version an initializer need not be an input
_LARGEST_BYTES = 2**31 - 1
_SHOWN = 3


def export_forward(
    forward: Model,
    slots: Iterable[Slot],
    state: Mapping[str, Array],
    path: PathLike[str] | str,
    files: Iterable[Path] = (),
    *,
    force: bool = False,
) -> tuple[str, ...]:
    """Write ``forward`` with the values that its parameters have in ``state``.

    Args:
        forward: a model whose initializers, or inputs without a default, have the names, types and
            shapes of the state.
        slots: the state that is the model's.
        state: values by name.
        path: the file.
        files: those of the step, which are never overwritten.
        force: replace a file that is there.

    Returns:
        What is to be said of it: what has no place in ``forward``, or keeps its value, and what
        does not run as in evaluation.

    Raises:
        ModelError: ``forward`` cannot be read; or the file would have more than 2 GiB.
        UsageError: it is not the forward part of the step, or the file cannot be written.
    """
    target, shown = Path(path), shown_path(forward)
    spare([target], files, "is a file of this step")
    check_output(target, force)
    known = {slot.name: slot for slot in slots}
    with as_file(forward) as source:
        keep_apart([target], source)
        model = read_model(source)
        places = _places(model, known, shown)
        for name, tensor in places.items():
            value = np.asarray(state[name], order="C")
            tensor.CopyFrom(numpy_helper.from_array(value, name))
        if model.ByteSize() > _LARGEST_BYTES:
            nbytes = f"{model.ByteSize():,} bytes"
            raise ModelError(
                f"{path} would have {nbytes}; a protobuf file holds at most 2 GiB",
                "take state_dict() instead",
            )
        notes = _notes(model, places, known, shown, target)
        placement = plan_weights(model, source, target, "auto", force)
        placement = write_with_weights(model, source, target, placement, force=force)
    return (*notes, *([placement.note] if placement.note else []))


def check_forward(path: Path, slots: Iterable[Slot]) -> None:
    """Fail early where :func:`export_forward` would.

    Raises:
        ModelError, UsageError: see there.
    """
    _places(read_model(path), {slot.name: slot for slot in slots}, path)


def averaged(slots: Iterable[Slot], state: Mapping[str, Array]) -> dict[str, Array]:
    """State with the averages that stand beside the model in place of its weights.

    Raises:
        UsageError: there are none.
    """
    found = {
        source: state[slot.name]
        for slot in slots
        if slot.role is Role.AVERAGE
        and (source := averaged_by(slot.name)) is not None
        and source in state
    }
    if not found:
        raise UsageError("the step keeps no averages of its weights", "capture it with ema=DECAY")
    return {**state, **found}


def _places(
    model: onnx.ModelProto, slots: Mapping[str, Slot], shown: Path
) -> dict[str, onnx.TensorProto]:
    """The initializers that are state of the step, by name. Inputs without a default that are, as
    in the ``eval_model.onnx`` of onnxruntime-training, are made initializers.

    Raises:
        UsageError: there are none, or one has another type or shape.
    """
    graph = model.graph
    found = {tensor.name: tensor for tensor in graph.initializer if tensor.name in slots}
    given = [value for value in graph.input if value.name in slots and value.name not in found]
    for value in given:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        found[value.name] = graph.initializer.add(
            name=value.name, data_type=tensor.elem_type, dims=sizes
        )
        if model.ir_version >= _INPUTS_APART:
            graph.input.remove(value)
    if not found:
        raise UsageError(
            f"{shown} has no parameter of the step",
            f"give the forward model of the step, with {_some(slots)}",
        )
    for name, tensor in found.items():
        slot = slots[name]
        if (tensor.data_type, tuple(tensor.dims)) != (slot.element, slot.static_shape):
            raise UsageError(
                f"'{name}' of {shown} has another type or shape than in the step: {slot.words}",
                "give the forward model that the step was made from",
            )
    return found


def _notes(
    model: onnx.ModelProto,
    places: Mapping[str, onnx.TensorProto],
    slots: Mapping[str, Slot],
    shown: Path,
    target: Path,
) -> list[str]:
    missing: dict[Role, list[str]] = {Role.PARAMETER: [], Role.RUNNING_STATISTIC: []}
    for name, slot in slots.items():
        if name not in places and slot.role in missing:
            missing[slot.role].append(name)
    kept = [
        tensor.name
        for tensor in model.graph.initializer
        if tensor.name not in places and tensor.data_type in FLOATS and math.prod(tensor.dims) > 1
    ]
    training = [node.name or node.output[0] for node in model.graph.node if _is_in_training(node)]
    said = (
        (missing[Role.PARAMETER], "trained, but {shown} has no such parameter: {names}"),
        (
            missing[Role.RUNNING_STATISTIC],
            "running statistics of the step that {shown} does not have: {names}",
        ),
        (kept, "not trained by the step, values as in {shown}: {names}"),
        (
            training,
            "{target} is in training mode, with dropout or the statistics of each batch: {names}; "
            "export the network in evaluation, and give that as the forward model",
        ),
    )
    return [
        text.format(shown=shown, target=target, names=_some(names)) for names, text in said if names
    ]


def _is_in_training(node: onnx.NodeProto) -> bool:
    if not is_standard(node.domain):
        return False
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2])
    return node.op_type == "BatchNormalization" and trains(node)


def _some(names: Iterable[str]) -> str:
    return listed([f"'{name}'" for name in names], _SHOWN)
