"""Graphs under other names, and what every difference of two graphs must keep."""

import random

import onnx

from memplan.api.diff.diff_result import Diff


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph as another exporter names it: no name left, and those there are shuffled."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    numbers = list(range(50_000))
    random.Random(3).shuffle(numbers)
    names: dict[str, str] = {}

    def name(old: str) -> str:
        return names.setdefault(old, f"v_{numbers[len(names)]}") if old else ""

    graph = copy.graph
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = name(value.name)
    for node in graph.node:
        node.name = name(f"node {node.name}")
        node.input[:] = [name(each) for each in node.input]
        node.output[:] = [name(each) for each in node.output]
    del copy.metadata_props[:]
    return copy


def sums(found: Diff) -> None:
    """What every difference must keep."""
    assert sum(c.delta_bytes for c in found.changes) + found.inside_bytes == found.delta_bytes
    assert sum(c.delta_bytes for c in found.classes) == found.delta_bytes
    assert sum(g.delta_bytes for g in found.groups) + found.inside_bytes == found.delta_bytes
    assert sum(found.modules.values()) + found.inside_bytes == found.delta_bytes
