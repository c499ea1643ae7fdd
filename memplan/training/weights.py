"""Values by name from where people have them: npz, safetensors, ONNX files, mappings of arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from memplan.errors import UsageError
from memplan.proto.read import parse_file
from memplan.runtime.archive import BFLOAT16, load_arrays
from memplan.training.step_file import initial_array

Array = npt.NDArray[Any]
Weights = Mapping[str, Any] | PathLike[str] | str

_KINDS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Element types of safetensors."""


def read_weights(source: Weights) -> dict[str, Any]:
    """Arrays by name.

    Args:
        source: an ``.npz``, ``.safetensors`` or ``.onnx`` file (its initializers), or a mapping of
            arrays, as of ``torch.nn.Module.state_dict()``.

    Raises:
        UsageError: it is neither, or the file cannot be read.
        ModelError: an ``.onnx`` file cannot be read.
    """
    if isinstance(source, Mapping):
        return {str(name): _as_array(value) for name, value in source.items()}
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"{path} is not a file", "weights are .npz, .safetensors or .onnx")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        if path.suffix == ".onnx":
            return {
                tensor.name: initial_array(tensor, path.parent)
                for tensor in parse_file(path).graph.initializer
                if tensor.data_type != onnx.TensorProto.STRING
            }
        return dict(load_arrays(path))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UsageError(
            f"{path} cannot be read as weights: {_first_line(error)}",
            "weights are .npz, .safetensors or .onnx; of a PyTorch file, "
            "numpy.savez(file, **{k: v.numpy() for k, v in torch.load(...).items()})",
        ) from None
    except Exception as error:  # a damaged archive fails in any way
        if hasattr(error, "exit_code"):
            raise
        raise UsageError(f"{path} cannot be read as weights: {_first_line(error)}") from None


def _as_array(value: Any) -> Any:
    """An array of what others call one; a tensor of PyTorch is moved to the CPU."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            bits = value.contiguous().view(dtype=_torch_int16(value)).numpy()
            return bits.view(np.uint16).view(BFLOAT16)
        return value.numpy()
    return np.asarray(value)


def _torch_int16(value: Any) -> Any:
    import importlib

    return importlib.import_module(type(value).__module__.partition(".")[0]).int16


def _read_safetensors(path: Path) -> dict[str, Array]:
    """The format is 8 bytes of length, a header in JSON, and the bytes of all tensors
    (https://github.com/huggingface/safetensors#format)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError("its header is cut off")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _KINDS:
            raise ValueError(f"'{name}' is of type {entry['dtype']}")
        begin, end = (8 + length + int(place) for place in entry["data_offsets"])
        if not 8 + length <= begin <= end <= len(data):
            raise ValueError(f"'{name}' lies outside the file")
        values = np.frombuffer(data[begin:end], _KINDS[entry["dtype"]])
        found[str(name)] = values.reshape([int(size) for size in entry["shape"]])
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
