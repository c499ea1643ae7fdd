"""Shapes that are computed in the graph."""

import tracemalloc

import numpy as np
import onnx
import pytest

from helpers import odd_models as odd
from helpers.graphs import parse
from memplan.proto import native
from memplan.shapes.complete import value_types
from memplan.shapes.dims import bind_dims
from memplan.shapes.fold import whole_numbers
from memplan.shapes.infer import infer, stated_types

COMPUTED = """
    g (float[N, 16] x) => (float loss, int64[] places)
    <int64[1] first = {0}, int64[1] two = {2}, int64[1] eight = {8},
     int64 none = {0}, int64 by = {1}> {
        sizes = Shape (x)
        batch = Gather (sizes, first)
        more = Mul (batch, two)
        wanted = Concat <axis = 0> (more, eight)
        folded = Reshape (x, wanted)
        end = Squeeze (more)
        places = Range (none, end, by)
        loss = ReduceMean <keepdims = 0> (folded)
    }"""
"""A reshape to a shape that is computed from another shape, as exporters write it."""


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_computed_shape_is_found(batch: int) -> None:
    types, bounded = value_types(bind_dims(parse(COMPUTED), {"N": batch}))
    assert types["folded"].shape == (2 * batch, 8)
    assert types["places"].shape == (2 * batch,)
    assert not bounded


FILLS = {
    "ConstantOfShape (shape)": "float",
    "Expand (one, shape)": "int64",
    "Tile (ones, shape)": "int64",
    "Range (none, many, by)": "int64",
}
"""Huge tensors whose shapes, but not contents, are wanted."""


@pytest.mark.parametrize("fill", FILLS)
def test_no_large_tensor_is_made_only_to_learn_its_shape(fill: str) -> None:
    proto = parse(
        f"g (float[1] unused) => ({FILLS[fill]}[] y) <int64[2] shape = {{32768, 32768}}, "
        "int64[1] one = {1}, int64[1, 1] ones = {1}, "
        f"int64 none = {{0}}, int64 many = {{{1 << 30}}}, int64 by = {{1}}> {{ y = {fill} }}"
    )
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
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "acme.ops" : 1]> '
        f"g (float[{size}] flat) => (float[] kept, float[] odd) <float decay = {{0.5}}> "
        "{ kept = Mul (flat, decay)  odd = acme.ops.Unknown (kept) }"
    )
    assert stated_types(infer(proto).graph)["kept"].shape == (size,)


def test_weights_are_not_handed_to_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = parse("g (float[8, 16] x) => (float[] h) { h = MatMul (x, w) }")
    proto.graph.initializer.append(odd.weights("w", 16, 3200))
    seen: list[int] = []
    real = native.infer_shapes

    def spied(handed: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        seen.append(handed.ByteSize())
        return real(handed, **options)

    monkeypatch.setattr(native, "infer_shapes", spied)
    types, _ = value_types(proto)
    assert types["h"].shape == (8, 3200)
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
    text = f"g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {{ {nodes} y = Neg({before}) }}"
    types, bounded = value_types(parse(text))
    assert not bounded
    assert {types[f"r{k}"].shape for k in range(depth)} == {(4, 4)}


def test_sizes_and_indices_are_whole_numbers_or_not_known() -> None:
    """A file may state others, and only a run refuses them."""
    assert whole_numbers(np.asarray([[1], [-2]])) == [1, -2]
    for other in ([float("nan")], [float("inf")], [1.0], ["text"]):
        assert whole_numbers(np.asarray(other)) is None
    assert whole_numbers(None) is None
