"""The training contract of graphs that memplan makes: what their inputs and outputs are.

Here it is known; for other files :mod:`memplan.ir.contract` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx

from memplan.autodiff.backward import GradientSink
from memplan.autodiff.counter_dropouts import Counted
from memplan.autodiff.parameters import Candidates
from memplan.autodiff.statistics import Statistics
from memplan.ir.contract import Contract
from memplan.ir.roles import Role


def state_contract(
    graph: onnx.GraphProto,
    loss: str,
    trained: Iterable[str],
    sink: GradientSink,
    statistics: Statistics,
    candidates: Candidates,
    counted: Counted,
) -> Contract:
    """The contract of a training graph.

    An input that is differentiated by is a parameter; but not one that looks like data, beside
    others that do not. The author of the forward graph may have named new values, too.

    Args:
        graph: the finished graph.
        loss: the loss output.
        trained: what it was differentiated by.
        sink: what took the gradients.
        statistics: running statistics and their new values.
        candidates: what could have been trained.
        counted: the masks that come from a counter.
    """
    inputs = {value.name for value in graph.input}
    known = {**statistics.new_values, **counted.new_values, **sink.new_values}
    named = [value.name for value in graph.output]
    pairs = {name: known.get(name, name.removesuffix("_new")) for name in named}
    new_values = {name: old for name, old in pairs.items() if old != name and old in inputs}
    parameters = set(trained)
    data = parameters & set(candidates.data) - set(new_values.values())
    if data != parameters:
        parameters -= data
    roles = dict.fromkeys(new_values.values(), Role.RUNNING_STATISTIC) | dict(sink.roles())
    roles |= dict.fromkeys(parameters, Role.PARAMETER)
    roles |= dict.fromkeys(counted.new_values.values(), Role.STEP_COUNTER)
    return contract_of(graph, roles, new_values, sink.gradients, loss)


def contract_of(
    graph: onnx.GraphProto,
    known: Mapping[str, Role],
    new_values: Mapping[str, str],
    gradients: Mapping[str, str],
    loss: str | None = None,
) -> Contract:
    """The contract of a finished graph.

    Args:
        graph: the graph; roles are in its order.
        known: of inputs. Of the others, one without a default is part of the batch, a number is a
            hyperparameter, and anything else is frozen.
        new_values: output → the input whose value it is in the next step.
        gradients: gradient, an output or an input → what it is the gradient of.
        loss: the loss output.
    """
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    roles = {
        value.name: known.get(value.name) or _frozen_role(defaults.get(value.name))
        for value in graph.input
    }
    made = dict.fromkeys(gradients, Role.GRADIENT)
    if loss is not None:
        made[loss] = Role.LOSS
    made |= dict.fromkeys(new_values, Role.NEW_VALUE)
    roles |= {value.name: made.get(value.name, Role.OUTPUT) for value in graph.output}
    return Contract(roles, dict(new_values), dict(gradients), stated=True)


def _frozen_role(default: onnx.TensorProto | None) -> Role:
    """What an input is that the step neither trains nor renews."""
    if default is None:
        return Role.BATCH
    return Role.HYPERPARAMETER if math.prod(default.dims) == 1 else Role.FROZEN
