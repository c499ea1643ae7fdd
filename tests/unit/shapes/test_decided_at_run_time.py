"""Shapes that only a run can tell: a look at the model is answered, a plan is refused."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

import memplan
from helpers.graphs import parse
from helpers.odd_models import saved
from memplan.errors import ModelError
from memplan.report.tell.analysis import headline

COUNTED_TO = """g (float[4,4] x, int64 n) => (float[4,4] y, float[K] z)
  <int64 zero = {0}, int64 one = {1}>
  { a = Tanh(x)  y = Exp(a)  r = Range(zero, n, one)  c = Cast<to = 1>(r)  z = Neg(c) }"""


def analyzed(model: onnx.ModelProto, folder: Path) -> memplan.Analysis:
    return memplan.analyze(saved(model, folder))


def test_what_a_run_decides_is_not_counted_and_named(tmp_path: Path) -> None:
    found = analyzed(parse(COUNTED_TO), tmp_path)
    note = next(note for note in found.assumptions if "NOT COUNTED" in note)
    assert note.startswith("3 tensors NOT COUNTED")
    assert "by Range" in note
    assert "r, c, z" in note
    assert note in found.inexact
    assert "without 3 tensors NOT COUNTED" in headline(found)
    sizes = {tensor.name: tensor.nbytes for tensor in found.graph.tensors if tensor.counted}
    assert sizes.keys() & {"a", "y", "r", "c", "z"} == {"a", "y"}


def test_with_the_length_stated_it_is_counted(tmp_path: Path) -> None:
    model = parse(COUNTED_TO)
    model.graph.value_info.append(helper.make_tensor_value_info("r", onnx.TensorProto.INT64, [50]))
    found = analyzed(model, tmp_path)
    assert not found.inexact
    assert {t.name: t.nbytes for t in found.graph.tensors}["c"] == 200


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_nothing_is_planned_around_it(session: str, tmp_path: Path) -> None:
    path = saved(parse(COUNTED_TO), tmp_path)
    with pytest.raises(ModelError, match="shape of tensor 'r'") as caught:
        memplan.rewrite(path, memplan.RewriteOptions("90%", session=session), dry_run=True)
    assert "mask the result (torch.where, scatter)" in caught.value.hint


def test_a_branch_with_more_nodes_has_the_shape_of_the_other(tmp_path: Path) -> None:
    model = parse("""g (float[4] x, bool c, float[2] p) => (float[4] z)
      { y = If (c) <then_branch = yes () => (float[N] a) { t = Shape (x) a = Expand (x, t) },
                    else_branch = no () => (float[M] b) { b = Neg (x) }>  z = Exp (y) }""")
    found = analyzed(model, tmp_path)
    assert {tensor.name: tensor.nbytes for tensor in found.graph.tensors}["y"] == 16
    assert not any("NOT COUNTED" in note for note in found.assumptions)


def test_branches_of_different_shapes_are_not_counted(tmp_path: Path) -> None:
    model = parse("""g (float[4] x, bool c, float[2] p) => (float[K] z)
      { y = If (c) <then_branch = yes () => (float[N] a) { a = Neg (p) },
                    else_branch = no () => (float[M] b) { b = Neg (x) }>  z = Exp (y) }""")
    assert any("by If" in note for note in analyzed(model, tmp_path).inexact)


@pytest.mark.parametrize("op", ["FusedMatMul", "Loop", "Scan", "If"])
def test_a_body_of_an_operator_that_has_none(op: str, tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
      g (float[4,8] x, float[8,4] w) => (float[4,4] y)
      { h = com.microsoft.FusedMatMul (x, w)  y = Neg (h) }""")
    body = helper.make_graph([], "body", [], [])
    model.graph.node[0].attribute.append(helper.make_attribute("body", body))
    model.graph.value_info.append(helper.make_tensor_value_info("h", 1, [4, 4]))
    model.graph.node[0].op_type = op
    assert analyzed(model, tmp_path).timeline.peak_bytes


def test_a_scan_with_an_axis_for_batches_is_refused(tmp_path: Path) -> None:
    model = parse("""<ir_version: 7, opset_import: ["" : 8]>
      g (float[1,4] a, float[1,3,4] x) => (float[1,4] y, float[1,3,4] z)
      { y, z = Scan <num_scan_inputs: int = 1, body = step (float[4] s, float[4] e)
          => (float[4] t, float[4] o) { t = Add (s, e) o = Identity (t) }> ("", a, x) }""")
    with pytest.raises(ModelError, match="Scan of opset 9"):
        analyzed(model, tmp_path)


@pytest.mark.parametrize("opset", [9, 12])
def test_an_operator_whose_definition_inference_cannot_read(opset: int, tmp_path: Path) -> None:
    model = parse(f"""<ir_version: 7, opset_import: ["" : {opset}]>
      g (float[3,3,3,1] x) => (float[3,3,3,1] y) {{ y = MeanVarianceNormalization (x) }}""")
    assert analyzed(model, tmp_path).timeline.peak_bytes == 2 * 27 * 4


@pytest.mark.parametrize(
    "call",
    [
        "ReorderOutput (x)",
        "MaxPool (x)",
        "Conv (x)",
        "Upsample (x)",
        "MaxPool <kernel_shape = [2]> (x)",
        "MaxPool <kernel_shape = [2, 2], strides = [0, 1]> (x)",
    ],
)
def test_an_operator_of_the_blocked_layout_that_no_runtime_wrote(call: str, tmp_path: Path) -> None:
    model = parse(f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft.nchwc" : 1]>
      g (float[1,8,4,4] x) => (float[1] y) {{ h = com.microsoft.nchwc.{call} y = Neg (h) }}""")
    with pytest.raises(ModelError, match="shape of tensor 'h'"):
        analyzed(model, tmp_path)
