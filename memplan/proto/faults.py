"""What the ONNX checker has against a model, without its weights."""

from __future__ import annotations

import onnx


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
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
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
    return copy
