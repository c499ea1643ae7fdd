"""The two roads from an exported graph to a training graph, without weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.assemble import append
from memplan.autodiff.build import Request, build_gradients, gradient_outputs
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.annotate import flat_copy
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.statistics import renew_statistics
from memplan.errors import MemplanError, ModelError
from memplan.proto.checks import find_fault
from memplan.proto.edit import replace_nodes
from memplan.shapes.prepare import inline_functions, name_nodes

Update = Callable[[Emitter, str, Value], Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Trained:
    """A training graph whose weights are inputs without a default, and what it is trained by."""

    model: onnx.ModelProto
    wrt: tuple[str, ...]


def by_grad(
    forward: onnx.ModelProto, loss: str, trainable: Sequence[str], update: Update | None
) -> Trained:
    """Differentiate a forward graph by memplan's own rules.

    Raises:
        ModelError: an operator on the way has no gradient, or no parameter leads to the loss.
    """
    flat = flat_copy(forward)
    renew_statistics(flat.graph)
    types = emitter_for(flat, ()).types
    active = find_activity(list(flat.graph.node), types, [loss], trainable).tensors
    wrt = tuple(name for name in trainable if name in active)
    _require_some(wrt)
    built = build_gradients(flat, Request((loss,), wrt), update or gradient_outputs)
    return Trained(_finished(built), wrt)


def by_autograd(
    joint: onnx.ModelProto, gradients: Mapping[str, str], update: Update | None
) -> Trained:
    """Put the optimizer behind the gradients (output → parameter) of a joint graph."""
    wrt = tuple(gradients.values())
    _require_some(wrt)
    if update is None:
        return Trained(_finished(joint), wrt)
    flat = flat_copy(joint)
    emitter = emitter_for(flat, ())
    outputs: dict[str, Value] = {}
    for output, parameter in gradients.items():
        outputs.update(update(emitter, parameter, emitter.tensor(output)))
    forward = len(flat.graph.node)
    kept = [value for value in flat.graph.output if value.name not in gradients]
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    infos = [value for value in flat.graph.output if value.name in gradients]
    flat.graph.value_info.extend(infos)
    del flat.graph.output[:]
    flat.graph.output.extend(copies)
    append(flat, emitter, outputs)
    replace_nodes(flat.graph, _early(list(flat.graph.node), forward))
    return Trained(_finished(flat), wrt)


def _early(nodes: list[onnx.NodeProto], first: int) -> list[onnx.NodeProto]:
    """The nodes from index ``first`` on, each right behind the last that it reads from: a gradient
    is not held until the end."""
    place: dict[str, int] = {}
    keys: list[tuple[int, int]] = []
    for index, node in enumerate(nodes):
        at = index if index < first else max((place.get(name, 0) for name in node.input), default=0)
        keys.append((at, index))
        place.update(dict.fromkeys(node.output, at))
    return [nodes[index] for _, index in sorted(keys)]


def _require_some(wrt: Collection[str]) -> None:
    if not wrt:
        raise ModelError(
            "no parameter that requires a gradient leads to the loss",
            "unfreeze what is to be trained, and check that nothing is detached on the way",
        )


def _finished(model: onnx.ModelProto) -> onnx.ModelProto:
    model, _ = inline_functions(model)
    name_nodes(model.graph)
    fault = find_fault(model)
    if fault is not None:
        raise MemplanError(
            f"the training graph was rejected: {fault}",
            "nothing was written; please report this with the model",
        )
    return model
