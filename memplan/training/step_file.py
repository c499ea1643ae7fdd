"""A step as a trainer takes it: its contract, its inputs with their defaults, and the model that a
session loads, in which inputs have none: they would be in memory twice."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from memplan.api.source import Model, as_file, shown_path
from memplan.errors import ModelError, UsageError
from memplan.ir.contract import Contract, sound_contract
from memplan.ir.roles import FOUND_INF, LOSS_SCALE, STATE, Role
from memplan.proto.edit import copied, drop_named
from memplan.proto.external import files_of_weights
from memplan.proto.metadata import get_metadata, planned_for
from memplan.proto.nodes import reads_of
from memplan.proto.read import read_model
from memplan.proto.weights import external_content
from memplan.runtime.archive import BFLOAT16
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened

Array = npt.NDArray[Any]

_PLACEHOLDER = 2  # for a size that only a batch decides


@dataclass(frozen=True, slots=True)
class Slot:
    """An input of the step. ``shape`` has sizes, and names of sizes that a batch decides;
    ``default`` is there if the file has a value for it."""

    name: str
    role: Role
    element: int
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    default: Array | None = None

    @property
    def words(self) -> str:
        """Type and shape, as ``float32[32, 8]``."""
        return f"{self.dtype}{_shape_words(self.shape)}"

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of state, which no batch decides.

        Raises:
            UsageError: a size has only a name.
        """
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        if len(sizes) < len(self.shape):
            raise UsageError(
                f"state '{self.name}' has the shape {_shape_words(self.shape)}: sizes without a "
                "number",
                "give them: dims={NAME: SIZE}, or --dim NAME=SIZE",
            )
        return sizes


@dataclass(frozen=True, slots=True)
class StepFile:
    """A step that was read. ``model``: without defaults of inputs, which are in ``slots``;
    ``folder``: where external data lies; ``files``: the model's own, and those of its weights."""

    path: Path
    model: onnx.ModelProto
    folder: Path | None
    contract: Contract
    slots: Mapping[str, Slot]
    dims: Mapping[str, int]
    metadata: Mapping[str, object]
    files: tuple[Path, ...] = ()

    def named(self, *roles: Role) -> list[Slot]:
        """The inputs that have one of these roles, in the order of the graph."""
        return [slot for slot in self.slots.values() if slot.role in roles]

    @property
    def state(self) -> list[Slot]:
        """The inputs that live from one step to the next."""
        return self.named(*STATE)

    @property
    def knobs(self) -> list[str]:
        """The names of hyperparameters."""
        return [slot.name for slot in self.named(Role.HYPERPARAMETER)]

    @property
    def state_bytes(self) -> int:
        """Bytes of the state."""
        return sum(math.prod(s.static_shape) * s.dtype.itemsize for s in self.state)

    def without_values(self) -> StepFile:
        """The same without first values of state, which would be in memory beside the state."""
        slots = {
            name: replace(slot, default=None) if slot.role in STATE else slot
            for name, slot in self.slots.items()
        }
        return replace(self, slots=slots)

    def changed(self, model: onnx.ModelProto, contract: Contract) -> StepFile:
        """The same file with another graph, of which inputs that are new have no value."""
        values = {name: slot.default for name, slot in self.slots.items()}
        slots = _slots(model, contract, self.dims, values)
        return replace(self, model=model, contract=contract, slots=slots)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients begin with a loss scale, which is an input."""
        slot = self.slots.get(LOSS_SCALE)
        if slot is None or slot.dtype.kind != "f" or any(size != 1 for size in slot.shape):
            return False
        return slot.role in (Role.OPTIMIZER_STATE, Role.HYPERPARAMETER)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The numbers beside the loss that the file says are outputs."""
        if not self.contract.stated:
            return ()
        given = self.contract.named(Role.OUTPUT)
        return tuple(
            value.name
            for value in self.model.graph.output
            if value.name in given
            and value.name != FOUND_INF
            and all(dim.dim_value == 1 for dim in value.type.tensor_type.shape.dim)
            and value.type.tensor_type.HasField("shape")
        )

    def has_constant(self, name: str) -> bool:
        """Whether a constant of the graph has this name."""
        return any(tensor.name == name for tensor in self.model.graph.initializer)

    @property
    def tells_skipping(self) -> bool:
        """Whether an output says that the step was skipped, as a gradient was not finite."""
        found = next((v for v in self.model.graph.output if v.name == FOUND_INF), None)
        if found is None or self.contract.roles.get(FOUND_INF) is not Role.OUTPUT:
            return False
        tensor = found.type.tensor_type
        return tensor.elem_type == onnx.TensorProto.BOOL and not tensor.shape.dim

    @property
    def open_sizes(self) -> set[str]:
        """The names of sizes that a batch decides."""
        return {d for slot in self.slots.values() for d in slot.shape if isinstance(d, str)}

    @property
    def fingerprint(self) -> str:
        """A digest of names, types and shapes of the state, which a checkpoint must have: the same
        for a file and what ``rewrite`` made of it."""
        rows = sorted((s.name, s.element, [str(d) for d in s.shape]) for s in self.state)
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()

    def readers_beside(self, name: str, output: str | None) -> bool:
        """Whether anything reads ``name`` but the node that makes ``output``."""
        return any(
            name in reads_of(node) and (output is None or output not in node.output)
            for node in self.model.graph.node
        )


def read_step(
    model: Model, dims: Mapping[str, int] | None = None, state: Mapping[str, str] | None = None
) -> StepFile:
    """Read a training step and find its contract.

    Args:
        model: a path or a ``ModelProto``.
        dims: sizes of symbolic dimensions.
        state: output → input pairs that the file does not tell, as ``--state OUT=IN``.

    Raises:
        ModelError: the file cannot be read, contradicts itself, or a shape stays unknown.
        UsageError: ``dims`` or ``state`` do not fit; two outputs are the next value of one input.
    """
    with as_file(model) as path:
        read = read_model(path)
        metadata = get_metadata(read)
        planned_for(metadata)
        found = _dims(read, metadata, dims or {})
        shown, graph = shown_path(model), opened_step(read, path, found)
        contract = sound_contract(shown, graph.graph, graph.phases, metadata, state or {})
        in_memory = isinstance(model, onnx.ModelProto)
        inputs = {value.name for value in read.graph.input}
        values = {
            tensor.name: initial_array(tensor, path.parent)
            for tensor in read.graph.initializer
            if tensor.name in inputs
        }
        slots = _slots(read, contract, found, values)
        files = () if in_memory else (path, *files_of_weights(read, path))
    drop_named(read.graph.initializer, values)
    lean = copied(read)  # what is deleted from a message stays in its memory
    folder = None if in_memory else path.parent
    return StepFile(shown, lean, folder, contract, slots, found, metadata, files)


def _dims(
    model: onnx.ModelProto, metadata: Mapping[str, object], given: Mapping[str, int]
) -> dict[str, int]:
    """The dimensions that are known: those of a plan, and what was given."""
    planned = metadata.get("dims", {})
    names = symbolic_dims(model)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UsageError(f"the model has no dimension '{unknown[0]}'", f"it has {_listed(names)}")
    found = dict(planned) if isinstance(planned, dict) else {}
    for name, size in found.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ModelError(
                f"memplan.dims of the file says that '{name}' is {str(size)[:40]!r}: expected a "
                "whole number",
                "its metadata is damaged: take the file that 'memplan rewrite' wrote",
            )
    return {k: v for k, v in {**found, **given}.items() if k in names}


def opened_step(model: onnx.ModelProto, path: Path, dims: Mapping[str, int]) -> OpenModel:
    """The graph and phases of a step, with small sizes for dimensions that ``dims`` leave open.

    Raises:
        ModelError: see :func:`memplan.shapes.prepare.prepare`, which a ``model`` is copied for.
    """
    sizes = dict.fromkeys(symbolic_dims(model), _PLACEHOLDER) | dict(dims)
    return opened(prepare(copied(model), path, sizes, partly=True))


def _slots(
    model: onnx.ModelProto,
    contract: Contract,
    dims: Mapping[str, int],
    values: Mapping[str, Array | None],
) -> dict[str, Slot]:
    """The inputs of a graph, with the ``values`` that some have by default."""
    slots = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type == onnx.TensorProto.STRING:
            raise ModelError(
                f"input '{value.name}' is not a tensor of numbers", "a step takes numbers"
            )
        slots[value.name] = Slot(
            value.name,
            contract.roles.get(value.name, Role.BATCH),
            tensor.elem_type,
            _numpy_type(tensor.elem_type),
            tuple(_size(dim, dims) for dim in tensor.shape.dim),
            values.get(value.name),
        )
    return slots


def _size(dim: onnx.TensorShapeProto.Dimension, dims: Mapping[str, int]) -> int | str:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dims.get(dim.dim_param, dim.dim_param or "?")


def _numpy_type(element: int) -> np.dtype[Any]:
    """The type of arrays of an ONNX element type.

    Raises:
        ModelError: there is none.
    """
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    if dtype.kind not in "fiub" and dtype != BFLOAT16:
        name = onnx.TensorProto.DataType.Name(element)
        raise ModelError(f"an input has the type {name}", "training takes floats and integers")
    return dtype


def initial_array(tensor: onnx.TensorProto, folder: Path) -> Array:
    """The values of an initializer.

    Raises:
        UsageError: they lie in another file, below ``folder``, which cannot be read.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        tensor = onnx.TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            raw_data=external_content(tensor, folder),
        )
    return np.array(onnx.numpy_helper.to_array(tensor))


def _shape_words(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def require_update(step: StepFile) -> None:
    """Refuse a step that trains nothing.

    Raises:
        ModelError: no parameter gets a new value.
    """
    renewed = {step.slots[given].role for given in step.contract.new_values.values()}
    if Role.PARAMETER in renewed or (renewed and not step.contract.gradients):
        return
    if step.contract.gradients:
        raise ModelError(
            f"{step.path} makes gradients but no new values, so it cannot train",
            "memplan grad --optimizer adamw (or another) puts the update in",
        )
    raise ModelError(
        f"{step.path}: no output is the next value of an input",
        "outputs named X_new or X.new are; state={'OUT': 'IN'} or --state OUT=IN names others",
    )
