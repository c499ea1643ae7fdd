"""The last of a captured graph: what is constant, defaults, and the training contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from memplan.api.capture.captured_weights import Weight, WeightPlace, choose_place
from memplan.api.capture.step_gradients import Trained
from memplan.api.grad.step_contract import contract_of
from memplan.autodiff.optimizers.updates import Updates
from memplan.ir.contract import Contract
from memplan.ir.roles import Role
from memplan.proto.edit import drop_named
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.nodes import names_read
from memplan.pytorch.program import ExportedGraph
from memplan.pytorch.reading import Reading
from memplan.pytorch.values import onnx_type
from memplan.units import counted


@dataclass(frozen=True, slots=True)
class Finished:
    """The graph to be written, without its weights, and the weights.

    ``place``: where these go; if nowhere, all of them are inputs. ``frozen`` are parameters that it
    reads and does not train, constants of it but for those that are ``given``: inputs that nothing
    renews. ``unused`` are those that it does not have.
    """

    model: onnx.ModelProto
    weights: Mapping[str, Weight]
    place: WeightPlace
    contract: Contract
    frozen: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    given: tuple[str, ...] = ()


def finish(
    reading: Reading,
    exported: ExportedGraph,
    trained: Trained,
    asked: str = WeightPlace.AUTO,
    output: Path | None = None,
) -> Finished:
    """Complete a training graph, in place.

    Args:
        reading: the step.
        exported: its graph.
        trained: the training graph.
        asked: where the weights are to go.
        output: the file to be written; None: there is none.

    Raises:
        UsageError: the weights cannot go there.
    """
    graph = trained.model.graph
    live = {*trained.wrt, *_new_values(exported, trained).values()}
    kept = live | names_read(graph.node)
    stored = (*exported.parameters, *exported.buffers)
    fixed = [name for name in stored if name in kept and name not in live]
    unused = tuple(name for name in exported.parameters if name not in kept)
    _resume(reading, trained)
    state = reading.optimizer.state if reading.optimizer is not None else {}
    weights = {
        name: Weight(
            onnx_type(reading.tensors[name]),
            tuple(reading.tensors[name].shape),
            reading.bytes_of(name),
            known=not reading.tensors[name].is_meta,
        )
        for name in (
            *(name for name in stored if name in kept),
            *(value.name for value in graph.input if value.name in state),
        )
    }
    place = choose_place(asked, weights, output)
    apart = place is WeightPlace.NONE
    inputs = tuple(name for name in fixed if apart or name in reading.given)
    # What no step changes is an initializer alone: a session may fold it.
    drop_named(graph.input, {*stored}.difference(live, inputs))
    contract = _contract(exported, trained, inputs)
    set_metadata(trained.model, {**get_metadata(trained.model), **contract.as_metadata()})
    frozen = tuple(n for n in exported.parameters if n in fixed)
    valueless = apart and any(not weight.known for weight in weights.values())
    notes = tuple(_notes(unused, exported.checkpoints, valueless))
    return Finished(trained.model, weights, place, contract, frozen, unused, notes, inputs)


def _notes(unused: Sequence[str], checkpoints: int, valueless: bool) -> Iterator[str]:
    if unused:
        yield (
            f"{counted(len(unused), 'parameter')} without influence on the loss "
            f"({', '.join(unused[:3])}): not in the graph"
        )
    if checkpoints:
        yield (
            f"{counted(checkpoints, 'tensor')} of torch.utils.checkpoint marked: "
            "'memplan rewrite --strategy collection' recomputes what lies between them"
        )
    if valueless:
        yield (
            "the model is on the meta device: its weights have no values, and are inputs without "
            "a default (--weights none)"
        )


def _resume(reading: Reading, trained: Trained) -> None:
    """Let the counters begin where the optimizer has come to."""
    settings, sink = reading.optimizer, trained.sink
    if settings is None or not isinstance(sink, Updates):
        return
    number = np.asarray(settings.step, np.int64)
    for tensor in trained.model.graph.initializer:
        if tensor.name in sink.inputs.counter_values:
            tensor.CopyFrom(numpy_helper.from_array(number, tensor.name))


def _new_values(exported: ExportedGraph, trained: Trained) -> dict[str, str]:
    """Outputs, and the inputs whose next value they are."""
    return {**exported.renewed, **trained.sink.new_values, **trained.counted.new_values}


def _contract(exported: ExportedGraph, trained: Trained, frozen: Sequence[str]) -> Contract:
    roles = dict.fromkeys(exported.batch, Role.BATCH)
    roles |= dict.fromkeys(exported.renewed.values(), Role.RUNNING_STATISTIC)
    roles |= dict.fromkeys(frozen, Role.FROZEN)
    roles |= dict.fromkeys(trained.wrt, Role.PARAMETER)
    roles |= trained.sink.roles()
    roles |= dict.fromkeys(trained.counted.new_values.values(), Role.STEP_COUNTER)
    new_values = _new_values(exported, trained)
    gradients = trained.sink.gradients
    return contract_of(trained.model.graph, roles, new_values, gradients, "loss")
