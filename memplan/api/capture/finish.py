"""The last of a captured graph: what is constant, defaults, and the training contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from memplan.api.capture.gradients import Trained
from memplan.api.capture.weights import Weight, declare_constants
from memplan.autodiff.optimizers import RATE, STEP
from memplan.ir.contract import Contract, Role
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY, get_metadata, set_metadata
from memplan.proto.nodes import names_read
from memplan.pytorch.program import Exported
from memplan.pytorch.reading import Reading
from memplan.pytorch.values import onnx_type
from memplan.units import counted


@dataclass(frozen=True, slots=True)
class Finished:
    """The graph to be written, without its weights, and the weights.

    ``frozen`` are parameters that are constants of it, ``unused`` those that it does not have.
    """

    model: onnx.ModelProto
    weights: Mapping[str, Weight]
    contract: Contract
    frozen: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def finish(reading: Reading, exported: Exported, trained: Trained) -> Finished:
    """Complete a training graph, in place."""
    graph = trained.model.graph
    read = names_read(graph.node)
    stored = (*exported.parameters, *exported.buffers)
    renewed = {name for name in exported.renewed.values()}
    live = {*trained.wrt, *renewed}
    unused = tuple(n for n in exported.parameters if n not in read and n not in live)
    gone = {name for name in stored if name not in read and name not in live}
    constants = [name for name in stored if name not in live and name not in gone]
    declare_constants(trained.model, [*gone, *constants])
    _add_controls(reading, trained.model)
    given = [value.name for value in graph.input]
    state = [name for name in given if reading.optimizer and name in reading.optimizer.state]
    weights = {
        name: Weight(
            onnx_type(reading.tensors[name]),
            tuple(reading.tensors[name].shape),
            reading.bytes_of(name),
        )
        for name in (*(n for n in stored if n not in gone), *state)
    }
    contract = _contract(exported, trained, renewed)
    set_metadata(trained.model, {**get_metadata(trained.model), **contract.as_metadata()})
    left = set(constants)
    notes = ()
    if unused:
        notes = (
            f"{counted(len(unused), 'parameter')} without influence on the loss "
            f"({', '.join(unused[:3])}): not in the graph",
        )
    frozen = tuple(n for n in exported.parameters if n in left)
    return Finished(trained.model, weights, contract, frozen, unused, notes)


def _add_controls(reading: Reading, model: onnx.ModelProto) -> None:
    """Defaults of the learning rate and the step, and the step that counts itself."""
    settings, graph = reading.optimizer, model.graph
    if settings is None:
        return
    given = {value.name for value in graph.input}
    stored = {tensor.name for tensor in graph.initializer}
    made = {value.name for value in graph.output}
    if RATE in given and RATE not in stored:
        graph.initializer.append(helper.make_tensor(RATE, TensorProto.FLOAT, [], [settings.lr]))
    if STEP not in given:
        return
    if STEP not in stored:
        graph.initializer.append(helper.make_tensor(STEP, TensorProto.INT64, [], [settings.step]))
    if f"{STEP}_new" not in made:
        one, new = f"{STEP}/one", f"{STEP}_new"
        graph.initializer.append(helper.make_tensor(one, TensorProto.INT64, [], [1]))
        node = helper.make_node("Add", [STEP, one], [new], name=f"{STEP}/update")
        node.metadata_props.add(key=PHASE_KEY, value=Phase.UPDATE)
        graph.node.append(node)
        graph.output.append(helper.make_tensor_value_info(new, TensorProto.INT64, []))


def _contract(exported: Exported, trained: Trained, renewed: set[str]) -> Contract:
    graph = trained.model.graph
    given = [value.name for value in graph.input]
    made = [value.name for value in graph.output]
    new_values = {name: name.removesuffix("_new") for name in made}
    new_values = {new: old for new, old in new_values.items() if old != new and old in set(given)}
    gradients = {f"{name}_grad": name for name in trained.wrt if f"{name}_grad" in set(made)}
    roles: dict[str, Role] = {}
    for name in given:
        if name in trained.wrt:
            roles[name] = Role.PARAMETER
        elif name in renewed:
            roles[name] = Role.RUNNING_STATISTIC
        elif name in exported.batch:
            roles[name] = Role.BATCH
        elif name == RATE:
            roles[name] = Role.HYPERPARAMETER
        elif name == STEP:
            roles[name] = Role.STEP_COUNTER
        else:
            roles[name] = Role.OPTIMIZER_STATE
    for name in made:
        if name == exported.loss:
            roles[name] = Role.LOSS
        elif name in new_values:
            roles[name] = Role.NEW_VALUE
        else:
            roles[name] = Role.GRADIENT if name in gradients else Role.OUTPUT
    return Contract(roles, new_values, gradients, stated=True)
