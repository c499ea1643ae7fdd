"""Element type and shape of a tensor: one type for dimensions that are numbers and for names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import onnx

Dim = int | str
"""A size, or the name of one that is known at run time only; equal names are equal sizes."""
Shape = tuple[Dim, ...]

_T = onnx.TensorProto
FLOATS = frozenset({_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16})
"""The element types that gradients flow through."""
NARROW_FLOATS = frozenset({_T.FLOAT16, _T.BFLOAT16})
"""Those of them in which a long sum stands still: 1 + ... + 1 ends at 256 in bfloat16."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor.

    ``dtype`` is a ``onnx.TensorProto`` element type (0: not a dense tensor); ``shape`` is None if
    not even the rank is known. ``static``: whether the runtime knows the shape too, before it runs;
    inside a Loop it does not, and then it never works in place. ``seen`` is the shape as it knows
    it where that has names in it that memplan knows the sizes of; else None.
    """

    dtype: int
    shape: Shape | None
    static: bool = True
    seen: Shape | None = None

    @property
    def is_float(self) -> bool:
        """Whether gradients may flow through such a tensor."""
        return self.dtype in FLOATS

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, if every dimension is a number."""
        if self.shape is None or str in map(type, self.shape):
            return None
        return cast("tuple[int, ...]", self.shape)

    @property
    def elements(self) -> int | None:
        """How many elements, if that is known."""
        return None if self.sizes is None else math.prod(self.sizes)


UNKNOWN = TensorType(0, None)
Types = Mapping[str, TensorType]
"""Types by tensor name."""
UNNAMED = "?"
"""How the names that memplan gives to unnamed dimensions begin; they are never written."""

_REMEMBERED = 4096


def read_type(proto: onnx.TypeProto) -> TensorType:
    """The type in ``proto``; a dimension without size or name becomes an empty name."""
    return parse_type(proto.SerializeToString())


@lru_cache(maxsize=_REMEMBERED)
def parse_type(data: bytes) -> TensorType:
    """The type in a serialized ``TypeProto``: the many tensors of a graph have few types."""
    proto = onnx.TypeProto.FromString(data)
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    shape: Shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param
        for dim in tensor.shape.dim
    )
    return TensorType(tensor.elem_type, shape)


def write_type(value: TensorType, *, final: bool = False) -> onnx.TypeProto:
    """``value`` as ONNX writes it; ``final``: without the names that memplan gave."""
    shape: tuple[Dim | None, ...] | None = value.shape
    if shape is not None:
        shape = tuple(None if dim == "" else dim for dim in shape)
    if final and shape is not None:
        shape = tuple(None if str(dim).startswith(UNNAMED) else dim for dim in shape)
    return onnx.helper.make_tensor_type_proto(value.dtype, shape)


@lru_cache(maxsize=_REMEMBERED)
def type_bytes(value: TensorType) -> bytes:
    """``value`` as a serialized ``TypeProto``."""
    return bytes(write_type(value).SerializeToString())


def value_info(name: str, found: TensorType) -> onnx.ValueInfoProto:
    """A tensor's name and type as a file states them."""
    return onnx.ValueInfoProto(name=name, type=write_type(found, final=True))


def known_shapes(types: Types) -> int:
    """How many tensors have a shape in ``types``."""
    return sum(value.shape is not None for value in types.values())
