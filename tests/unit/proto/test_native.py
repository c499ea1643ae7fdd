"""onnx's C++ code runs in a child process, whose death is an error of one model."""

import os
import signal

import onnx
import pytest

from memplan.errors import ModelError
from memplan.proto import native

# Split has more outputs than num_outputs says: an assertion in onnx 1.23 ends the process.
DEADLY = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[4] x) => (float[1] a, float[1] b, float[1] c)
{ a, b, c = Split <axis: int = 0, num_outputs: int = 2> (x) }
"""
FINE = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[4,3] x) => (float[M,N] y) { t = Transpose (x) y = Relu (t) }
"""


def shape_of_t(model: onnx.ModelProto) -> list[int]:
    value = next(v for v in model.graph.value_info if v.name == "t")
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_what_kills_inference_is_an_error_and_the_next_model_is_inferred() -> None:
    deadly, fine = onnx.parser.parse_model(DEADLY), onnx.parser.parse_model(FINE)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"shape inference of onnx .* died of SIGABRT"):
            native.infer_shapes(deadly)
        assert shape_of_t(native.infer_shapes(fine)) == [3, 4]


def test_errors_have_the_types_that_onnx_raises() -> None:
    wrong = onnx.parser.parse_model(FINE.replace("Relu (t)", "MatMul (t, t)"))
    with pytest.raises(onnx.shape_inference.InferenceError, match="MatMul"):
        native.infer_shapes(wrong, strict=True)
    wrong.graph.node[0].op_type = "Nonsense"
    with pytest.raises(onnx.checker.ValidationError, match="Nonsense"):
        native.check_model(wrong)


@pytest.mark.parametrize(
    ("sent", "said"), [(signal.SIGSTOP, "gives no answer"), (signal.SIGKILL, "SIGKILL")]
)
def test_a_child_that_is_stopped_or_killed_from_outside_is_replaced(
    sent: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = onnx.parser.parse_model(FINE)
    native.infer_shapes(fine)
    os.kill(native._child.pid, sent)
    if sent == signal.SIGSTOP:
        monkeypatch.setattr(native, "_PATIENCE", 0.001)
    with pytest.raises(ModelError, match=said):
        native.infer_shapes(fine)
    monkeypatch.undo()
    assert shape_of_t(native.infer_shapes(fine)) == [3, 4]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 3])
def test_a_signal_is_named(number: int) -> None:
    shown = "SIGKILL" if number == signal.SIGKILL else f"signal {number}"
    assert f"died of {shown} " in native._died("checker", int(number)).message


def test_limits_of_a_small_model_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    native._forget()  # a child has the limits of its time
    monkeypatch.setattr(native, "_ROOM", 8 << 20)
    fine = onnx.parser.parse_model(FINE)
    native.infer_shapes(fine)
    fine.doc_string = "long" * (10 << 20)
    assert shape_of_t(native.infer_shapes(fine)) == [3, 4]
    native._forget()


def test_the_child_of_a_process_is_not_that_of_its_forks() -> None:
    fine = onnx.parser.parse_model(FINE)
    native.infer_shapes(fine)
    before = native._child.pid
    fork = os.fork()
    if fork == 0:
        found = native.infer_shapes(fine)
        other = native._child is not None and native._child.pid != before
        os._exit(0 if shape_of_t(found) == [3, 4] and other else 1)
    assert os.waitpid(fork, 0)[1] == 0
    assert shape_of_t(native.infer_shapes(fine)) == [3, 4]


def test_a_system_that_cannot_fork_calls_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(native, "_child", None)
    monkeypatch.setattr(os, "fork", refused)
    assert shape_of_t(native.infer_shapes(onnx.parser.parse_model(FINE))) == [3, 4]


def test_attributes_that_are_left_out_do_not_empty_the_constants_of_a_function() -> None:
    # onnx's inliner leaves them out of the nodes that it makes: BlackmanWindow has two defaults.
    text = "g (int64 n) => (float[k] w) { w = BlackmanWindow (n) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    inlined = native.inline_functions(model, ["BlackmanWindow"])
    constants = [node for node in inlined.graph.node if node.op_type == "Constant"]
    assert constants
    assert all(node.attribute for node in constants)
