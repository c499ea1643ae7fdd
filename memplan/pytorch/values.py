"""Tensors of PyTorch as ONNX and NumPy have them: element types, bytes without a copy where
possible, arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from memplan.runtime.archive import BFLOAT16

_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.int64: onnx.TensorProto.INT64,
    torch.int32: onnx.TensorProto.INT32,
    torch.int16: onnx.TensorProto.INT16,
    torch.int8: onnx.TensorProto.INT8,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.bool: onnx.TensorProto.BOOL,
}


def onnx_type(tensor: Tensor) -> int:
    """The ``onnx.TensorProto`` element type; 0 for one that memplan does not know."""
    return int(_TYPES.get(tensor.dtype, 0))


def content(tensor: Tensor) -> memoryview:
    """The tensor's elements as bytes, in order."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    array: Any = flat.numpy()
    return memoryview(array.view(np.uint8) if array.size else b"")


def as_array(tensor: Tensor) -> Any:
    """The tensor as an array."""
    flat: Any = tensor.detach().cpu()
    if flat.dtype == torch.bfloat16:
        return flat.contiguous().view(torch.int16).numpy().view(BFLOAT16)
    return flat.numpy()


def as_tensor(array: Any) -> Tensor:
    """An array of the runtime as a tensor, in the same memory where it may be written to."""
    array = np.require(array, requirements=("C", "W"))
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def precision(tensor: Tensor) -> float:
    """The unit of a tensor's type, at least float32's: constants of torch's exporter are float32
    whatever the model is."""
    kind = tensor.dtype
    unit = float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0
    return max(unit, float(np.finfo(np.float32).eps))


def in_float64(tensor: Tensor) -> Any:
    """The tensor as a float64 array."""
    return tensor.detach().cpu().double().numpy()


def numbers(value: Any) -> Any:
    """A tensor or array: floats in float64, whole numbers and truth values as they are."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value
    tensor = value if isinstance(value, Tensor) else as_tensor(value)
    return in_float64(tensor) if tensor.is_floating_point() else as_array(tensor)
