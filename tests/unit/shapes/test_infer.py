"""What the file states against what follows."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers import odd_models as odd
from helpers.graphs import open_text, parse, tensor
from helpers.odd_models import FLOAT, constant, info, saved
from memplan.api.analysis import analyze
from memplan.errors import ModelError
from memplan.proto.metadata import set_metadata
from memplan.shapes.hidden import HIDDEN_KEY, with_hidden_shapes
from memplan.shapes.prepare import name_nodes


def test_a_batch_edited_in_the_inputs_alone(tmp_path: Path) -> None:
    # What people do by hand; the runtime warns, and goes on with its own shapes.
    proto = onnx.shape_inference.infer_shapes(odd.training())
    proto.graph.input[0].CopyFrom(info("x", [4 * odd.BATCH, odd.WIDTH]))
    share = next(t for t in proto.graph.initializer if t.name == "share")
    share.CopyFrom(constant("share", np.full((4 * odd.BATCH, 1), 1.0)))
    with pytest.raises(ModelError, match=r"float\[8, 32\] for tensor 'h'.*float\[32, 32\]") as e:
        analyze(saved(proto, tmp_path))
    assert "value_info" in e.value.hint
    del proto.graph.value_info[:]
    assert analyze(saved(proto, tmp_path)).timeline.peak_bytes > 6824


@pytest.mark.parametrize(("name", "shape"), [("h", [8, 31]), ("h", [8]), ("alive", [8, 32])])
def test_a_wrong_statement_in_the_middle(tmp_path: Path, name: str, shape: list[int]) -> None:
    proto = odd.training()
    proto.graph.value_info.append(info(name, shape))
    with pytest.raises(ModelError, match=f"for tensor '{name}'"):
        analyze(saved(proto, tmp_path))


def test_shapes_that_do_not_fit_an_operator(tmp_path: Path) -> None:
    proto = odd.training()
    proto.graph.input[0].CopyFrom(info("x", [odd.BATCH, odd.WIDTH + 1]))
    with pytest.raises(ModelError, match="shapes do not fit") as caught:
        analyze(saved(proto, tmp_path))
    assert "fc1" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_window_larger_than_its_image(tmp_path: Path) -> None:
    # ONNX's inference ends the process here (an assertion in C++) unless it is kept from it.
    proto = parse("""
        g (float[1, 3, H, 9] image) => (float loss)
        <int64[1] begin = {0}, int64[1] end = {2}, int64[1] axis = {2}> {
            c = Conv (image, kernel)
            s = Slice (c, begin, end, axis)
            loss = ReduceMean <keepdims = 0> (s)
        }""")
    proto.graph.initializer.append(odd.weights("kernel", 4, 3, 5, 5))
    path = saved(proto, tmp_path)
    assert analyze(path, {"H": 8}).timeline.peak_bytes > 0
    with pytest.raises(ModelError, match="window is larger than its image") as caught:
        analyze(path, {"H": 2})
    assert "'c'" in caught.value.message
    assert "--dim" in caught.value.hint


def test_an_output_without_a_type_gets_that_of_its_node() -> None:
    """It states nothing, so it contradicts nothing."""
    proto = parse("g (float[8,5] x) => (float[8,5] y, float[8,5] z) { y = Exp(x)  z = Sin(x) }")
    proto.graph.output[0].ClearField("type")
    made = tensor(open_text(proto).graph, "y")
    assert (made.dtype, made.shape, made.nbytes) == (FLOAT, (8, 5), 160)


def test_a_stated_dimension_of_no_elements_is_believed() -> None:
    proto = parse("g (int64[1] s) => (float[0] y) { y = ConstantOfShape(s) }")
    assert tensor(open_text(proto).graph, "y").shape == (0,)


def test_names_and_hidden_shapes_of_many_nodes_take_linear_time() -> None:
    nodes = " ".join(f"[same] t{k + 1} = Relu(t{k})" for k in range(20_000))
    model = parse(f"g (float[4] t0) => (float[4] t20000) {{ {nodes} }}")
    set_metadata(model, {HIDDEN_KEY: {f"t{k}": [FLOAT, [4]] for k in range(1, 20_000)}})
    begun = time.process_time()
    name_nodes(model.graph)
    assert len(with_hidden_shapes(model).graph.value_info) == 19_999
    assert time.process_time() - begun < 8  # was 15 s and more for either, by square
    assert len({node.name for node in model.graph.node}) == 20_000
