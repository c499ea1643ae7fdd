"""Shapes that are computed in the graph."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers import odd_models as odd
from helpers.odd_models import FLOAT, INT64, constant, info, model
from memplan.proto import native
from memplan.shapes.complete import value_types
from memplan.shapes.dims import bind_dims
from memplan.shapes.infer import infer, stated_types


def _computed_shape() -> onnx.ModelProto:
    """A reshape to a shape that is computed from another shape, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], name="sizes"),
        helper.make_node("Gather", ["sizes", "zero_i"], ["batch"], name="batch"),
        helper.make_node("Mul", ["batch", "two"], ["more"], name="more"),
        helper.make_node("Concat", ["more", "eight"], ["wanted"], name="wanted", axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["folded"], name="fold"),
        helper.make_node("Range", ["start", "more_s", "step"], ["places"], name="places"),
        helper.make_node("Squeeze", ["more"], ["more_s"], name="more_s"),
        helper.make_node("ReduceMean", ["folded"], ["loss"], name="mean", keepdims=0),
    ]
    nodes[5], nodes[6] = nodes[6], nodes[5]
    given = [
        constant("zero_i", [0], np.int64),
        constant("two", [2], np.int64),
        constant("eight", [8], np.int64),
        constant("start", 0, np.int64),
        constant("step", 1, np.int64),
    ]
    outputs = [info("loss", []), info("places", None, INT64)]
    return model(nodes, [info("x", ["N", 16])], outputs, given)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_computed_shape_is_found(batch: int) -> None:
    types, bounded = value_types(bind_dims(_computed_shape(), {"N": batch}))
    assert types["folded"].shape == (2 * batch, 8)
    assert types["places"].shape == (2 * batch,)
    assert not bounded


def _fills(op: str) -> onnx.ModelProto:
    """A huge tensor whose shape, but not contents, are wanted."""
    shape = constant("shape", [1 << 15, 1 << 15], np.int64)
    parts = {
        "ConstantOfShape": (["shape"], [shape]),
        "Expand": (["seed", "shape"], [constant("seed", [1], np.int64), shape]),
        "Tile": (["seed", "shape"], [constant("seed", [[1]], np.int64), shape]),
        "Range": (
            ["from", "to", "by"],
            [
                constant("from", 0, np.int64),
                constant("to", 1 << 30, np.int64),
                constant("by", 1, np.int64),
            ],
        ),
    }
    inputs, given = parts[op]
    return model(
        [helper.make_node(op, inputs, ["y"], name="fill")],
        [info("unused", [1])],
        [info("y", None, FLOAT if op == "ConstantOfShape" else INT64)],
        given,
    )


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Range"])
def test_no_large_tensor_is_made_only_to_learn_its_shape(op: str) -> None:
    proto = _fills(op)
    tracemalloc.start()
    try:
        types, _ = value_types(proto)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**26
    assert types["y"].shape in {(1 << 15, 1 << 15), (1 << 30,)}


@pytest.mark.parametrize("size", [100, 10**9])
def test_a_flat_buffer_of_parameters_is_no_list_of_values(size: int) -> None:
    # ONNX's data propagation takes about 100 bytes per element of a vector: 100 GB for this one.
    nodes = [
        helper.make_node("Mul", ["flat", "decay"], ["kept"], name="decay"),
        helper.make_node("Unknown", ["kept"], ["odd"], name="odd", domain="acme.ops"),
    ]
    proto = model(
        nodes,
        [info("flat", [size])],
        [info("kept", None), info("odd", None)],
        [constant("decay", 0.5)],
        domains=["acme.ops"],
    )
    assert stated_types(infer(proto).graph)["kept"].shape == (size,)


def test_weights_are_not_handed_to_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, _, given = odd.training_parts()
    given[0] = odd.weights("w1", odd.WIDTH, odd.HIDDEN * 100)
    proto = model(odd.training_nodes()[:1], inputs, [info("h", None)], given[:1])
    seen: list[int] = []
    real = native.infer_shapes

    def spied(handed: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        seen.append(handed.ByteSize())
        return real(handed, **options)

    monkeypatch.setattr(native, "infer_shapes", spied)
    types, _ = value_types(proto)
    assert types["h"].shape == (odd.BATCH, odd.HIDDEN * 100)
    assert seen
    assert max(seen) < proto.ByteSize() // 10


def test_a_chain_of_fused_nodes_is_followed_however_deep_it_is() -> None:
    """No shapes are stated, ONNX knows nothing of the product, and each shape is computed of the
    one before."""
    depth, before, nodes = 60, "x", ""
    for k in range(depth):
        nodes += f" m{k} = com.microsoft.FusedMatMul({before}, w) t{k} = Tanh(m{k})"
        nodes += f" s{k} = Shape({before}) r{k} = Reshape(t{k}, s{k})"
        before = f"r{k}"
    text = (
        '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> '
        f"g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {{ {nodes} y = Neg({before}) }}"
    )
    types, bounded = value_types(onnx.parser.parse_model(text))
    assert not bounded
    assert {types[f"r{k}"].shape for k in range(depth)} == {(4, 4)}
