"""Float types that the CPU's kernels lack: the table holds in the installed runtime."""

from contextlib import nullcontext

import onnx
import onnxruntime as ort
import pytest

from helpers.graphs import parse
from memplan.ops.float_types import unsupported_kernels, unsupported_notes

NODES = {
    "Conv": ("T[1,1,5,5] x, T[1,1,3,3] w", "Conv (x, w)"),
    "MatMul": ("T[3,3] x, T[3,3] w", "MatMul (x, w)"),
    "Tanh": ("T[3,3] x", "Tanh (x)"),
    "LeakyRelu": ("T[3,3] x", "LeakyRelu (x)"),
    "Where": ("bool[3] c, T[3] x, T[3] w", "Where (c, x, w)"),
    "Transpose": ("T[3,3] x", "Transpose (x)"),
    "Gather": ("T[3,3] x, int64[2] i", "Gather (x, i)"),
    "AveragePool": ("T[1,1,4,4] x", "AveragePool <kernel_shape = [2, 2]> (x)"),
    "ReduceSum": ("T[3,3] x", "ReduceSum (x)"),
    "Softmax": ("T[3,3] x", "Softmax (x)"),
}


def model_of(name: str, dtype: str) -> onnx.ModelProto:
    given, call = NODES[name]
    given = given.replace("T[", f"{dtype}[")
    text = f"g ({given}) => ({dtype} y) {{ [n] y = {call} }}"
    model = parse(f'<ir_version: 10, opset_import: ["" : 22]> {text}')
    model.graph.output[0].ClearField("type")
    return model


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double", "float"])
@pytest.mark.parametrize("name", NODES)
def test_the_table_says_which_sessions_open(name: str, dtype: str) -> None:
    model = model_of(name, dtype)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    found = unsupported_kernels(model)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED") if found else nullcontext():
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert all((each.node, each.dtype, each.when) == ("n", dtype, "open") for each in found)


def test_cuda_runs_what_it_has_kernels_for_and_leaves_the_rest_to_the_cpu() -> None:
    assert unsupported_kernels(model_of("Conv", "double"))
    assert not unsupported_kernels(model_of("Conv", "double"), "cuda")
    assert not unsupported_kernels(model_of("MatMul", "bfloat16"), "cuda")


def test_bodies_are_searched_and_nodes_told_by_type() -> None:
    model = parse(
        "g (double[2,3] x, bool b) => (double[2,3] y) { y = If (b) <"
        "then_branch = a () => (double[2,3] s) { [inside] s = Elu (x) }, "
        "else_branch = c () => (double[2,3] t) { [other] t = Tanh (x) }> }"
    )
    found = unsupported_kernels(model)
    assert [(each.node, each.op) for each in found] == [("inside", "Elu")]
    assert unsupported_notes(found, "cpu") == (
        "ONNX Runtime cannot run 1 node in double on the CPU (Elu 'inside'): no session opens",
    )
