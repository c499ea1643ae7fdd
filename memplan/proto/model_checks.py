"""What ONNX's own checker says of a model, and what it leaves to be said.

What passes here can be indexed without fear further on: required inputs and attributes are there,
attributes have their types, and constants hold as many elements as their dimensions say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from contextlib import suppress
from functools import cache
from typing import Any

import onnx
from onnx import defs, helper

from memplan.errors import ModelError, UsageError
from memplan.proto import native
from memplan.proto.bare import without_weights
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.external import external_tensors
from memplan.proto.nodes import all_nodes, is_constant, is_standard, subgraphs
from memplan.proto.opset import schema_of
from memplan.units import counted

_Proto = onnx.TensorProto
_DAMAGED = "export the model again; the file is damaged or was edited"
_MS = "com.microsoft"
_AS_IT_IS = 1 << 24  # bytes of a model that costs less to be sent to the checker than to be copied
_INITIALIZERS_ALONE = 4  # since this IR version they need not be graph inputs


def require_valid(model: onnx.ModelProto, before: str = "", *, lenient: bool = False) -> None:
    """Check what the ONNX checker says of a model that a user gave; see :func:`find_fault`.

    Raises:
        ModelError: it finds a fault; ``before`` begins the message.
    """
    fault = find_fault(model, lenient=lenient)
    if fault is not None:
        raise ModelError(f"{before}the ONNX checker refuses the model: {fault}", _DAMAGED)


def find_fault(model: onnx.ModelProto, *, lenient: bool = False) -> str | None:
    """What the ONNX checker says of the structure alone, or None: weights are not read.

    ``lenient``: operators that ONNX does not know are no fault, nor is what the checker demands of
    a file and no runtime does.
    """
    if model.ByteSize() <= _AS_IT_IS:
        with suppress(Exception):  # what is wrong, if anything is, the second look says
            native.check_model(model)
            return None
    try:
        native.check_model(_for_checker(model, lenient))
    except onnx.checker.ValidationError as error:
        fault, *places = (" ".join(part.split()) for part in str(error).split("==> Context:"))
        return f"{fault} ({'; '.join(places)})" if places else fault
    return None


def _for_checker(model: onnx.ModelProto, lenient: bool) -> onnx.ModelProto:
    """A copy that the checker accepts without opening files: weights are graph inputs, or empty in
    attributes and bodies. It would miss types and shapes of inputs and outputs that no runtime
    needs, so all have one here."""
    copy = without_weights(model, statements=False)
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.CopyFrom(helper.make_tensor_type_proto(_Proto.FLOAT, []))
    copy.functions.extend(model.functions)
    for tensor in external_tensors(copy):
        tensor.CopyFrom(_Proto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    replaced = {f.name for f in copy.functions if is_standard(f.domain)}
    for part in (copy.graph, *copy.functions):
        imports = part.opset_import if isinstance(part, onnx.FunctionProto) else copy.opset_import
        _set_apart(part.node, imports, replaced, lenient)
    if lenient:
        copy.ir_version = min(max(copy.ir_version, _INITIALIZERS_ALONE), onnx.IR_VERSION)
    return copy


def _set_apart(nodes: Any, imports: Any, replaced: Set[str], lenient: bool) -> None:
    """Move operators of ONNX's domain that its opset has not, or that functions ``replaced``, to a
    domain that the checker does not judge: ONNX Runtime has some that ONNX has later, no longer, or
    never. If not ``lenient``, only those that it has."""
    version = opset_of(imports)
    for item in imports:
        item.domain = "" if is_standard(item.domain) else item.domain
    moved, needed = dict[tuple[str, str], str](), set[str]()
    for given, op in {(node.domain, node.op_type) for node in all_nodes(nodes)}:
        domain = "" if is_standard(given) else given
        known = lenient or op in (*_ORT_DEFAULT_DOMAIN, *_EARLY)
        if not domain and known and not (is_defined(op, version) and op not in replaced):
            domain = _MS
        if domain != given:
            moved[given, op] = domain
        if domain and (lenient or domain == _MS):
            needed.add(domain)
    for node in all_nodes(nodes) if moved else ():
        node.domain = moved.get((node.domain, node.op_type), node.domain)
    for domain in sorted(needed.difference(item.domain for item in imports)):
        imports.append(helper.make_opsetid(domain, 1))


def opset_of(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """The opset of ONNX's own operators, as far as there is one."""
    newest = defs.onnx_opset_version()
    return min(next((i.version for i in imports if is_standard(i.domain)), newest), newest)


@cache
def is_defined(op: str, version: int) -> bool:
    """Whether an opset of ONNX has an operator, and has not withdrawn it."""
    schema = schema_of("", op, version)
    return schema is not None and not schema.deprecated


# -- what the checker leaves to be said ------------------------------------------------------------


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
    _check_utf8(tensor.string_data, name)


def _check_utf8(texts: Iterable[bytes], what: str) -> None:
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError:
        raise ModelError(f"{what} is not valid UTF-8", _DAMAGED) from None


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


def check_node(node: onnx.NodeProto, where: object) -> None:
    """Check the attributes of a call, and the bodies of a standard operator.

    Raises:
        ModelError: with what is wrong; ``where``, printed, begins the message.
    """
    standard = is_standard(node.domain)
    for attribute in node.attribute:
        kind, name = attribute.type, attribute.name
        if attribute.ref_attr_name:
            raise ModelError(
                f"{where} refers to an attribute of a function, and is in none", _DAMAGED
            )
        if kind == onnx.AttributeProto.TENSOR:
            check_tensor(attribute.t, where)
        elif kind == onnx.AttributeProto.SPARSE_TENSOR:
            check_sparse(attribute.sparse_tensor, where)
        elif standard and kind in _TEXTS and node.op_type != "Constant":
            _check_utf8((attribute.s, *attribute.strings), f"{where}: attribute '{name}'")
        elif standard and name in _FLAGS and attribute.i not in (0, 1):
            raise ModelError(f"{where}: attribute '{name}' is neither 0 nor 1", _DAMAGED)
        elif (node.op_type, name) == ("Split", "num_outputs") and attribute.i != len(node.output):
            # The runtime counts outputs, inference makes as many as this says: billions, too.
            has = f"{where} has {counted(len(node.output), 'output')}"
            raise ModelError(f"{has}, and num_outputs is {attribute.i}", _DAMAGED)
    if is_constant(node) and (len(node.attribute) != 1 or not any(node.output)):
        raise ModelError(f"{where}: a Constant has one value and one output", _DAMAGED)
    if standard and node.op_type in _CALLS_BODIES:
        _check_bodies(node, where)


_TEXTS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_FLAGS = frozenset({"keepdims", "noop_with_empty_axes", "transA", "transB"})
"""Attributes that are 0 or 1; runtimes do not agree on what other numbers mean."""


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
# Operators of ONNX Runtime's whose inputs and outputs memplan reads by slot: least and most of
# each (the same file, and orttraining/core/graph/training_op_defs.cc).
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


def check_counts(node: onnx.NodeProto, version: int, where: object) -> None:
    """Check how many inputs and outputs an operator has that the checker does not judge: one of
    ONNX Runtime's, or of ONNX's domain in another opset than ``version``.

    Raises:
        ModelError: see above.
    """
    limits = _CONTRIB.get((node.domain, node.op_type))
    if is_standard(node.domain) and not is_defined(node.op_type, version):
        least = _ORT_DEFAULT_DOMAIN.get(node.op_type, (0, 0))
        if is_defined(node.op_type, defs.onnx_opset_version()):
            newer = defs.get_schema(node.op_type)
            least = newer.min_input, newer.min_output
        most = 1 if node.op_type in _HOST_COPIES else _MANY
        limits = ((least[0], most), (least[1], _MANY))
    if limits is None:
        return
    calls = (("input", node.input), ("output", node.output))
    for (what, names), (low, high) in zip(calls, limits, strict=True):
        if not low <= len(names) <= high:
            wanted = str(low) if low == high else f"{low} to {high}" if high < 1000 else f"{low}+"
            raise ModelError(
                f"{where} has {counted(len(names), what)}; {node.op_type} takes {wanted}", _DAMAGED
            )


_CALLS_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators of ONNX's domain that call their bodies with inputs and outputs of their own."""


def _check_bodies(node: onnx.NodeProto, where: object) -> None:
    """Check that bodies have as many inputs and outputs as they are called with."""
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
