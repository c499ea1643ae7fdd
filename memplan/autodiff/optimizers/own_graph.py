"""Updates as a graph of their own: gradients come in, new values go out.

For gradients that are summed over several batches before they are used. The gradients are
multiplied by the input ``gradient_scale`` (1 over the number of batches) before anything else; of a
loss that is scaled, also divided by the scale, which all batches share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from memplan.autodiff.assemble import append
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.optimizers.optimizer import Member
from memplan.autodiff.optimizers.scaling import LossScale
from memplan.autodiff.optimizers.updates import Updates
from memplan.shapes.tensor_type import TensorType, value_info


@dataclass(frozen=True, slots=True)
class UpdateGraph:
    """The graph, and how its updates were made."""

    model: onnx.ModelProto
    updates: Updates


def build_update(
    step: onnx.ModelProto,
    gradients: Mapping[str, str],
    types: Mapping[str, TensorType],
    members: Mapping[str, Member],
    scale: LossScale | None = None,
) -> UpdateGraph:
    """The graph that updates the parameters of a training graph.

    Parameters are inputs without a default there: their values are those of the training graph.

    Args:
        step: the training graph, for its opset; it is not changed.
        gradients: its outputs that are gradients → its parameters. They are inputs of the same
            names here.
        types: of the parameters.
        members: how each of them is updated.
        scale: the loss scale, by which the gradients are multiplied.
    """
    model = onnx.ModelProto(ir_version=step.ir_version, producer_name=step.producer_name)
    model.opset_import.extend(item for item in step.opset_import if item.domain in ("", "ai.onnx"))
    model.graph.name = f"{step.graph.name or 'graph'}_update"
    for gradient, name in gradients.items():
        model.graph.input.extend(value_info(given, types[name]) for given in (name, gradient))
    emitter: Emitter = emitter_for(model, ())
    updates = Updates(members, types, scaled=True, scale=scale)
    outputs: dict[str, Value] = {}
    for gradient, name in gradients.items():
        outputs.update(updates.take(emitter, name, emitter.tensor(gradient)))
    outputs.update(updates.finish(emitter))
    append(model, emitter, outputs)
    return UpdateGraph(model, updates)
