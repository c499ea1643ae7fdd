"""Estimated seconds: the roofline and the FLOPs of every contraction, by hand."""

from dataclasses import replace

import pytest

from helpers.graphs import graph_of, node
from memplan.ops.cost import DEVICES, Device, device_for, flops, node_costs

# One FLOP or one byte a second, and no time to start: figures are FLOPs or bytes.
COUNTING_FLOPS = Device("flops", 1.0, 1e30, 0.0, "")
COUNTING_BYTES = Device("bytes", 1e30, 1.0, 0.0, "")


def flops_of(signature: str, call: str) -> float:
    """FLOPs of the one node of a graph."""
    graph = graph_of(f"g {signature} {{ [n] {call} }}")
    return float(flops(graph, node(graph, "n")))


CONTRACTIONS = {
    "MatMul": (
        "(float[8,4] x, float[4,16] w) => (float[8,16] y)",
        "y = MatMul(x, w)",
        2 * 8 * 16 * 4,
    ),
    "MatMul, batched": (
        "(float[3,2,8,4] x, float[4,16] w) => (float[3,2,8,16] y)",
        "y = MatMul(x, w)",
        2 * 3 * 2 * 8 * 16 * 4,
    ),
    "MatMul of a vector": (
        "(float[4] x, float[4,16] w) => (float[16] y)",
        "y = MatMul(x, w)",
        2 * 16 * 4,
    ),
    "Gemm": ("(float[8,4] x, float[4,16] w) => (float[8,16] y)", "y = Gemm(x, w)", 2 * 8 * 16 * 4),
    "Gemm, transposed": (
        "(float[4,8] x, float[4,16] w) => (float[8,16] y)",
        "y = Gemm<transA = 1>(x, w)",
        2 * 8 * 16 * 4,
    ),
    "FusedMatMul": (
        "(float[4,8] x, float[16,4] w) => (float[8,16] y)",
        "y = com.microsoft.FusedMatMul<transA = 1, transB = 1>(x, w)",
        2 * 8 * 16 * 4,
    ),
    "Conv": (
        "(float[2,3,10,10] x, float[5,3,3,3] w) => (float[2,5,8,8] y)",
        "y = Conv(x, w)",
        2 * (2 * 5 * 8 * 8) * (3 * 3 * 3),
    ),
    "Conv, depthwise": (
        "(float[2,6,10,10] x, float[6,1,3,3] w) => (float[2,6,8,8] y)",
        "y = Conv<group = 6>(x, w)",
        2 * (2 * 6 * 8 * 8) * (1 * 3 * 3),
    ),
    "ConvTranspose": (
        "(float[2,3,8,8] x, float[3,5,3,3] w) => (float[2,5,10,10] y)",
        "y = ConvTranspose(x, w)",
        2 * (2 * 3 * 8 * 8) * (5 * 3 * 3),
    ),
    "Einsum": (
        "(float[2,8,4] x, float[2,4,16] w) => (float[2,8,16] y)",
        'y = Einsum<equation = "bij, bjk -> bik">(x, w)',
        2 * 2 * 8 * 4 * 16,
    ),
    "LSTM": (
        "(float[7,2,4] x, float[1,20,4] w, float[1,20,5] r) => (float[7,1,2,5] y)",
        "y = LSTM<hidden_size = 5>(x, w, r)",
        2 * 7 * 2 * (20 * 4 + 20 * 5),
    ),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_flops_of_contractions(name: str) -> None:
    signature, call, wanted = CONTRACTIONS[name]
    assert flops_of(signature, call) == wanted


def test_elementwise_operators_count_one_per_element_read_or_written() -> None:
    assert flops_of("(float[8,4] x) => (float[8,4] y)", "y = Exp(x)") == 32
    # A reduction reads more than it writes, an expansion the other way round.
    reduce = flops_of("(float[8,4] x) => (float y)", "y = ReduceSum<keepdims = 0>(x)")
    assert reduce == 32
    expand = flops_of("(float[4] x, float[8,4] z) => (float[8,4] y)", "y = Add(x, z)")
    assert expand == 32


STEP = """
g (float[256] x) => (float[16,16] y, float[256] z) <int64[2] square = {16, 16}>
{
    [double] a = Concat<axis = 0>(x, x)
    [half] b, c = Split<axis = 0, num_outputs = 2>(a)
    [view] v = Reshape(b, square)
    [copy] y = Reshape(b, square)
    [sum] s = Add(v, v)
    [z] z = Add(b, c)
    [late] t = Neg(s)
}"""


def test_bytes_moved_are_all_reads_and_writes_and_views_are_free() -> None:
    graph = graph_of(STEP)
    costs = node_costs(graph, COUNTING_BYTES, "cpu")
    assert {n.name: costs[n.id] for n in graph.nodes} == {
        "double": 2 * 1024 + 2048,  # x stands in two slots
        "half": 2048 + 2 * 1024,
        "view": 0,
        "copy": 1024 + 16 + 1024,  # a view that is a graph output is copied
        "sum": 3 * 1024,
        "z": 3 * 1024,
        "late": 2 * 1024,
    }


def test_the_slower_of_the_two_counts_and_the_start_is_added() -> None:
    graph = graph_of("""
    g (float[64,64] x) => (float[64,64] y, float[64,64] z) { [m] y = MatMul(x, x) [e] z = Exp(x) }
    """)
    # MatMul: 524,288 FLOPs and 49,152 bytes; Exp: 4,096 FLOPs and 32,768 bytes.
    device = Device("test", 100.0, 50.0, 7.0, "")
    assert node_costs(graph, device, "cpu") == [5242.88 + 7, 655.36 + 7]


def test_a_product_on_the_cpu_packs_its_right_factor_first() -> None:
    graph = graph_of("g (float[8,4] x, float[4,2] w) => (float[8,2] y) { y = MatMul(x, w) }")
    device = Device("test", 1.0, 4.0, 7.0, "")
    assert node_costs(graph, device, "cpu") == [128 + 7]
    # 128 FLOPs; 32 bytes of w, read and written once more.
    assert node_costs(graph, replace(device, packs=True), "cpu") == [128 + 2 * 32 / 4 + 7]
    assert [name for name, each in DEVICES.items() if each.packs] == ["cpu"]


def test_products_in_parts_take_longer_than_whole_ones() -> None:
    """Every part packs the same weights anew (the device is that which has no measured figures)."""

    def seconds(rows: int) -> float:
        inputs = f"float[{rows},320] x, float[320,1280] w"
        graph = graph_of(f"g ({inputs}) => (float[{rows},1280] y) {{ y = MatMul(x, w) }}")
        return sum(node_costs(graph, DEVICES["cpu"], "cpu"))

    assert 1.05 < 8 * seconds(256) / seconds(2048) < 1.15  # measured: 1.09
    assert 1.01 < 4 * seconds(512) / seconds(2048) < 1.06  # measured: 1.05


def test_flops_alone() -> None:
    graph = graph_of("g (float[8,4] x, float[4,2] w) => (float[8,2] y) { y = MatMul(x, w) }")
    assert node_costs(graph, COUNTING_FLOPS, "cpu") == [128.0]


def test_device_profiles() -> None:
    assert device_for("cpu") is DEVICES["cpu"]
    assert device_for("cuda") is DEVICES["h200"]
    for name, device in DEVICES.items():
        assert device.name == name
        # Plausible: between a laptop and a rack, and each with its source.
        assert 1e10 < device.flops_per_second < 1e15
        assert 1e9 < device.bytes_per_second < 1e13
        assert 1e-7 < device.kernel_seconds < 1e-3
        assert len(device.source) > 20


def test_scalars_have_bytes_too() -> None:
    graph = graph_of("g (float x) => (float y) { [n] y = Neg(x) }")
    device = Device("test", 1.0, 1.0, 3.0, "")
    assert node_costs(graph, device, "cpu") == [8 + 3.0]
