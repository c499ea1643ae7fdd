"""Random recurrent cells: gradients by finite differences, whatever is made again; existing pairs
compute the same bits after it is."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import memplan
from helpers.effort import tries
from helpers.gradients import check, draw, runtime
from helpers.loops import recompute_in_scans

STEPS, WIDTH = 3, 2
UNARY = ("Tanh", "Sigmoid", "Sin", "Identity", "Neg")
BINARY = ("Add", "Mul", "Sub", "MatMul")
DOUBLE = onnx.TensorProto.DOUBLE


@st.composite
def cells(draw_: Any) -> onnx.ModelProto:
    """A Scan with random states, sequences, directions and axes around a random cell."""
    states, slices = draw_(st.integers(1, 3)), draw_(st.integers(1, 2))
    inputs = [f"s{k}" for k in range(states)] + [f"u{k}" for k in range(slices)]
    known = [*inputs, "c0"]
    nodes, made = [], []
    for k in range(draw_(st.integers(states, 8))):
        name = f"t{k}"
        one = draw_(st.sampled_from(known))
        if draw_(st.booleans()):
            op = draw_(st.sampled_from(BINARY))
            other = "w" if op == "MatMul" else draw_(st.sampled_from([*known, "c1"]))
            reads = [one, other]
        else:
            op, reads = draw_(st.sampled_from(UNARY)), [one]
        nodes.append(helper.make_node(op, reads, [name], name=name))
        known.append(name)
        made.append(name)
    ends = draw_(st.permutations(made))[:states]
    stacked = []
    for k in range(draw_(st.integers(0, 2))):
        nodes.append(helper.make_node("Identity", [draw_(st.sampled_from(known))], [f"o{k}"]))
        stacked.append(f"o{k}")
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "cell",
        [value(name, DOUBLE, [1, WIDTH]) for name in inputs],
        [value(name, DOUBLE, [1, WIDTH]) for name in (*ends, *stacked)],
    )
    axes = [draw_(st.integers(0, 1)) for _ in range(slices)]
    node = helper.make_node(
        "Scan",
        [f"i{k}" for k in range(states)] + [f"x{k}" for k in range(slices)],
        [f"e{k}" for k in range(states)] + [f"y{k}" for k in range(len(stacked))],
        name="loop",
        body=body,
        num_scan_inputs=slices,
        scan_input_axes=axes,
        scan_input_directions=[draw_(st.integers(0, 1)) for _ in range(slices)],
    )
    if stacked:
        numbers = [draw_(st.integers(0, 1)) for _ in stacked]
        node.attribute.append(helper.make_attribute("scan_output_directions", numbers))
    shapes: dict[str, list[int]] = {f"i{k}": [1, WIDTH] for k in range(states)}
    shapes |= {f"x{k}": [1, STEPS, WIDTH] if axes[k] else [STEPS, 1, WIDTH] for k in range(slices)}
    shapes |= {"c0": [1, WIDTH], "c1": [1, 1], "w": [WIDTH, WIDTH]}
    graph = helper.make_graph(
        [node],
        "loop",
        [value(name, DOUBLE, shape) for name, shape in shapes.items()],
        [value(name, DOUBLE, None) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.slow
@settings(max_examples=tries(60), deadline=None, derandomize=True)
@given(cells(), st.sampled_from(["all", "auto", "*"]))
def test_random_cells(model: onnx.ModelProto, wish: str) -> None:
    feeds = {
        value.name: draw([d.dim_value for d in value.type.tensor_type.shape.dim], seed=k) / 2
        for k, value in enumerate(model.graph.input)
    }
    ys = [value.name for value in model.graph.output]
    xs = reached(model, list(feeds), ys)
    if not xs:
        return
    check((model, feeds), xs=xs, ys=ys, run=runtime)
    plain = memplan.gradients(model, ys, xs)
    again = recompute_in_scans(plain, wish)
    before, after = runtime(plain, feeds), runtime(again, feeds)
    for name, array in before.items():
        assert np.array_equal(array, after[name], equal_nan=True), name


def reached(model: onnx.ModelProto, xs: list[str], ys: list[str]) -> list[str]:
    """The xs that some y depends on, by the reference of data flow over all steps."""
    node = model.graph.node[0]
    body = next(item.g for item in node.attribute if item.name == "body")
    states = sum(name.startswith("i") for name in node.input)
    below: dict[str, set[str]] = {
        inner.name: {outer} for inner, outer in zip(body.input, node.input, strict=True)
    }
    for _ in range(states + 1):
        for item in body.node:
            below[item.output[0]] = set().union(*(below.get(n, {n}) for n in item.input))
        for inner, after in zip(body.input[:states], body.output, strict=False):
            below[inner.name] = below[inner.name] | below[after.name]
    final = set().union(*(below[value.name] for value in body.output))
    return [name for name in xs if name in final]
