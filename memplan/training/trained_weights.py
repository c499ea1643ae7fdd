"""Values by name from where people have them: npz, safetensors, ONNX files, mappings of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from memplan.errors import RuntimeUnavailableError, UsageError
from memplan.proto.external import check_external_data
from memplan.proto.paths import opened_file
from memplan.proto.read import parse_file
from memplan.runtime.archive import BFLOAT16, Chosen, Header, load_arrays, readable, restored
from memplan.training.step_file import Slot, initial_array, read_step

Array = npt.NDArray[Any]
_SAFETENSORS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
Weights = Mapping[str, Any] | PathLike[str] | str

_NOTHING: Array = np.empty(0)
"""In place of an array that is not read."""
_HINT = (
    "weights are .npz, .safetensors or .onnx; of a PyTorch file, "
    "numpy.savez(file, **{k: v.numpy() for k, v in torch.load(...).items()})"
)


def read_weights(source: Weights, wanted: Mapping[str, Slot] | None = None) -> dict[str, Any]:
    """Arrays by name.

    Args:
        source: an ``.npz``, ``.safetensors`` or ``.onnx`` file (its initializers; of a training
            step, its state), or a mapping of arrays, as of ``torch.nn.Module.state_dict()``.
        wanted: the state that they are for, by the names in the file. Other arrays are not read,
            and come as empty ones, for the caller to refuse.

    Raises:
        UsageError: it is neither, or the file cannot be read, or an array does not fit.
        ModelError: an ``.onnx`` file cannot be read.
        RuntimeUnavailableError: the package safetensors is not installed, and wanted.
    """
    if isinstance(source, Mapping):
        return {str(name): as_array(value) for name, value in source.items()}
    path = Path(source)
    with readable(path, "weights", _HINT):
        if path.suffix == ".onnx":
            return _read_onnx(path, wanted)
        load = _load_safetensors if path.suffix == ".safetensors" else load_arrays
        unread: list[str] = []

        def choose(headers: Mapping[str, Header]) -> list[str]:
            if wanted is None:
                return list(headers)
            unread.extend(name for name in headers if name not in wanted)
            chosen = [name for name in headers if name in wanted]
            for name in chosen:
                _require_fitting(wanted[name], headers[name])
            return chosen

        return {**load(path, choose), **dict.fromkeys(unread, _NOTHING)}


def _load_safetensors(path: Path, choose: Chosen) -> dict[str, Array]:
    """The arrays in a file that ``choose`` chooses by their headers.

    Raises:
        Exception: it is damaged, against the format, or no such file.
    """
    with opened_file(path):  # no pipe, on which a reader would wait
        pass
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise RuntimeUnavailableError(
            f"{path}: the package safetensors, which reads such files, is not installed",
            "pip install 'memplan[weights]'",
        ) from None
    try:
        # A file that is mapped, and becomes shorter, would end the process.
        with safe_open(path, framework="np", backend="pread") as file:
            return {name: file.get_tensor(name) for name in choose(_headers(file))}
    except SafetensorError as error:  # it quotes the file
        raise ValueError(f"{error!s:.200}") from None


def _headers(file: Any) -> dict[str, Header]:
    headers = {}
    for name in file.keys():  # noqa: SIM118, which is no mapping
        tensor = file.get_slice(name)
        if tensor.get_dtype() not in _SAFETENSORS:
            raise ValueError(f"'{name}' is of type '{tensor.get_dtype()}'")
        headers[name] = Header(tuple(tensor.get_shape()), _SAFETENSORS[tensor.get_dtype()])
    return headers


def _require_fitting(slot: Slot, header: Header) -> None:
    """Refuse an array by its header, where its size alone says that it does not fit."""
    if math.prod(header.shape) != math.prod(slot.static_shape):
        raise UsageError(
            f"the value of '{slot.name}' is {header.words}, the step wants {slot.words}"
        )


def _read_onnx(path: Path, wanted: Mapping[str, Slot] | None) -> dict[str, Any]:
    """The values in a model: of a training step its state, else all that it stores."""
    model = parse_file(path)
    check_external_data(model, path)
    inputs = {value.name for value in model.graph.input}
    stored = [t for t in model.graph.initializer if t.data_type != onnx.TensorProto.STRING]
    if any(tensor.name in inputs for tensor in stored):
        step = read_step(path)
        if step.contract.new_values:
            return {s.name: s.default for s in step.state if s.default is not None}
    if wanted is None:
        return {tensor.name: initial_array(tensor, path.parent) for tensor in stored}
    return {
        tensor.name: initial_array(tensor, path.parent) if tensor.name in wanted else _NOTHING
        for tensor in stored
    }


def as_array(value: Any) -> Any:
    """An array of what others call one; a tensor of PyTorch is moved to the CPU."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return value.contiguous().view(dtype=_torch_int16(value)).numpy().view(BFLOAT16)
        return value.numpy()
    return restored(np.asarray(value))


def _torch_int16(value: Any) -> Any:
    import importlib

    return importlib.import_module(type(value).__module__.partition(".")[0]).int16
