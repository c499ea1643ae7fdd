"""The opset of a model, how it is raised and lowered, and what it has of an operator."""

from __future__ import annotations

from functools import cache

import onnx

from memplan.errors import UsageError
from memplan.proto import native
from memplan.proto.nodes import all_nodes, is_standard

OPSET = 20
"""That of graphs that are made here: the oldest with Gelu, and with all that gradients need."""

REFUSED = "refuses the file as it is"  # a newer runtime may not; the figures are right for all
_NAMED = 5  # operators that a sentence names
_NEWEST_IR, _NEWEST_OPSET = 13, 26  # that ONNX Runtime 1.31 reads; 1.32 reads 14 and 28


def default_opset(model: onnx.ModelProto) -> int:
    """The opset of ONNX's own operators."""
    return next((item.version for item in model.opset_import if is_standard(item.domain)), 1)


_INITIALIZERS_ALONE = 4


def allow_initializers(model: onnx.ModelProto) -> None:
    """Let initializers be added: before IR version 4 each had to be a graph input, too."""
    if model.ir_version < _INITIALIZERS_ALONE:
        model.ir_version = _INITIALIZERS_ALONE


def raise_opset(model: onnx.ModelProto, version: int, purpose: str) -> onnx.ModelProto:
    """The model with its operators of at least ``version``, as ONNX's converter writes them.

    Args:
        model: a checked model; the same object is returned if its opset is new enough.
        version: the oldest opset that will do.
        purpose: what needs it, for the error message.

    Raises:
        UsageError: the converter cannot do it.
    """
    if default_opset(model) >= version:
        return model
    try:
        return native.convert_version(model, version)
    except Exception as error:  # the binding raises bare C++ exceptions of several types
        raise UsageError(
            f"{purpose} need opset {version}, the file has {default_opset(model)} and cannot be "
            f"converted: {str(error).splitlines()[0]}",
            f"export the model with opset {version} or newer, or use --session tuned",
        ) from None


def lower_versions(model: onnx.ModelProto) -> list[str]:
    """Have a model say the newest versions that ONNX Runtime 1.31 reads, in place, where newer ones
    add nothing to it (IR version 14 has types of six bits; of most operators, the opsets from 27 on
    have nothing new). What the runtime refuses of the file as it was, in sentences."""
    notes, refuses = [], f"ONNX Runtime 1.31 {REFUSED} (it reads up to"
    if (version := model.ir_version) > _NEWEST_IR:
        notes.append(f"IR version {version}: {refuses} {_NEWEST_IR})")
        if version <= onnx.IR_VERSION:
            model.ir_version = _NEWEST_IR
            notes[-1] += f"; memplan writes {_NEWEST_IR}"
    for item in model.opset_import:
        version = item.version
        if is_standard(item.domain) and version > _NEWEST_OPSET:
            notes.append(f"opset {version}: {refuses} {_NEWEST_OPSET})")
            own = {node.op_type for node in all_nodes(model.graph.node) if is_standard(node.domain)}
            newer = sorted(op for op in own if _since(op, version) != _since(op, _NEWEST_OPSET))
            if version <= onnx.defs.onnx_opset_version() and not newer:
                item.version = _NEWEST_OPSET
                notes[-1] += f"; its operators are those of {_NEWEST_OPSET}, which memplan writes"
            elif newer:
                notes[-1] += f"; {', '.join(newer[:_NAMED])} changed since"
    return notes


def _since(op: str, version: int) -> int | None:
    """Since which opset an operator has been as an opset has it; None: it has none such."""
    schema = schema_of("", op, version)
    return None if schema is None else schema.since_version


@cache
def schema_of(domain: str, op: str, opset: int) -> onnx.defs.OpSchema | None:
    """ONNX's definition of an operator at an opset of its domain, or None."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
