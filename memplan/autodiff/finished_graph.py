"""What is left to do on a training graph once it is made."""

from __future__ import annotations

import onnx

from memplan.autodiff.blunt import make_blunt
from memplan.autodiff.dropouts import without_unread_masks
from memplan.errors import MemplanError
from memplan.ops.kernels import kernels_of
from memplan.proto import native
from memplan.proto.metadata import set_metadata
from memplan.proto.model_checks import find_fault
from memplan.proto.nodes import all_nodes, is_standard
from memplan.proto.opset import default_opset
from memplan.shapes.one_node import is_function, schema_of
from memplan.shapes.prepare import inline_functions, name_nodes


def finished(model: onnx.ModelProto, *, portable: bool = False) -> onnx.ModelProto:
    """The training graph with names for all nodes, checked.

    Function operators that no runtime has a kernel for are inlined, so that its order stays the
    file's, and if it is to be ``portable`` those that WebGPU has none for (``LogSoftmax``); what
    ONNX Runtime would compute wrongly, and dropouts that it would leave out, are written otherwise.

    Raises:
        MemplanError: the ONNX checker refuses the result; our bug.
    """
    model, _ = inline_functions(model)
    if portable:
        ops = {n.op_type for n in all_nodes(model.graph.node) if is_standard(n.domain)}
        schemas = {op: schema_of("", op, default_opset(model)) for op in ops}
        written = [op for op, found in schemas.items() if found and is_function(found)]
        without = sorted(op for op in written if f":{op}" not in kernels_of("webgpu").rows)
        model = native.inline_functions(model, without) if without else model
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
