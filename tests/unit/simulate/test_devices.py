"""Where a CUDA session puts nodes and tensors, without a runtime."""

from pathlib import Path

import onnx

from helpers.graphs import graph_of
from helpers.models import SAMPLES
from memplan.api.analysis import analyze
from memplan.ir.graph import Graph, TensorKind
from memplan.ops.kernels import kernels_of, schema_version
from memplan.simulate.devices import fallback_notes, place
from memplan.simulate.run_order import placed_order
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
TUNED = session_kind("tuned", "cuda")


def placed(text: str) -> tuple[Graph, list[str], set[str], set[str]]:
    """Graph with copies, names in order, names of host nodes, names of host tensors."""
    graph, devices = place(graph_of(text), "cuda")
    order = [graph.nodes[i].name for i in placed_order(graph, TUNED, devices)]
    return (
        graph,
        order,
        {graph.nodes[i].name for i in devices.host_nodes},
        {graph.tensors[i].name for i in devices.host_tensors},
    )


def test_kernels_are_looked_up_by_version_and_types() -> None:
    kernels = kernels_of("cuda")
    assert kernels.has(":Add", schema_version("", "Add", 20), [FLOAT, FLOAT], [FLOAT])
    assert not kernels.has(":Tan", schema_version("", "Tan", 20), [FLOAT], [FLOAT])
    pad = schema_version("", "Pad", 18)
    assert kernels.has(":Pad", pad, [FLOAT, INT64, None], [FLOAT])
    assert not kernels.has(":Pad", pad, [INT64, INT64, None], [INT64])
    assert not kernels.has(":Add", 6, [FLOAT, FLOAT], [FLOAT])  # only 7 and later
    assert schema_version("com.microsoft", "FusedGemm", 20) == 1


def test_a_graph_with_all_kernels_is_left_alone() -> None:
    graph, order, nodes, tensors = placed(
        "t (float[4,8] x) => (float[4,8] y) { a = Relu(x) y = Exp(a) }"
    )
    assert (order, nodes, tensors) == (["Relu_0", "Exp_1"], set(), set())
    assert len(graph.nodes) == 2


def test_copies_stand_where_both_sides_need_a_tensor() -> None:
    graph, order, nodes, tensors = placed(
        """t (float[4,8] x) => (float[4,8] y, float[4,8] z)
        { a = Relu(x) t = Tan(a) u = Tan(t) y = Exp(a) z = Add(u, y) }"""
    )
    assert nodes == {"Tan_1", "Tan_2"}
    copies = [n for n in graph.nodes if n.op.startswith("Memcpy")]
    assert [(n.op, graph.tensors[n.inputs[0]].name) for n in copies] == [
        ("MemcpyFromHost", "u"),
        ("MemcpyToHost", "a_CUDAExecutionProvider"),
    ]
    # "a" itself is now the host's; t never leaves the host.
    assert {"a", "t", "u"} <= tensors
    assert order.index("Tan_1") > order.index(copies[1].name)
    assert order.index("Add_4") > order.index(copies[0].name)


def test_what_no_formula_follows_is_counted_as_nothing_and_named() -> None:
    text = "t (float[4,4] x) => (float[4,4] y) { a = MatMul(x, x) y = MatMul(a, x) }"
    note = "cuda: workspace not known, counted as 0: MatMul ×2"
    assert simulate(graph_of(text), TUNED).assumptions == (note,)
    assert simulate(graph_of(text), session_kind("tuned")).assumptions == ()
    drawn = graph_of("t (float[4,8] p) => (int32[4,3] y) { y = Multinomial<sample_size = 3>(p) }")
    note = "cpu: workspace not known, counted as 0: Multinomial ×1"
    assert simulate(drawn, session_kind("tuned")).assumptions == (note,)


def test_an_input_of_both_sides_stays_on_the_host_and_is_copied_when_needed() -> None:
    graph, _, _, tensors = placed(
        "t (float[4,8] x) => (float[4,8] y) { t = Tan(x) a = Relu(x) y = Add(a, t) }"
    )
    assert "x" in tensors
    twin = graph.tensor_named("x_CUDAExecutionProvider")
    assert (twin.kind, twin.id in graph.inputs) == (TensorKind.COMPUTED, False)
    _, devices = place(graph_of("t (float[4] x) => (float[4] y) { y = Relu(x) }"), "cuda")
    assert not devices.host_tensors  # an input of device nodes only is copied before the run


def test_shape_computations_stay_on_the_host() -> None:
    _, _, nodes, tensors = placed(
        """t (float[4,8] x, int64[1] n) => (float[8,4] y)
        <int64[1] one = {1}>
        { s = Shape(x) r = Mul(s, one) y = Reshape(x, r) }"""
    )
    assert nodes == {"Mul_1"}
    assert {"s", "r", "one"} <= tensors  # a shape is read on the host: no copy


def test_device_memory_does_not_count_what_the_host_holds() -> None:
    text = """t (float[64,64] x) => (float[64,64] y)
        { a = Relu(x) t = Tan(a) u = Tan(t) v = Tan(u) y = Exp(v) }"""
    graph, devices = place(graph_of(text), "cuda")
    timeline = simulate(graph, TUNED, devices)
    size = 64 * 64 * 4
    assert timeline.dynamic_peak_bytes == 2 * size  # the copy back, and y
    assert timeline.host.max() == 2 * size
    assert timeline.resident_bytes == size
    assert simulate(graph_of(text), TUNED).dynamic_peak_bytes == 2 * size


def test_fallbacks_are_named_with_what_they_drag_across(tmp_path: Path) -> None:
    text = "t (float[64,64] x) => (float[64,64] y) { a = Relu(x) t = Tan(a) y = Exp(t) }"
    _, devices = place(graph_of(text), "cuda")
    assert fallback_notes(devices) == [
        "cuda: 1 node has no CUDA kernel and runs on the CPU: Tan ×1 "
        "(Tan_1: 16,384 B to the host, 16,384 B back)"
    ]
    assert fallback_notes(None) == []


def test_what_neither_provider_computes_in_bfloat16_is_told() -> None:
    text = """t (bfloat16[8] x, bfloat16[8] z) => (bool[8] y, bfloat16[8] r)
        { y = Greater(x, z) r = Relu(x) }"""
    _, devices = place(graph_of(text), "cuda")
    notes = fallback_notes(devices)
    assert len(notes) == 2
    assert "may refuse the file (Greater)" in notes[1]
    _, wide = place(graph_of(text.replace("bfloat16", "float")), "cuda")
    assert fallback_notes(wide) == []


def test_analyze_reports_cpu_nodes_on_cuda_only() -> None:
    path = SAMPLES / "mlp_adamw.onnx"
    on_cuda = analyze(path, provider="cuda").as_json()
    assert on_cuda["cpu_nodes"] == []
    on_cpu = analyze(path).as_json()
    assert "cpu_nodes" not in on_cpu
    # Axes and shapes are read on the host: they are not on the device.
    assert 0 < int(str(on_cpu["resident_bytes"])) - int(str(on_cuda["resident_bytes"])) < 1000
