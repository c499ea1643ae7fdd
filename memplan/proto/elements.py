"""What one element of a tensor takes: the one table of element types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx

# Types below a byte are packed (onnx.proto, TensorProto.DataType). Older releases lack some names.
_BITS = {
    **dict.fromkeys(("COMPLEX128",), 128),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("BOOL", "INT8", "UINT8", "FLOAT8E8M0"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
    **dict.fromkeys(("UINT4", "INT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("UINT2", "INT2"), 2),
}
ELEMENT_BITS: Mapping[int, int] = {
    number: _BITS[name] for name, number in onnx.TensorProto.DataType.items() if name in _BITS
}
"""Bits per element by ``onnx.TensorProto.DataType``; types without a fixed size (strings) are not
in it."""


def tensor_bytes(dtype: int, shape: Iterable[int]) -> int:
    """Bytes of a dense tensor; 0 for types without a fixed element size (strings)."""
    return (math.prod(shape) * ELEMENT_BITS.get(dtype, 0) + 7) // 8
