"""The opset of a model, and how it is raised."""

from __future__ import annotations

import onnx

from memplan.errors import UsageError
from memplan.proto import native
from memplan.proto.nodes import is_standard

OPSET = 20
"""That of graphs that are made here: the oldest with Gelu, and with all that gradients need."""


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
