"""What is left to do on a training graph once it is made."""

from __future__ import annotations

import onnx

from memplan.autodiff.blunt import make_blunt
from memplan.autodiff.dropouts import without_unread_masks
from memplan.errors import MemplanError
from memplan.proto.metadata import set_metadata
from memplan.proto.model_checks import find_fault
from memplan.shapes.prepare import inline_functions, name_nodes


def finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """The training graph with names for all nodes, checked.

    Function operators that no runtime has a kernel for are inlined, so that its order stays the
    file's; what ONNX Runtime would compute wrongly, and dropouts that it would leave out, are
    written otherwise.

    Raises:
        MemplanError: the ONNX checker refuses the result; our bug.
    """
    model, _ = inline_functions(model)
    make_blunt(model)
    name_nodes(model.graph)
    without_unread_masks(model)
    set_metadata(model, {})  # what memplan noted in the forward graph is not true of this one
    fault = find_fault(model)
    if fault is not None:
        raise MemplanError(
            f"the training graph was rejected: {fault}",
            "nothing was written; please report this with the model",
        )
    return model
