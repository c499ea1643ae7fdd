"""Calls that WebGPU takes and then fails at: told by name before anything runs."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from memplan.api.analysis import analyze
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.errors import RuntimeUnavailableError, UsageError
from memplan.ops.kernels import kernels_of
from memplan.ops.memory import semantics
from memplan.simulate import unrunnable
from memplan.simulate.opened import open_model
from memplan.units import parse_size

HEAD = '<ir_version: 8, opset_import: ["" : 17]> t '
POOLED = """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y, int64[1, 2, 2, 2] i) {
    r = Relu(x)
    y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
}"""
SCALAR = "(float[2, 3] x, float[3, 4] w, float c) => (float[2, 4] y) { y = Gemm(x, w, c) }"
SQUARE = """(float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2, 3] y) {
    y = BatchNormalization(x, s, b, m, v)
}"""
FINE = """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) {
    y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
}"""


def written(folder: Path, text: str) -> Path:
    model = onnx.parser.parse_model(HEAD + text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (POOLED, "does not run MaxPool with output 1 (1 node: 'MaxPool_1'): a step fails at it"),
        (SCALAR, "does not run Gemm with rank 0 of input 2 (1 node: 'Gemm_0')"),
        (SQUARE, "BatchNormalization with rank 2 of input 0 (1 node: "),
    ],
)
def test_a_step_that_would_fail_is_told_and_refused(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    assert any(told in each for each in analyze(path, provider="webgpu").assumptions)
    with pytest.raises(RuntimeUnavailableError) as refused:
        rewrite(path, RewriteOptions(parse_size("90%"), provider="webgpu"), tmp_path / "out.onnx")
    assert told in refused.value.message
    assert ("with --portable" in refused.value.hint) is ("MaxPool" in told)
    assert not any("does not run" in each for each in analyze(path, provider="cpu").assumptions)


def test_the_same_operator_without_what_fails_is_fine(tmp_path: Path) -> None:
    notes = analyze(written(tmp_path, FINE), provider="webgpu").assumptions
    assert not any("does not run" in each for each in notes)


def test_nodes_on_the_host_are_named_with_their_bytes(tmp_path: Path) -> None:
    text = "(float[4, 8] x) => (float[4, 8] y) { r = Relu(x) l = LogSoftmax(r) y = Relu(l) }"
    notes = analyze(written(tmp_path, text), provider="webgpu").assumptions
    line = next(note for note in notes if "no WebGPU kernel" in note)
    assert "LogSoftmax_1: 128 B to the host, 128 B back" in line


def test_a_tensor_that_no_buffer_of_the_adapter_holds_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "(float[4, 8] x) => (float[4, 8] y) { r = LogSoftmax(x) y = Relu(r) }"
    graph = open_model(written(tmp_path, text)).graph
    monkeypatch.setattr(unrunnable, "largest_buffer", lambda: ("Tiny", 128))
    unrunnable.require_runs(graph, "webgpu")
    monkeypatch.setattr(unrunnable, "largest_buffer", lambda: ("Tiny", 127))
    with pytest.raises(
        RuntimeUnavailableError, match=r"takes 128 B .* a buffer of Tiny at most 127"
    ):
        unrunnable.require_runs(graph, "webgpu")
    unrunnable.require_runs(graph, "webgpu", here=False)
    unrunnable.require_runs(graph, "cuda")


def test_plain_sessions_are_not_simulated(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plain session"):
        analyze(written(tmp_path, FINE), session="default", provider="webgpu")


def test_the_table_knows_every_kernel_that_ran() -> None:
    rules, kernels = semantics("webgpu"), kernels_of("webgpu")
    assert rules.known <= kernels.rows.keys() | {":GridSample", "com.microsoft:QuickGelu"}
    assert kernels.host_outputs == {":Shape": frozenset({0})}
    assert kernels.host_inputs[":Reshape"] == {1}
    assert rules.alias_input(":Reshape", 0) == 0
