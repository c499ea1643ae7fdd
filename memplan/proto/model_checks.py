"""Checks of tensors, operator calls and whole models against what ONNX itself defines.

What passes here can be indexed without fear further on: required inputs and attributes are there,
attributes have their types, and constants hold as many elements as their dimensions say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs, helper

from memplan.errors import ModelError, UsageError
from memplan.proto import native
from memplan.proto.edit import copied
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.external import external_tensors
from memplan.proto.nodes import all_nodes, is_standard, subgraphs
from memplan.proto.opset import default_opset
from memplan.units import counted

_Proto = onnx.TensorProto
_DAMAGED = "export the model again; the file is damaged or was edited"


def check_tensor(tensor: onnx.TensorProto, where: object) -> None:
    """Check type, dimensions and number of elements of a constant; ``where``, printed, begins the
    message.

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


def check_sparse(tensor: onnx.SparseTensorProto, where: object) -> None:
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


@dataclass(frozen=True, slots=True)
class _Attribute:
    """What a definition says of an attribute; ``type`` as in ``AttributeProto.type``."""

    type: int
    required: bool


@dataclass(frozen=True, slots=True)
class _Definition:
    """ONNX's definition of an operator, as far as calls are held against it.

    ``inputs`` and ``outputs``: least and most. ``single``: slot and name of the inputs that no call
    leaves out. It is kept, as every look into an ``OpSchema`` makes new lists and dictionaries.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    single: tuple[tuple[int, str], ...]
    attributes: Mapping[str, _Attribute]
    requires_attributes: bool


@cache
def _definition(op: str, version: int) -> _Definition | None:
    """ONNX's definition; None for operators of others and for those that ONNX withdrew."""
    try:
        found = defs.get_schema(op, version, "")
    except defs.SchemaError:
        return None
    if found.deprecated:
        return None
    single = defs.OpSchema.FormalParameterOption.Single
    attributes = {
        name: _Attribute(int(formal.type), formal.required)  # type: ignore[call-overload]
        for name, formal in found.attributes.items()
    }
    return _Definition(
        (found.min_input, found.max_input),
        (found.min_output, found.max_output),
        tuple((k, item.name) for k, item in enumerate(found.inputs) if item.option == single),
        attributes,
        any(formal.required for formal in attributes.values()),
    )


def check_operator(
    node: onnx.NodeProto, version: int, functions: Set[tuple[str, str]], where: object
) -> None:
    """Check a call of a standard operator: number of inputs and outputs, and attributes.

    Args:
        node: the call; those of other domains are not judged.
        version: opset of the standard domain.
        functions: (domain, name) of model-local functions, which may replace an operator.
        where: begins the message, printed.

    Raises:
        ModelError: with what is missing or too much.
    """
    domain, op = node.domain, node.op_type
    if functions and (domain, op) in functions:
        return
    given = list(node.attribute)
    if given and any(item.ref_attr_name for item in given):
        raise ModelError(f"{where} refers to an attribute of a function, and is in none", _DAMAGED)
    if not is_standard(domain):
        _check_counts(node, *_CONTRIB.get((domain, op), _ANY), where)
        return
    definition = _definition(op, version)
    if definition is None:
        # ONNX Runtime has some operators in this domain that are newer, or that ONNX has not.
        newer = _definition(op, defs.onnx_opset_version())
        least = (newer.inputs[0], newer.outputs[0]) if newer is not None else (0, 0)
        least = _ORT_DEFAULT_DOMAIN.get(op, least)
        most = 1 if op in _HOST_COPIES else _MANY
        _check_counts(node, (least[0], most), (least[1], most), where)
        return
    _check_counts(node, definition.inputs, definition.outputs, where)
    inputs = node.input
    if "" in inputs:
        for slot, name in definition.single:
            if slot < len(inputs) and not inputs[slot]:
                raise ModelError(f"{where} lacks its input '{name}'", _DAMAGED)
    if given or definition.requires_attributes or op == "Constant":
        _check_attributes(node, given, definition, where)


# Operators of ONNX Runtime's in ONNX's domain that no opset of ONNX defines: least inputs, outputs
# (onnxruntime core/graph/contrib_ops/contrib_defs.cc).
_HOST_COPIES = frozenset({"MemcpyToHost", "MemcpyFromHost"})
_ORT_DEFAULT_DOMAIN = {
    "SimplifiedLayerNormalization": (2, 1),
    **dict.fromkeys(_HOST_COPIES, (1, 1)),
}
_EARLY = frozenset({"LayerNormalization"})
"""Operators that ONNX Runtime has in ONNX's domain from opset 1 on, and ONNX later."""
_MANY = 1 << 31
_ANY = ((0, _MANY), (0, _MANY))
# Operators of ONNX Runtime's whose inputs and outputs memplan reads by slot: least and most of
# each (the same file, and orttraining/core/graph/training_op_defs.cc).
_MS = "com.microsoft"
_CONTRIB = {
    (_MS, "FusedMatMul"): ((2, 2), (1, 1)),
    (_MS, "FusedConv"): ((2, 4), (1, 1)),
    (_MS, "FusedGemm"): ((2, 3), (1, 1)),
    (_MS, "BiasGelu"): ((2, 2), (1, 1)),
    (_MS, "BiasAdd"): ((3, 3), (1, 1)),
    (_MS, "Gelu"): ((1, 1), (1, 1)),
    (_MS, "FastGelu"): ((1, 2), (1, 1)),
    (_MS, "QuickGelu"): ((1, 1), (1, 1)),
    (_MS, "SkipLayerNormalization"): ((3, 5), (1, 4)),
    (_MS, "ReduceSumTraining"): ((2, 2), (1, 1)),
    (_MS, "ConcatTraining"): ((1, _MANY), (1, 2)),
}


def _check_counts(
    node: onnx.NodeProto, inputs: tuple[int, int], outputs: tuple[int, int], where: object
) -> None:
    """Check how many inputs and outputs a node has, against the least and most of each."""
    given, made = len(node.input), len(node.output)
    if inputs[0] <= given <= inputs[1] and outputs[0] <= made <= outputs[1]:
        return
    for what, count, (low, high) in (("input", given, inputs), ("output", made, outputs)):
        if not low <= count <= high:
            wanted = str(low) if low == high else f"{low} to {high}" if high < 1000 else f"{low}+"
            raise ModelError(
                f"{where} has {counted(count, what)}; {node.op_type} takes {wanted}", _DAMAGED
            )


CALLS_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators of ONNX's domain that call their bodies with inputs and outputs of their own."""


def check_body(node: onnx.NodeProto, where: object) -> None:
    """Check that the bodies of an If, Loop or Scan have as many inputs and outputs as it calls
    them with.

    Raises:
        ModelError: see above.
    """
    if node.op_type not in CALLS_BODIES or not is_standard(node.domain):
        return
    if node.op_type == "Scan":
        sequences = sum(a.i for a in node.attribute if a.name == "num_scan_inputs")
        if not 0 < sequences <= len(node.input):
            raise ModelError(f"{where} has {sequences:,} num_scan_inputs", _DAMAGED)
    inputs = 0 if node.op_type == "If" else len(node.input)
    before = 1 if node.op_type == "Loop" else 0  # the condition
    for body in subgraphs(node):
        stated = (len(body.input), len(body.output))
        if stated[0] != inputs or stated[1] < len(node.output) + before:
            raise ModelError(
                f"{where}: its body has {counted(stated[0], 'input')} and "
                f"{counted(stated[1], 'output')}, and is called "
                f"with {inputs} and {len(node.output) + before}",
                _DAMAGED,
            )


def _check_attributes(
    node: onnx.NodeProto,
    stated: Sequence[onnx.AttributeProto],
    definition: _Definition,
    where: object,
) -> None:
    given = {item.name: item for item in stated}
    for name, formal in definition.attributes.items():
        if name not in given:
            if formal.required:
                raise ModelError(f"{where} lacks its attribute '{name}'", _DAMAGED)
        elif given[name].type != formal.type:
            raise ModelError(f"{where}: attribute '{name}' has the wrong type", _DAMAGED)
        elif name in _FLAGS and given[name].i not in (0, 1):
            raise ModelError(f"{where}: attribute '{name}' is neither 0 nor 1", _DAMAGED)
        elif given[name].type == onnx.AttributeProto.STRING and node.op_type != "Constant":
            _check_text(given[name], where)
    if len(given) < len(stated):
        raise ModelError(f"{where} has an attribute twice", _DAMAGED)
    if node.op_type == "Constant" and (len(given) != 1 or not node.output[0]):
        raise ModelError(f"{where}: a Constant has one value and one output", _DAMAGED)
    if node.op_type == "Split" and "num_outputs" in given:
        # The runtime counts outputs, ONNX's inference makes as many as this says: billions, too.
        promised, count = given["num_outputs"].i, len(node.output)
        if promised != count:
            has = f"{where} has {counted(count, 'output')}"
            raise ModelError(f"{has}, and num_outputs is {promised}", _DAMAGED)


_FLAGS = frozenset({"keepdims", "noop_with_empty_axes", "transA", "transB"})
"""Attributes that are 0 or 1; runtimes do not agree on what other numbers mean."""


def _check_text(attribute: onnx.AttributeProto, where: object) -> None:
    try:
        attribute.s.decode()
    except UnicodeDecodeError:
        raise ModelError(
            f"{where}: attribute '{attribute.name}' is not valid UTF-8", _DAMAGED
        ) from None


def require_valid(model: onnx.ModelProto) -> None:
    """Check what the ONNX checker says of a model that a user gave.

    Raises:
        ModelError: it finds a fault.
    """
    fault = find_fault(model)
    if fault is not None:
        raise ModelError(f"the ONNX checker refuses the model: {fault}", _DAMAGED)


def host_copies(model: onnx.ModelProto) -> int:
    """How many nodes copy between device and host: what ``rewrite --offload`` writes."""
    return sum(n.op_type in _HOST_COPIES and is_standard(n.domain) for n in model.graph.node)


def require_device(model: onnx.ModelProto, provider: str) -> None:
    """Refuse a model with copies between device and host for the CPU provider.

    Raises:
        UsageError: it has some.
    """
    copies = host_copies(model)
    if provider == "cpu" and copies:
        raise UsageError(
            f"the model offloads tensors to the host ({counted(copies, 'node')} that copy), and "
            "the CPU provider has no such operators",
            "run it on CUDA (--provider cuda), or rewrite the original without --offload",
        )


def find_fault(model: onnx.ModelProto) -> str | None:
    """What the ONNX checker says of the structure alone, or None: weights are not read."""
    try:
        native.check_model(_without_weights(model))
    except onnx.checker.ValidationError as error:
        return str(error).splitlines()[0]
    return None


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that the checker accepts without opening files: external tensors as graph inputs.

    Outputs without a stated shape are legal for the runtime but not for the checker, so they get
    one here.
    """
    copy = copied(model)
    _set_apart(copy)
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
    for tensor in external_tensors(copy):  # those in attributes and bodies: stand for nothing
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    return copy


def _set_apart(model: onnx.ModelProto) -> None:
    """Move operators that ONNX Runtime has in ONNX's domain, and this opset of ONNX has not, to a
    domain that the checker does not judge."""
    version = min(default_opset(model), defs.onnx_opset_version())
    found = False
    for node in all_nodes(model.graph.node):
        known = node.op_type in (*_ORT_DEFAULT_DOMAIN, *_EARLY)
        if known and is_standard(node.domain) and _definition(node.op_type, version) is None:
            node.domain, found = _MS, True
    if found and all(item.domain != _MS for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_MS, 1))
