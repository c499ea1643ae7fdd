"""What the real CUDA provider does without a GPU: placement, order, every byte, failures.

The CUDA runtime below it is a stub (cuda_stub.c): kernels do nothing, so nothing here speaks of
results or time.
"""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from helpers.cuda_runs import check, run
from helpers.half_steps import ALL, HALVES
from helpers.models import DIMS, ROOT, SAMPLES, SHARED
from memplan.api.state_modes import bindings, settled
from memplan.errors import RuntimeUnavailableError
from memplan.ops.kernels import COPY_OPS
from memplan.passes.manager import run_passes
from memplan.passes.order import Order
from memplan.passes.release import Release
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import RunRequest
from memplan.simulate.opened import on_devices, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

# Tan has no CUDA kernel: copies both ways, a copied input, results and inputs shared by both sides.
MIXED = """<ir_version: 8, opset_import: ["" : 18]>
mixed (float[64,64] x, float[64,64] w) => (float[64,64] y, float[64,64] z)
{
    a = Relu(x)
    t = Tan(a)
    b = MatMul(t, w)
    c = Tan(b)
    d = Tan(c)
    e = Add(d, a)
    f = Mul(e, w)
    h = Tan(f)
    y = Add(h, x)
    u = Sigmoid(h)
    v = Tan(w)
    z = Add(u, v)
}"""
# Two fences: a number of elements on the device decides axes on the host.
FENCED = """<ir_version: 8, opset_import: ["" : 18]>
fenced (float[64,64] x, float[64,64] w) => (float[64,64] y)
<int64[0] empty = {}>
{
    a = Relu(x)
    b = MatMul(a, w)
    late = Size(b)
    axes = Mul(late, empty)
    kept = Unsqueeze(x, axes)
    c = Sigmoid(kept)
    d = MatMul(c, b)
    later = Size(d)
    more = Mul(later, empty)
    again = Unsqueeze(w, more)
    e = Tanh(again)
    y = Add(d, e)
}"""
CONV = """<ir_version: 8, opset_import: ["" : 18]>
conv (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) { y = Conv(x, w) }"""


def write(text: str, folder: Path) -> Path:
    model = onnx.parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{index}_{node.op_type}"
    path = folder / f"{model.graph.name}.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("text", [MIXED, FENCED])
def test_mixed_graphs_are_exact_at_every_step(text: str, cuda_stub: Path, tmp_path: Path) -> None:
    ran = run(write(text, tmp_path))
    check(ran)
    assert ran.measured.cuda.counted_peak_bytes == ran.timeline.peak_bytes


# State whose new value a CUDA node makes, one made on the host, and one that is read too late.
RENEWED = """<ir_version: 8, opset_import: ["" : 18]>
renewed (float[64,64] x, float[64,64] w, float[64,64] v, float[64,64] u)
    => (float[64,64] y, float[64,64] w_new, float[64,64] v_new, float[64,64] u_new)
{
    a = MatMul(x, w)
    b = MatMul(a, v)
    c = MatMul(b, u)
    w_new = Sub(w, c)
    v_new = Tan(b)
    u_new = Mul(u, c)
    y = MatMul(c, u)
}"""


def check_bound(path: Path) -> tuple[set[str], set[str], int]:
    """The peaks of two runs with state in place; outputs in place, those in a second buffer, and
    the bytes that this saves."""
    kind = session_kind("tuned", "cuda")
    model = on_devices(settled(open_model(path), kind, ("in-place",)), kind)
    in_place, second = bindings(model.graph)
    with saved_inputs(synthesize(model.graph)) as (folder, archive):
        request = RunRequest("tuned", "cuda", runs=1, in_place=in_place, second=second)
        measured = measure(path, request, archive, folder / "outputs.npz")
    timeline = simulate(model.graph, kind, model.devices)
    assert timeline.dynamic_peak_bytes == measured.dynamic_bytes
    assert timeline.dynamic_peak_bytes == measured.second_run_dynamic_bytes
    free = on_devices(open_model(path), kind)
    apart = simulate(free.graph, kind, free.devices)
    return set(in_place), set(second), apart.dynamic_peak_bytes - timeline.dynamic_peak_bytes


def test_bound_state_is_exact_at_every_step(cuda_stub: Path, tmp_path: Path) -> None:
    _, second, saved = check_bound(write(RENEWED, tmp_path))
    assert second == {"u_new"}
    assert saved > 0


def test_copies_are_named_with_their_bytes(cuda_stub: Path, tmp_path: Path) -> None:
    ran = run(write(MIXED, tmp_path))
    assert ran.model.devices is not None
    found = {f.name: (f.to_host_bytes, f.to_device_bytes) for f in ran.model.devices.fallbacks}
    size = 64 * 64 * 4
    assert found == {
        "1_Tan": (size, size),
        "3_Tan": (size, 0),
        "4_Tan": (0, size),
        "7_Tan": (size, size),
        "10_Tan": (0, size),
    }
    assert sum(n.op == "MemcpyToHost" for n in ran.measured.nodes) == 3
    assert sum(n.op == "MemcpyFromHost" for n in ran.measured.nodes) == 5  # w among them


# What free passes change: half of a pool and of a split, a mask that is read late.
FREED = """<ir_version: 8, opset_import: ["" : 18]>
freed (float[2,4,16,16] x) => (float[2,4,16,16] y, int64[2,4,8,8] z)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3}, float zero = {0},
 int64 one = {1}>
{
    a = Sigmoid(x)
    v, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
    same, own = MaxPool<kernel_shape = [1, 1]>(a)
    planes = Slice(own, first, second, axes)
    t = Sub(i, planes)
    p, q = Split<axis = 1, num_outputs = 2>(a)
    b = Relu(a)
    c = Concat<axis = 1>(p, p)
    d = Mul(c, b)
    e = Sigmoid(d)
    f = Mul(e, d)
    h = Mul(f, b)
    m = Greater(a, zero)
    y = Where(m, h, f)
    z = Add(t, one)
}"""


def test_what_is_freed_stays_on_the_device(cuda_stub: Path, tmp_path: Path) -> None:
    path = write(FREED, tmp_path)
    kind = session_kind("tuned", "cuda")
    model = open_model(path)
    first = simulate(model.graph, kind)
    steps = run_passes([Release(), Order(rounds=2)], model, first)
    assert all(step.changed for step in steps)
    onnx.save(steps[-1].model.prepared.proto, path)
    ran = run(path)
    check(ran)
    assert not any(n.op in COPY_OPS for n in ran.model.graph.nodes)
    assert ran.timeline.dynamic_peak_bytes < first.dynamic_peak_bytes


@pytest.mark.nightly
@pytest.mark.parametrize("session", ["tuned", "default"])
def test_a_training_graph_is_exact_at_every_step(session: str, cuda_stub: Path) -> None:
    dims = {"N": 2} if session == "tuned" else None
    path = SAMPLES / ("gpt_dynamic.onnx" if session == "tuned" else "mlp_adamw.onnx")
    check(run(path, session, dims))


@pytest.mark.nightly
@pytest.mark.parametrize("session", ["tuned", "default"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [name for name in ALL if name != "convolutional"])
def test_steps_in_half_are_exact_at_every_step(
    name: str, dtype: str, session: str, cuda_stub: Path, tmp_path: Path
) -> None:
    """No node falls back; cuDNN, which convolutions need, is not in the stub."""
    path = tmp_path / "step.onnx"
    onnx.save(ALL[name](dtype), path)
    ran = run(path, session)
    check(ran)
    assert not ran.model.devices.fallbacks
    assert ran.measured.cuda is not None
    if session == "tuned":
        assert ran.measured.cuda.counted_peak_bytes == ran.timeline.peak_bytes


@pytest.mark.parametrize("dtype", HALVES)
def test_selected_state_in_half_is_bound_in_place(
    dtype: str, cuda_stub: Path, tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(ALL["renewed"](dtype), path)
    assert len(check_bound(path)[0]) == 17


@pytest.mark.skipif(not (SHARED / "runnable").is_dir(), reason="no shared models")
@pytest.mark.parametrize("session", ["tuned", "default"])
@pytest.mark.parametrize("name", ["gpt", "mlp_adamw", "hf_bert", "hf_gpt2_drop"])
def test_exported_graphs_are_exact_at_every_step(name: str, session: str, cuda_stub: Path) -> None:
    check(run(SHARED / "runnable" / f"{name}.onnx", session, DIMS.get(name)))


def test_a_run_that_fails_does_not_move_to_the_cpu(cuda_stub: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match="Conv"):  # cuDNN is not in the stub
        run(write(CONV, tmp_path))


def test_out_of_memory_says_what_was_asked_for(
    cuda_stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_STUB_BYTES", "40000")
    with pytest.raises(RuntimeUnavailableError) as caught:
        run(write(MIXED, tmp_path))
    assert "ran out of memory on the GPU: 16,384 B (16.0 KiB) were asked for" in (
        caught.value.message
    )


def test_a_driver_that_does_not_start_is_told(
    cuda_stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_STUB_NO_DEVICE", "1")
    with pytest.raises(RuntimeUnavailableError) as caught:
        run(write(MIXED, tmp_path))
    assert "did not start" in caught.value.message
    assert "onnxruntime-gpu" in caught.value.hint


def test_device_tells_a_stub_by_its_results(cuda_stub: Path) -> None:
    """In a process of its own: this one looked for CUDA without the stub."""
    code = "from memplan_cli.main import run; import sys; sys.argv = sys.argv[:1] + "
    code += "['device', '--provider', 'cuda', '--format', 'json']; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["gpu"]["name"] == "Stub GPU"
    assert report["gpu"]["total_bytes"] == 16 << 30
    assert report["gpu"]["compute_capability"] == "9.0"
    assert report["reserve_bytes"] is None  # nobody measured it
    states = {p["provider"]: (p["starts"], p["right"]) for p in report["providers"]}
    assert states["cpu"] == (True, True)
    assert states["cuda"] == (True, False)


@pytest.mark.nightly
def test_every_probed_operator_is_placed_as_the_runtime_does(cuda_stub: Path) -> None:
    script = ROOT / "tests" / "helpers" / "placed_cases.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["different"] == []
    assert found["compared"] > 1400
