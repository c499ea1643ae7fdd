"""Shapes that a file must not state, as the runtime would then plan with them.

A model for sessions with default options hides the shapes of its computed tensors
(:mod:`memplan.planning.plain.input_fences`). memplan still needs them, so they stand in the
metadata.
"""

from __future__ import annotations

import onnx

from memplan.proto.edit import copied
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.metadata import get_metadata
from memplan.shapes.dims import LARGEST_DIM

HIDDEN_KEY = "hidden_shapes"


def hidden_shapes(model: onnx.ModelProto) -> dict[str, object]:
    """The stated types of computed tensors, in the form in which the metadata holds them.

    By tensor name: element type and dimensions, numbers or the names of symbols.
    """
    return {
        value.name: [value.type.tensor_type.elem_type, _dims(value.type.tensor_type.shape)]
        for value in model.graph.value_info
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }


def _dims(shape: onnx.TensorShapeProto) -> list[int | str | None]:
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
    ]


def with_hidden_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its hidden shapes stated as ``value_info``; the same object without any."""
    hidden = get_metadata(model).get(HIDDEN_KEY)
    if not isinstance(hidden, dict) or not hidden:
        return model
    result = copied(model)
    unstated = {name for node in model.graph.node for name in node.output}
    unstated.difference_update(value.name for value in model.graph.value_info)
    for name, entry in hidden.items():
        if name in unstated and _is_type(entry):
            result.graph.value_info.append(onnx.helper.make_tensor_value_info(name, *entry))
    return result


def _is_type(entry: object) -> bool:
    """Metadata can be edited by hand: whether ``entry`` is an element type and dimensions."""
    if not (isinstance(entry, list) and len(entry) == 2):
        return False
    dtype, dims = entry
    return (
        isinstance(dtype, int)
        and (dtype in ELEMENT_BITS or dtype == onnx.TensorProto.STRING)
        and isinstance(dims, list)
        and all(dim is None or isinstance(dim, str) or _is_size(dim) for dim in dims)
    )


def _is_size(dim: object) -> bool:
    return isinstance(dim, int) and 0 <= dim <= LARGEST_DIM
