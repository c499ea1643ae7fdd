"""The training contract of graphs that ``grad`` makes: what their inputs and outputs are.

Here it is known; for other files :mod:`memplan.ir.contract` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx

from memplan.autodiff.backward import GradientSink
from memplan.autodiff.counter_dropouts import Counted
from memplan.autodiff.optimizers.updates import Updates
from memplan.autodiff.parameters import Candidates
from memplan.autodiff.statistics import Statistics
from memplan.ir.contract import Contract
from memplan.ir.roles import Role


def state_contract(
    model: onnx.ModelProto,
    loss: str,
    trained: Iterable[str],
    sink: GradientSink,
    statistics: Statistics,
    candidates: Candidates,
    counted: Counted,
) -> Contract:
    """The contract of a training graph.

    An input that is differentiated by is a parameter; but not one that looks like data, beside
    others that do not.

    Args:
        model: the finished graph.
        loss: the loss output.
        trained: what it was differentiated by.
        sink: what took the gradients.
        statistics: running statistics and their new values.
        candidates: what could have been trained.
        counted: the masks that come from a counter.
    """
    new_values = _new_values(model.graph, sink, statistics, counted)
    parameters = set(trained)
    data = parameters & set(candidates.data) - set(new_values.values())
    if data != parameters:
        parameters -= data
    roles = dict(sink.roles()) | dict.fromkeys(parameters, Role.PARAMETER)
    roles |= dict.fromkeys(counted.new_values.values(), Role.STEP_COUNTER)
    for name in new_values.values():
        roles.setdefault(name, Role.RUNNING_STATISTIC)
    return contract_of(model.graph, roles, {loss: Role.LOSS}, new_values, sink.gradients)


def update_contract(
    model: onnx.ModelProto, gradients: Mapping[str, str], updates: Updates
) -> Contract:
    """The contract of a graph of updates: its gradients are inputs.

    Args:
        model: the finished graph.
        gradients: gradient → parameter.
        updates: what made it.
    """
    roles = dict(updates.roles()) | dict.fromkeys(gradients.values(), Role.PARAMETER)
    roles |= dict.fromkeys(gradients, Role.GRADIENT)
    return contract_of(model.graph, roles, {}, updates.new_values, gradients)


def contract_of(
    graph: onnx.GraphProto,
    known: Mapping[str, Role],
    outputs: Mapping[str, Role],
    new_values: Mapping[str, str],
    gradients: Mapping[str, str],
) -> Contract:
    """All roles, in order of the graph."""
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    roles = {
        value.name: known.get(value.name) or _frozen_role(defaults.get(value.name))
        for value in graph.input
    }
    for value in graph.output:
        name = value.name
        if name in new_values:
            roles[name] = Role.NEW_VALUE
        else:
            given = Role.GRADIENT if name in gradients else Role.OUTPUT
            roles[name] = outputs.get(name, given)
    return Contract(roles, dict(new_values), dict(gradients), stated=True)


def _frozen_role(default: onnx.TensorProto | None) -> Role:
    """What an input is that the step neither trains nor renews."""
    if default is None:
        return Role.BATCH
    return Role.HYPERPARAMETER if math.prod(default.dims) == 1 else Role.FROZEN


def _new_values(
    graph: onnx.GraphProto, sink: GradientSink, statistics: Statistics, counted: Counted
) -> dict[str, str]:
    """Graph output → the graph input whose value it is in the next step, in order of the graph.

    The author of the forward graph may have named some, too.
    """
    inputs = {value.name for value in graph.input}
    known = {new: old for old, new in statistics.renewed.items()} | dict(counted.new_values)
    if isinstance(sink, Updates):
        known |= sink.new_values
    found = {}
    for value in graph.output:
        old = known.get(value.name, value.name.removesuffix("_new"))
        if old != value.name and old in inputs:
            found[value.name] = old
    return found
