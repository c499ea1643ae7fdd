"""Checks of tensors, operator calls and whole models against what ONNX itself defines.

What passes here can be indexed without fear further on: required inputs and attributes are there,
attributes have their types, and constants hold as many elements as their dimensions say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cache

import onnx
from onnx import defs, helper

from memplan.errors import ModelError
from memplan.proto.edit import copied
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.external import external_tensors
from memplan.proto.nodes import domain_of, is_standard

_Proto = onnx.TensorProto
_DAMAGED = "export the model again; the file is damaged or was edited"


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check type, dimensions and number of elements of a constant; ``where`` begins the message.

    Raises:
        ModelError: with the tensor's name and what does not fit.
    """
    name = f"{where}: constant '{tensor.name}'"
    if tensor.data_type not in ELEMENT_BITS and tensor.data_type != _Proto.STRING:
        raise ModelError(f"{name} has unknown element type {tensor.data_type}", _DAMAGED)
    bits = ELEMENT_BITS.get(tensor.data_type, 0)
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
    if not is_standard(node.domain) or (node.domain, node.op_type) in functions:
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
    domain = domain_of(node)
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


def find_fault(model: onnx.ModelProto) -> str | None:
    """What the ONNX checker says of the structure alone, or None: weights are not read."""
    try:
        onnx.checker.check_model(_without_weights(model))
    except onnx.checker.ValidationError as error:
        return str(error).splitlines()[0]
    return None


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that the checker accepts without opening files: external tensors as graph inputs.

    Outputs without a stated shape are legal for the runtime but not for the checker, so they get
    one here.
    """
    copy = copied(model)
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    declared = {value.name for value in copy.graph.input}
    kept = []
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            kept.append(tensor)
        elif tensor.name not in declared:
            copy.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    if len(kept) < len(model.graph.initializer):
        del copy.graph.initializer[:]
        copy.graph.initializer.extend(kept)
    for tensor in external_tensors(copy):  # of bodies and attributes: without elements
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.dims[:] = [0]
    return copy
