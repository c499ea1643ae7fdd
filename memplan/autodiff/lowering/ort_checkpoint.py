"""Checkpoints of onnxruntime-training: the values of parameters, apart from the model.

The schema is ``onnxruntime/core/flatbuffers/schema/ort_training_checkpoint.fbs``; its numbers of
fields stand below. Moments and the number of the step are not read: a training run begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from memplan.errors import ModelError
from memplan.proto.elements import ELEMENT_BITS, tensor_bytes
from memplan.proto.ort_format import BOOL, FLOAT32, INT32, Table, damage_told, root_table
from memplan.proto.paths import file_problem, read_bytes

_LETTERS = b"ODTC"
_MODULE, _GROUPS = 1, 2  # of the root
_TRAINED, _FROZEN, _NOMINAL, _EXTERNAL = range(4)  # of the module's state
_NAME, _DIMS, _TYPE, _CONTENT = 0, 2, 3, 4  # of a tensor
_RATE = 2  # of a group of the optimizer
_MOST_BYTES = 2**31 - 1
_MOST_FILE = _MOST_BYTES - (1 << 26)  # room for nodes and types
_MOST_DIMS = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Values by the name of the parameter; ``rate`` is the learning rate that training began with,
    if that is known."""

    values: Mapping[str, onnx.TensorProto]
    rate: float | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """The values in the file ``path``.

    Raises:
        ModelError: it cannot be read, is no checkpoint, is damaged, or has its values elsewhere.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {file_problem(error)}") from None
    return parse_checkpoint(data, str(path))


def parse_checkpoint(data: bytes, shown: str) -> Checkpoint:
    """The values in the bytes of a checkpoint, which is ``shown`` as its path.

    Raises:
        ModelError: see :func:`read_checkpoint`.
    """
    with damage_told(shown):
        root = root_table(data, _LETTERS, shown)
        state = root.table(_MODULE)
        if state is None or state.number(_NOMINAL, BOOL) or state.number(_EXTERNAL, BOOL):
            raise ModelError(
                f"{shown} holds no values of parameters, or names a file beside it that does",
                "save the checkpoint with its values: nominal_checkpoint=False",
            )
        tensors = list(_tensors(state, len(data), shown))
        rates = [group.number(_RATE, FLOAT32) for group in root.tables(_GROUPS)]
    values = {tensor.name: tensor for tensor in tensors}
    if len(values) < len(tensors):
        raise ModelError(f"{shown} has two values for one parameter", "save it again")
    return Checkpoint(values, rates[0] if rates and rates[0] > 0 else None)


def _tensors(state: Table, room: int, shown: str) -> Iterator[onnx.TensorProto]:
    """Trained and frozen parameters; together they take no more than the file's ``room``."""
    for field in (_TRAINED, _FROZEN):
        for table in state.tables(field):
            name, dims = table.text(_NAME), table.integers(_DIMS)
            dtype, content = int(table.number(_TYPE, INT32)), table.blob(_CONTENT)
            fits = dtype in ELEMENT_BITS and len(dims) <= _MOST_DIMS and min(dims, default=0) >= 0
            if not name or not fits or tensor_bytes(dtype, dims) != len(content):
                raise ModelError(
                    f"{shown}: the parameter '{name}' has another size than its type",
                    "save the checkpoint again",
                )
            room -= len(content)
            if room < 0:
                raise ModelError(f"{shown} is damaged: its parameters overlap")
            yield onnx.TensorProto(name=name, data_type=dtype, dims=dims, raw_data=bytes(content))


def apply_checkpoint(graph: onnx.GraphProto, checkpoint: Checkpoint) -> None:
    """Let graph inputs have values as their defaults, in place.

    Raises:
        ModelError: a value does not fit its input, or none belongs to any.
    """
    stored = {tensor.name for tensor in graph.initializer}
    found = 0
    taken = graph.ByteSize()
    for value in graph.input:
        tensor = checkpoint.values.get(value.name)
        if tensor is None or value.name in stored:
            continue
        kind = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        same = len(dims) == len(tensor.dims) and all(
            dim is None or dim == size for dim, size in zip(dims, tensor.dims, strict=True)
        )
        if kind.elem_type != tensor.data_type or not same:
            raise ModelError(
                f"the checkpoint's '{value.name}' has another type or shape than the model's",
                "give the checkpoint that belongs to the model",
            )
        graph.initializer.append(tensor)
        found += 1
        taken += len(tensor.raw_data)
    if taken > _MOST_FILE:
        raise ModelError(
            f"{taken:,} bytes of parameters do not fit into a file, which holds at most 2 GiB",
            "lower the model without its checkpoint, and feed the parameters",
        )
    if not found:
        raise ModelError(
            "the checkpoint has no value for any input of the model",
            "give the checkpoint that belongs to the model",
        )
