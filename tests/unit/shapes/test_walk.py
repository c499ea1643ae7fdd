"""One walk over the nodes: what inference and the file say together, and who knows how much."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from helpers.graphs import parse
from helpers.models import DIMS, sample_models
from memplan.errors import ModelError
from memplan.shapes import complete
from memplan.shapes.complete import value_types
from memplan.shapes.dims import bind_dims
from memplan.shapes.one_node import infer_types
from memplan.shapes.tensor_type import Shape, TensorType, read_type, write_type
from memplan.shapes.visible import visible_shapes
from memplan.shapes.walk import agreed

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize(
    ("mine", "told", "both"),
    [
        ((2, ""), ("", 3), (2, 3)),
        ((2, 3), ("N", 3), (2, 3)),
        (("M", 3), ("N", 3), ("N", 3)),
        (("", 3), ("", 3), ("", 3)),
        ((2, ""), ("N", 0), (2, 0)),
        (None, (2, 3), (2, 3)),
        ((2, 3), None, (2, 3)),
        ((2, 3), (2, 4), (2, 4)),
        ((2, 3), (2, 3, 1), (2, 3, 1)),
    ],
)
def test_each_dimension_is_told_by_whom_knows_it(
    mine: Shape | None, told: Shape | None, both: Shape
) -> None:
    found = agreed(
        *(write_type(TensorType(FLOAT, shape)).SerializeToString() for shape in (mine, told))
    )
    assert read_type(type(write_type(TensorType(FLOAT, ()))).FromString(found)).shape == both


def test_what_the_file_says_of_another_element_type_is_believed() -> None:
    mine, told = (write_type(TensorType(kind, (2,))) for kind in (FLOAT, INT64))
    both = agreed(mine.SerializeToString(), told.SerializeToString())
    assert both == told.SerializeToString()
    assert agreed(b"", both) == agreed(both, b"") == both


def test_names_that_inference_makes_up_are_those_of_no_other_node() -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    (found,) = infer_types(node, {"x": TensorType(FLOAT, ("N", 4))}, {}, 20)
    assert found.shape == (2, "")
    node = helper.make_node("Relu", ["x"], ["y"])
    (found,) = infer_types(node, {"x": TensorType(FLOAT, ("N", 4))}, {}, 20)
    assert found.shape == ("N", 4)


def test_sizes_of_a_tensor_that_is_known_in_part_are_followed() -> None:
    model = parse("""g (float[4,8] x) => (float[k] y) <int64[1] first = {0}, float one = {1}>
      { n = NonZero(x)  s = Shape(n)  r = Gather(s, first)  y = Expand(one, r) }""")
    types, _ = value_types(model)
    assert types["n"].shape is None
    assert types["y"].shape == (2,)


DEFAULT = """g (float[2,4] x, int64[2] sizes) => (float y) <int64[2] sizes = {4, 2}>
  { s = Identity(sizes)  h = Reshape(x, s)  n = Neg(h)  y = ReduceSum<keepdims = 0>(n) }"""


def test_a_statement_is_held_against_what_follows_from_the_inputs_alone() -> None:
    computed, stated = parse(DEFAULT), helper.make_tensor_value_info("h", FLOAT, [8])
    assert value_types(computed)[0]["h"].shape == (4, 2)
    computed.graph.value_info.append(stated)
    assert value_types(computed)[0]["n"].shape == (8,)  # a run may give other sizes
    fixed = parse(DEFAULT.replace("h = Reshape(x, s)", "h = Reshape(x, sizes)"))
    fixed.graph.value_info.append(stated)
    with pytest.raises(ModelError, match=r"states float\[8\] for tensor 'h'.* float\[4, 2\]"):
        value_types(fixed)


def test_windows_of_a_pool_that_would_begin_behind_the_image_are_not_counted() -> None:
    model = parse("""g (float[1,1,5,5] x) => (float y)
      { p = MaxPool<kernel_shape = [1, 1], strides = [3, 3], ceil_mode = 1>(x)
        y = ReduceMean<keepdims = 0>(p) }""")
    assert value_types(model)[0]["p"].shape == (1, 1, 2, 2)  # 3 by 3 to ONNX's inference
    model.graph.value_info.append(helper.make_tensor_value_info("p", FLOAT, [1, 1, 3, 3]))
    assert value_types(model)[0]["p"].shape == (1, 1, 2, 2)
    foreign = parse("""<ir_version: 10, opset_import: ["" : 18, "acme" : 1]>
      g (float[1,1,5,5] x) => (float y) <float[1,1,5,5] i, float[1,1,3,3] p> { i = acme.Odd(x)
        p = MaxPool<kernel_shape = [1, 1], strides = [3, 3], ceil_mode = 1>(i)
        y = ReduceMean<keepdims = 0>(p) }""")
    assert value_types(foreign)[0]["p"].shape == (1, 1, 2, 2)
    # Of these sizes only inference of the whole graph tells.
    hidden = parse("""g (float[1,1,1,1,3] x) => (float y)
      <int64[1] first = {0}, int64[1] one = {1}, float[1,1,1,1] unit = {1}>
      { n = NonZero(x) s = Shape(n) r = Gather(s, first) t = Concat<axis = 0>(one, one, r, r)
        q = Expand(unit, t) p = MaxPool<kernel_shape = [1, 1], strides = [3, 3], ceil_mode = 1>(q)
        e = Exp(p) y = ReduceMean<keepdims = 0>(e) }""")
    assert value_types(hidden)[0]["e"].shape == (1, 1, 2, 2)


@pytest.mark.parametrize("path", sample_models(), ids=lambda path: path.stem)
def test_inference_of_the_whole_says_what_the_walk_does(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind_dims(onnx.load(path, load_external_data=False), DIMS.get(path.stem, {}))
    at_once = value_types(bound)
    monkeypatch.setattr(complete, "types_at_once", lambda _: None)
    walked = value_types(bound)
    assert (walked, list(walked[0])) == (at_once, list(at_once[0]))


def test_an_operator_that_onnx_does_not_know_shows_its_outputs_once_its_inputs_are_seen() -> None:
    model = parse("""<ir_version: 10, opset_import: ["" : 18, "acme" : 1]>
      g (float[4,8] x) => (float p, float q) <int64[2] both = {0, 1}>
      { s = Shape(x)  t = Gather(s, both)  r = Reshape(x, t)  z = acme.Odd(r)
        y = acme.Odd(x)  n = Neg(y)
        p = ReduceSum<keepdims = 0>(n)  q = ReduceSum<keepdims = 0>(z) }""")
    types = {**value_types(model)[0]}
    types |= {name: TensorType(FLOAT, (4, 8)) for name in ("y", "z", "n")}
    seen = visible_shapes(model, types)
    assert seen["n"] == seen["y"] == (4, 8)
    assert "z" not in seen


@pytest.mark.parametrize("batched", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(
    ("left", "right"), [([3, 2, 5, 4], [1, 2, 4, 6]), ([2, 1, 5, 4], [2, 3, 4, 6])]
)
def test_a_fused_product_has_the_shape_that_the_runtime_makes(
    left: list[int], right: list[int], trans: int, batched: int
) -> None:
    """Also where the file says otherwise: the runtime states another when it saves such nodes."""
    want = [*np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2])), 5, 6]
    if trans:
        left = [*left[:-2], left[-1], left[-2]]
    if batched:
        left, right = [left[2], *left[:2], left[3]], [right[2], *right[:2], right[3]]
    switches = f"transA = {trans}, transBatchA = {batched}, transBatchB = {batched}"
    model = parse(f"""g (float{left} a, float{right} b) => (float[p, q, r, s] z)
        {{ y = com.microsoft.FusedMatMul <{switches}> (a, b) z = Neg (y) }}""")
    model.graph.value_info.append(helper.make_tensor_value_info("y", FLOAT, [3, 1, 5, 6]))
    assert list(value_types(model)[0]["y"].shape or ()) == want
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"a": np.zeros(left, np.float32), "b": np.zeros(right, np.float32)}
    assert list(session.run(None, feeds)[0].shape) == want
