"""Damaged and hostile files: what the user sees is one error of the model, or the right answer."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan.api.analysis import analyze
from memplan.errors import ModelError
from memplan.proto.metadata import get_metadata
from memplan.proto.model_checks import find_fault

STEP = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[8,8] x) => (float[8,8] y) { h = Relu (x) y = MatMul (h, x) }"""
Edit = Callable[[onnx.ModelProto], None]


def written(folder: Path, edit: Edit, text: str = STEP) -> Path:
    model = onnx.parser.parse_model(text)
    edit(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


UNREADABLE = ["[" * 100_000, "1" * 5000, "{", '"\\ud800"']
HIDDEN = ([1, [2**70]], [2**40, [8, 8]], [999, [8, 8]], [-1, []], [1, [-1]])
SCOPES = ("(" * 500, "-" * 90_000 + "1", "{[]: 1}", "[" + "1," * 400_000 + "]", "\0")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("memplan.dims", value) for value in UNREADABLE),
        # Shapes out of range, and scopes of modules that Python cannot read.
        *(("memplan.hidden_shapes", json.dumps({"h": entry})) for entry in HIDDEN),
        *(("pkg.torch.onnx.name_scopes", value) for value in SCOPES),
    ],
)
def test_metadata_that_makes_no_sense_changes_nothing(key: str, value: str, tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        for holder in (model, *model.graph.node):
            holder.metadata_props.add(key=key, value=value)
        model.metadata_props.add(key="memplan.budget_bytes", value="7")

    plain = analyze(written(tmp_path, lambda _: None)).timeline.peak_bytes
    path = written(tmp_path, edit)
    assert analyze(path).timeline.peak_bytes == plain
    assert get_metadata(onnx.load(path))["budget_bytes"] == 7


def operator(op: str, inputs: list[str], outputs: list[str], domain: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        node = helper.make_node(op, inputs, outputs, domain=domain, name="odd")
        model.graph.node.append(node)
        model.opset_import.append(helper.make_opsetid("acme", 1))

    return edit


@pytest.mark.parametrize("domain", ["acme", "com.microsoft"])
@pytest.mark.parametrize("op", ["Constant", "Slice", "ReduceSum", "LayerNormalization", "Shape"])
def test_operators_of_others_under_standard_names(op: str, domain: str, tmp_path: Path) -> None:
    assert analyze(written(tmp_path, operator(op, ["x"], [], domain))).timeline.peak_bytes
    path = written(tmp_path, operator(op, [], ["made"], domain))
    with pytest.raises(ModelError, match="shape of tensor 'made'"):
        analyze(path)


@pytest.mark.parametrize("inputs", [["x"], ["x", "x", "x"]])
def test_an_operator_of_the_runtime_with_too_many_inputs(inputs: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, operator("FusedMatMul", inputs, ["z"], "com.microsoft"))
    with pytest.raises(ModelError, match=f"has {len(inputs)} inputs?; FusedMatMul takes 2"):
        analyze(path)


def test_an_operator_that_is_newer_than_the_opset_has_its_inputs_too(tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 13
        operator("LayerNormalization", [], ["made"], "")(model)

    with pytest.raises(ModelError, match="has 0 inputs; LayerNormalization takes 2"):
        analyze(written(tmp_path, edit))


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_an_opset_beyond_all_numbers(provider: str, tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 2**62

    with pytest.raises(ModelError, match="says that it uses opset 4,611,686,018,427,387,904"):
        analyze(written(tmp_path, edit), provider=provider)


LOOP = """<ir_version: 10, opset_import: ["" : 18]>
g (float[8] x) => (float[8] y) <int64 trips = {2147483648}, bool going = {1}>
{ y = Loop <body = b (int64 i, bool c, float[8] v) => (bool d, float[8] w) <int64[1] huge = {8}>
  { d = Identity (c) w = Expand (v, huge) }> (trips, going, x) }"""


def test_a_body_whose_tensors_no_machine_holds(tmp_path: Path) -> None:
    text = LOOP.replace("int64[1] huge = {8}", "int64[2] huge = {1125899906842624, 8}")
    text = text.replace("float[8] w", "float[] w").replace("float[8] y", "float[] y")
    with pytest.raises(ModelError, match="elements; the largest is"):
        analyze(written(tmp_path, lambda _: None, text))


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("float[8] v) => (bool d, float[8] w)", ") => (bool d, float[8] w)", "2 inputs and 2 o"),
        ("float[8] v)", "float[8] v, float[8] more)", "4 inputs and 2 o"),
        ("(bool d, float[8] w)", "(bool d)", "3 inputs and 1 o"),
    ],
)
def test_a_body_that_is_called_with_other_counts(
    old: str, new: str, counts: str, tmp_path: Path
) -> None:
    text = LOOP.replace(old, new).replace("bool c, )", "bool c)")
    if "float[8] v" not in text:
        text = text.replace("(v, huge)", "(x, huge)")
    with pytest.raises(ModelError, match=f"its body has {counts}utput"):
        analyze(written(tmp_path, lambda _: None, text))


def test_an_operator_that_only_the_runtime_knows_is_no_fault() -> None:
    model = onnx.parser.parse_model(STEP)
    model.graph.node.append(helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["n"]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "s"))
    assert find_fault(model) is None
    model.graph.node[-1].op_type = "Nonsense"
    assert "Nonsense" in (find_fault(model) or "")


def test_an_attribute_that_no_definition_has(tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].attribute.append(helper.make_attribute("nonsense", 1))

    with pytest.raises(ModelError, match="checker refuses the model: Unrecognized attribute"):
        analyze(written(tmp_path, edit))


@pytest.mark.parametrize("in_body", [False, True])
def test_external_data_beside_the_model_whatever_the_current_folder(
    in_body: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(np.ones(8, np.float32).tobytes())
    held = TensorProto(name="k", data_type=1, dims=[8], data_location=TensorProto.EXTERNAL)
    held.external_data.add(key="location", value="w.bin")

    def edit(model: onnx.ModelProto) -> None:
        body = model.graph.node[0].attribute[0].g
        if in_body:
            body.initializer.append(held)
            body.node.append(helper.make_node("Add", ["v", "k"], ["unused"]))
        else:
            model.graph.node.append(helper.make_node("Constant", [], ["k"], value=held))

    path = written(tmp_path, edit, LOOP.replace("2147483648", "3"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert analyze(path).timeline.peak_bytes
    assert find_fault(onnx.load(path, load_external_data=False)) is None
