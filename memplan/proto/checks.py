"""Checks of single tensors and operator calls against what ONNX itself defines.

What passes here can be indexed without fear further on: required inputs and attributes are there,
attributes have their types, and constants hold as many elements as their dimensions say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cache

import numpy as np
import onnx
from onnx import defs, helper

from memplan.errors import ModelError

_Proto = onnx.TensorProto
_PACKED_BITS = {
    "UINT4": 4,
    "INT4": 4,
    "FLOAT4E2M1": 4,
    "UINT2": 2,
    "INT2": 2,
    "FLOAT6E2M3": 6,
    "FLOAT6E3M2": 6,
}
_DAMAGED = "export the model again; the file is damaged or was edited"


@cache
def element_bits(data_type: int) -> int:
    """Bits per element as ONNX stores it; 0 for strings.

    Raises:
        KeyError: no such type.
    """
    if data_type == _Proto.STRING:
        return 0
    itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize
    return _PACKED_BITS.get(_Proto.DataType.Name(data_type), 8 * itemsize)


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check type, dimensions and number of elements of a constant; ``where`` begins the message.

    Raises:
        ModelError: with the tensor's name and what does not fit.
    """
    name = f"{where}: constant '{tensor.name}'"
    try:
        bits = element_bits(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{name} has unknown element type {tensor.data_type}", _DAMAGED) from None
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{name} has a negative dimension: {list(tensor.dims)}", _DAMAGED)
    if tensor.data_location == _Proto.EXTERNAL:
        return
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        stored, wanted, unit = len(tensor.raw_data), (count * bits + 7) // 8, "bytes"
    else:
        stored = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        wanted, unit = _entries(tensor.data_type, count, bits), "elements"
    if stored != wanted:
        raise ModelError(
            f"{name} of shape {list(tensor.dims)} needs {wanted:,} {unit} and has {stored:,}",
            _DAMAGED,
        )


def _entries(data_type: int, count: int, bits: int) -> int:
    """Entries of the typed field: two per complex number; small integers share one byte."""
    if data_type in (_Proto.COMPLEX64, _Proto.COMPLEX128):
        return 2 * count
    return (count * bits + 7) // 8 if 0 < bits < 8 else count


def check_sparse(tensor: onnx.SparseTensorProto, where: str) -> None:
    """The same for a sparse constant.

    Raises:
        ModelError: see :func:`check_tensor`.
    """
    name = f"{where}: constant '{tensor.values.name}'"
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{name} has a negative dimension", _DAMAGED)
    if tensor.indices.data_type != _Proto.INT64:
        raise ModelError(f"{name} is sparse, and its indices are not int64", _DAMAGED)
    check_tensor(tensor.values, where)
    check_tensor(tensor.indices, where)


@cache
def _schema(op: str, version: int) -> defs.OpSchema | None:
    """ONNX's definition; None for operators of others and for those that ONNX withdrew."""
    try:
        found = defs.get_schema(op, version, "")
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


def check_operator(
    node: onnx.NodeProto, version: int, functions: Set[tuple[str, str]], where: str
) -> None:
    """Check a call of a standard operator: number of inputs and outputs, and attributes.

    Args:
        node: the call; those of other domains are not judged.
        version: opset of the standard domain.
        functions: (domain, name) of model-local functions, which may replace an operator.
        where: begins the message.

    Raises:
        ModelError: with what is missing or too much.
    """
    if node.domain not in ("", "ai.onnx") or (node.domain, node.op_type) in functions:
        return
    schema = _schema(node.op_type, version)
    if schema is None:
        return
    for what, names, low, high in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not low <= len(names) <= high:
            wanted = str(low) if low == high else f"{low} to {high}" if high < 1000 else f"{low}+"
            raise ModelError(
                f"{where} has {len(names)} {what}; {node.op_type} takes {wanted}", _DAMAGED
            )
    for formal, name in zip(schema.inputs, node.input, strict=False):
        if not name and formal.option == defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"{where} lacks its input '{formal.name}'", _DAMAGED)
    _check_attributes(node, schema, where)


def _check_attributes(node: onnx.NodeProto, schema: defs.OpSchema, where: str) -> None:
    given = {item.name: item for item in node.attribute}
    for name, formal in schema.attributes.items():
        if name not in given:
            if formal.required:
                raise ModelError(f"{where} lacks its attribute '{name}'", _DAMAGED)
        elif given[name].type != int(formal.type):  # type: ignore[call-overload]
            raise ModelError(f"{where}: attribute '{name}' has the wrong type", _DAMAGED)
    if node.op_type == "Constant" and (len(given) != 1 or not node.output[0]):
        raise ModelError(f"{where}: a Constant has one value and one output", _DAMAGED)


# What ONNX's shape inference leaves unchecked and every kernel demands: the ranks of inputs by
# slot, as (lowest, highest).
_MANY = 1 << 10
_RANKS: dict[tuple[str, str], dict[int, tuple[int, int]]] = {
    **{
        (domain, op): {0: (3, _MANY), 1: (3, _MANY)}
        for domain, op in (("", "Conv"), ("", "ConvTranspose"), ("com.microsoft", "FusedConv"))
    },
    **{("", op): {0: (3, 3), 1: (3, 3), 2: (3, 3)} for op in ("RNN", "GRU", "LSTM")},
    ("", "LRN"): {0: (2, _MANY)},
    ("", "Attention"): {0: (3, 4), 1: (3, 4), 2: (3, 4), 4: (4, 4), 5: (4, 4)},
    ("com.microsoft", "Attention"): {0: (3, 3), 1: (2, 2), 2: (1, 1)},
}
_SAME_RANK = frozenset({"Conv", "ConvTranspose", "FusedConv"})


def check_ranks(node: onnx.NodeProto, ranks: Sequence[int | None]) -> None:
    """Check the ranks of a node's inputs; ``ranks`` by slot, None where absent or unknown.

    Raises:
        ModelError: with the input that no kernel would take.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    where = f"{node.op_type} '{node.name}'"
    for slot, (low, high) in _RANKS.get((domain, node.op_type), {}).items():
        rank = ranks[slot] if slot < len(ranks) else None
        if rank is not None and not low <= rank <= high:
            raise ModelError(
                f"{where}: its input '{node.input[slot]}' has {rank} dimensions", _DAMAGED
            )
    if node.op_type in _SAME_RANK and (domain, node.op_type) in _RANKS:
        if None not in ranks[:2] and ranks[0] != ranks[1]:
            raise ModelError(f"{where}: image and kernel have different ranks", _DAMAGED)
        if any(item.name == "group" and item.i < 1 for item in node.attribute):
            raise ModelError(f"{where}: attribute 'group' is below 1", _DAMAGED)
