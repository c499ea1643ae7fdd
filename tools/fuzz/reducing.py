"""The smallest part of a case of :mod:`values` that ends alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from drafts import DOUBLE, Array, Case, ancestors, captured, info
from evaluators import Evaluator, in_kind, opened
from onnx import helper, numpy_helper


def reduced(case: Case, ends_alike: Callable[[Case], bool]) -> Case:
    """The case with as few nodes as end alike: the outputs of others become inputs."""
    values = _all_values(case)
    found = case
    shrinks = True
    while shrinks and values:
        shrinks = False
        for node in list(found.model.graph.node):
            smaller = _without(found, node.name, values)
            if smaller is not None and ends_alike(smaller):
                found, shrinks = smaller, True
    return found


def _all_values(case: Case) -> dict[str, Array]:
    """Every tensor of a case by name; none if that cannot be had."""
    model = opened(in_kind(case.model, DOUBLE), case.feeds)
    del model.graph.output[:]
    for node in model.graph.node:
        model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in node.output if n)
    try:
        found = Evaluator(model, case.feeds).first
    except Exception:
        return {}
    stored = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    return {**stored, **found, **case.feeds}


def _is_symbolic(model: onnx.ModelProto) -> bool:
    return any(d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim)


def _without(case: Case, name: str, values: Mapping[str, Array]) -> Case | None:
    """The case without one node."""
    nodes = [node for node in case.model.graph.node if node.name != name]
    read = {n for node in nodes for n in (*filter(None, node.input), *captured(node))}
    made = {n for node in nodes for n in node.output}
    given = sorted(read - made)
    constants = {t.name for t in case.model.graph.initializer} - set(case.feeds)
    reach = ancestors(nodes)
    xs = [n for n in given if values[n].dtype == np.float64 and n not in constants]
    ends = [n for n in made if n in case.ys or (n not in read and values[n].dtype == np.float64)]
    ends = [n for n in ends if any(x in reach[n] for x in xs)]
    xs = [x for x in xs if any(x in reach[y] for y in ends)]
    if not ends or not xs:
        return None
    graph = helper.make_graph(
        nodes,
        "reduced",
        [info(x, values[x], _is_symbolic(case.model)) for x in xs],
        [helper.make_tensor_value_info(y, DOUBLE, None) for y in ends],
        [numpy_helper.from_array(values[n], n) for n in given if n not in xs],
    )
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.CopyFrom(graph)
    weights = {
        y: case.weights.get(y, np.cos(np.arange(values[y].size)).reshape(values[y].shape))
        for y in ends
    }
    return Case(model, {x: values[x] for x in xs}, tuple(xs), weights)
