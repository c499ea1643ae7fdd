"""Tensors of a graph by name."""

from dataclasses import replace

from helpers.graphs import graph_of


def test_tensors_are_found_by_the_names_that_they_have_now() -> None:
    graph = graph_of("g (float[4] x) => (float[4] y) { a = Exp(x) y = Neg(a) }")
    found = graph.tensor_named("a")
    assert found is graph.tensors[graph.nodes[0].outputs[0]]
    assert graph.tensor_named("b") is None
    tensors = tuple(replace(t, name="b") if t.name == "a" else t for t in graph.tensors)
    renamed = replace(graph, tensors=tensors)
    assert renamed.tensor_named("a") is None
    assert renamed.tensor_named("b") is not None
    assert graph == replace(graph)
