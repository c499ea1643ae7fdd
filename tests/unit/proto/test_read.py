"""The reader: what it refuses, and in which words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers import odd_models as odd
from helpers.models import SAMPLES
from helpers.odd_models import constant, info, saved
from memplan.api.analyze import analyze
from memplan.errors import EXIT_MODEL, ModelError, UsageError
from memplan.proto.external import check_external_data, check_reachable, repoint_external_data
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.read import parse_file, read_model
from memplan.shapes.prepare import prepare

MLP = SAMPLES / "mlp_adamw.onnx"
Edit = Callable[[onnx.ModelProto], None]


def refusal(path: Path, **dims: int) -> ModelError:
    """The error with which the model at ``path`` is refused."""
    before = hashlib.sha256(path.read_bytes()).digest() if os.path.isfile(path) else b""
    with pytest.raises(ModelError) as caught:
        analyze(path, dims)
    assert caught.value.exit_code == EXIT_MODEL
    if before:
        assert hashlib.sha256(path.read_bytes()).digest() == before
    return caught.value


def refused(model: onnx.ModelProto, folder: Path) -> str:
    """The message with which ``model`` is refused; it has a hint too."""
    error = refusal(saved(model, folder))
    assert error.hint
    return error.message


# --- files that are no models -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no ONNX graph"),
        (b"hello, this is text\n", "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01", "not an ONNX model"),
        (b"\x00" * 64, "not an ONNX model"),
        (b"PK\x03\x04" + b"\x00" * 40, "not an ONNX model"),
        (onnx.TensorProto(name="weight", data_type=1).SerializeToString(), "ONNX"),
    ],
    ids=["empty", "text", "png", "zeros", "zip", "tensor"],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert message in refusal(path).message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.onnx").message
    assert "not a file" in refusal(tmp_path).message


def test_a_name_that_no_system_takes(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("a" * 300)).message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(odd.training(), tmp_path)

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # root may read everything
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        analyze(path)


def test_a_file_beyond_the_limit_of_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 2**31)  # sparse: no disk is used
    with pytest.raises(ModelError, match="at most 2 GiB") as caught:
        parse_file(path)
    assert "external data" in caught.value.hint


@pytest.mark.parametrize("kept", [k / 23 for k in range(1, 23)])
def test_a_truncated_model(tmp_path: Path, kept: float) -> None:
    data = MLP.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * kept)])
    assert refusal(path).message


def test_a_model_cut_within_its_last_bytes(tmp_path: Path) -> None:
    data = MLP.read_bytes()
    path = tmp_path / "cut.onnx"
    for missing in (1, 2, 5, 10):
        path.write_bytes(data[:-missing])
        assert refusal(path).message


# --- graphs that break a rule of ONNX -----------------------------------------------------------


def test_an_opset_before_nine(tmp_path: Path) -> None:
    message = refused(odd.training(8), tmp_path)
    assert "opset 8" in message
    assert "9 and newer" in message


def test_a_graph_without_outputs(tmp_path: Path) -> None:
    model = odd.training()
    del model.graph.output[:]
    assert "no outputs" in refused(model, tmp_path)


def test_a_cycle_is_told_from_a_wrong_order(tmp_path: Path) -> None:
    cyclic = odd.training()
    cyclic.graph.node[0].input[0] = "h_grad"
    message = refused(cyclic, tmp_path)
    assert "has a cycle" in message
    assert "fc1" in message

    unsorted = odd.training()
    nodes = list(unsorted.graph.node)
    del unsorted.graph.node[:]
    unsorted.graph.node.extend(reversed(nodes))
    message = refused(unsorted, tmp_path)
    assert "not sorted" in message
    assert "has a cycle" not in message


def test_a_node_that_reads_its_own_output(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.node[1].input[0] = "a"
    assert "cycle" in refused(model, tmp_path)


def _twice_by_nodes(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "h"


def _node_and_input(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "x"


def _node_and_initializer(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "w1"


def _two_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.append(info("x", [3]))


def _two_initializers(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(constant("zero", 1.0))


@pytest.mark.parametrize(
    "edit",
    [_twice_by_nodes, _node_and_input, _node_and_initializer, _two_inputs, _two_initializers],
)
def test_a_tensor_with_two_definitions(tmp_path: Path, edit: Edit) -> None:
    model = odd.training()
    edit(model)
    assert "defined twice" in refused(model, tmp_path)


def test_a_body_that_hides_an_outer_tensor(tmp_path: Path) -> None:
    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].output[0] = "h"
    assert "'h' is defined twice" in refused(model, tmp_path)


def test_an_undefined_tensor_in_the_graph_and_in_a_body(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.node[5].input[0] = "nowhere"
    message = refused(model, tmp_path)
    assert "'nowhere'" in message
    assert "fc2_grad_a" in message

    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].input[0] = "w2_grad"  # computed later
    assert "'w2_grad'" in refused(model, tmp_path)


def test_an_output_that_nothing_computes(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.output[0].name = "lost"
    assert "'lost' is not computed by any node" in refused(model, tmp_path)


def test_things_without_a_name(tmp_path: Path) -> None:
    model = odd.training()
    model.graph.input.append(info("", [3]))
    assert "no name" in refused(model, tmp_path)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    data = odd.training().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(b"fc2_grad_a", b"fc2\xff\xfegrad_"))
    assert "UTF-8" in refusal(path).message


# --- calls and constants against ONNX's own definitions ------------------------------------------


def _too_few_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[1:]


def _too_many_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[1].input.append("x")


def _an_absent_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = ""


def _no_outputs(model: onnx.ModelProto) -> None:
    model.graph.node[3].ClearField("output")


def _no_attribute(model: onnx.ModelProto) -> None:
    del model.graph.node[9].attribute[:]  # Cast's target


def _wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[9].attribute[0].CopyFrom(helper.make_attribute("to", "float"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_too_few_inputs, "fc1 (MatMul) has 1 inputs; MatMul takes 2"),
        (_too_many_inputs, "act (Relu) has 2 inputs; Relu takes 1"),
        (_an_absent_input, "fc1 (MatMul) lacks its input 'B'"),
        (_no_outputs, "mean (ReduceMean) has 0 outputs"),
        (_no_attribute, "mask (Cast) lacks its attribute 'to'"),
        (_wrong_attribute, "mask (Cast): attribute 'to' has the wrong type"),
    ],
)
def test_a_call_against_the_definition(tmp_path: Path, edit: Edit, message: str) -> None:
    model = odd.training()
    edit(model)
    del model.graph.output[0]
    assert message in refused(model, tmp_path)


def test_the_same_inside_a_body_and_a_function(tmp_path: Path) -> None:
    model = odd.conditional()
    model.graph.node[2].attribute[0].g.node[0].input.append("h")
    assert "Neg takes 1" in refused(model, tmp_path)

    model = odd.local_function()
    model.functions[0].node[0].input.append("v")
    assert "Relu takes 1" in refused(model, tmp_path)


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    model = odd.local_function()
    model.functions[0].opset_import.append(helper.make_opsetid("local", 1))
    model.functions[0].node[0].CopyFrom(helper.make_node("Act", ["v"], ["w"], domain="local"))
    assert "cannot be inlined" in refused(model, tmp_path)


def _negative(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] = -1


def _short(tensor: onnx.TensorProto) -> None:
    tensor.raw_data = tensor.raw_data[:-4]


def _huge(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] = 2**62


def _undefined(tensor: onnx.TensorProto) -> None:
    tensor.data_type = 0


def _future(tensor: onnx.TensorProto) -> None:
    tensor.data_type = 99


def _typed(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_negative, "negative dimension"),
        (_short, "needs 128 bytes and has 124"),
        (_huge, "bytes and has 128"),
        (_undefined, "unknown element type 0"),
        (_future, "unknown element type 99"),
        (_typed, "needs 32 elements and has 3"),
    ],
)
@pytest.mark.parametrize("where", ["initializer", "node"])
def test_a_constant_that_does_not_fit(
    tmp_path: Path, damage: Callable[[onnx.TensorProto], None], message: str, where: str
) -> None:
    if where == "initializer":
        model = odd.training()
        tensor = next(t for t in model.graph.initializer if t.name == "w2")
    else:
        model = odd.constant_nodes()
        tensor = model.graph.node[1].attribute[0].t
        tensor.CopyFrom(odd.weights("share", 32, 1))
    damage(tensor)
    assert message in refused(model, tmp_path)


def test_constants_of_every_element_type_are_read(tmp_path: Path) -> None:
    for number in onnx.TensorProto.DataType.values():
        if number in (TensorProto.UNDEFINED, TensorProto.STRING):
            continue
        model = odd.training()
        for raw in (False, True):
            if raw:
                kind = helper.tensor_dtype_to_np_dtype(number)
                values = np.zeros(3, dtype=kind)
                tensor = onnx.numpy_helper.from_array(values, f"extra_{raw}")
            else:
                tensor = helper.make_tensor(f"extra_{raw}", number, [3], [0, 0, 0])
            assert tensor.data_type == number
            model.graph.initializer.append(tensor)
        assert analyze(saved(model, tmp_path)).timeline.resident_bytes >= 2724


# --- external data -------------------------------------------------------------------------------


def _located(path: Path, location: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = location
    path.write_bytes(model.SerializeToString())


def test_external_weights_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = odd.external(tmp_path)
    read: list[Path] = []
    real = Path.read_bytes

    def spied(self: Path) -> bytes:
        read.append(self)
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", spied)
    monkeypatch.setattr(onnx, "load_external_data_for_model", None)
    assert analyze(path).timeline.peak_bytes == 6824
    assert read == [path]


def test_external_data_that_is_missing_or_cut(tmp_path: Path) -> None:
    path = odd.external(tmp_path)
    data = tmp_path / "weights.bin"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    assert "has only" in refusal(path).message
    data.unlink()
    assert "'weights.bin' of tensor" in refusal(path).message
    data.mkdir()
    assert "is missing" in refusal(path).message


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../weights.bin",
        "sub/../../weights.bin",
        "..\\weights.bin",
        "C:\\weights.bin",
        "\\\\server\\share\\weights.bin",
    ],
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    path = odd.external(tmp_path / "inner")
    (tmp_path / "weights.bin").write_bytes((tmp_path / "inner/weights.bin").read_bytes())
    _located(path, location)
    message = refusal(path).message
    assert "outside the model's folder" in message
    assert location in message


def test_external_data_outside_through_a_link(tmp_path: Path) -> None:
    path = odd.external(tmp_path / "inner")
    (tmp_path / "inner/weights.bin").rename(tmp_path / "weights.bin")
    (tmp_path / "inner/weights.bin").symlink_to(tmp_path / "weights.bin")
    assert "through a link" in refusal(path).message


def test_a_store_of_links_as_model_hubs_make_it(tmp_path: Path) -> None:
    # ONNX Runtime loads it: both links lead into one folder.
    stored = odd.external(tmp_path / "blobs", "abc", "def")
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot/model.onnx"
    link.symlink_to(stored)
    (tmp_path / "snapshot/def").symlink_to(tmp_path / "blobs/def")
    assert analyze(link).timeline.peak_bytes == 6824
    with pytest.raises(UsageError, match="cannot be referenced"):
        repoint_external_data(read_model(link), link, tmp_path / "snapshot/out.onnx")
    moved = read_model(link)
    repoint_external_data(moved, link, tmp_path / "blobs/out.onnx")
    check_external_data(moved, tmp_path / "blobs/out.onnx")


def test_an_output_that_holds_weights_or_cannot_reach_them_is_refused_early(tmp_path: Path) -> None:
    path = odd.external(tmp_path / "inner")
    model = read_model(path)
    before = model.SerializeToString()
    data = next(item.value for item in model.graph.initializer[0].external_data)
    with pytest.raises(UsageError, match="inputs are never overwritten"):
        check_reachable(model, path, path.parent / data)
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="cannot be referenced from there"):
        check_reachable(model, path, tmp_path / "other/out.onnx")
    check_reachable(model, path, tmp_path / "out.onnx")
    assert model.SerializeToString() == before


@pytest.mark.parametrize("location", ["a" * 300, "with\0zero", ""])
def test_external_data_under_an_impossible_name(tmp_path: Path, location: str) -> None:
    path = odd.external(tmp_path)
    _located(path, location)
    assert refusal(path).message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "-4"),
        ("offset", "abc"),
        ("length", "3"),
        ("length", "-1"),
        ("length", "1e9"),
        ("offset", "99999999999999999999"),
    ],
)
def test_external_data_with_a_wrong_range(tmp_path: Path, key: str, value: str) -> None:
    path = odd.external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == key:
            item.value = value
    path.write_bytes(model.SerializeToString())
    assert "'w1'" in refusal(path).message


def test_references_follow_a_file_to_another_folder(tmp_path: Path) -> None:
    source = odd.external(tmp_path / "weights")
    model = read_model(source)
    repoint_external_data(model, source, tmp_path / "out.onnx")
    assert model.graph.initializer[0].external_data[0].value == "weights/weights.bin"
    check_external_data(model, tmp_path / "out.onnx")
    (tmp_path / "aside").mkdir()
    with pytest.raises(UsageError, match="cannot be referenced from there") as caught:
        repoint_external_data(read_model(source), source, tmp_path / "aside/out.onnx")
    assert str(tmp_path / "weights") in caught.value.hint


# --- what is kept --------------------------------------------------------------------------------


def test_metadata_survives_others_and_damage() -> None:
    model = odd.training()
    model.metadata_props.add(key="author", value="somebody")
    model.metadata_props.add(key="memplan.old", value="1")
    model.metadata_props.add(key="memplan.broken", value="{")
    assert get_metadata(model) == {"old": 1}
    set_metadata(model, {"dims": {"N": 3}})
    assert get_metadata(model) == {"dims": {"N": 3}}
    assert [item.value for item in model.metadata_props if item.key == "author"] == ["somebody"]


def test_the_file_in_memory_is_the_file_on_disk(tmp_path: Path) -> None:
    path = saved(odd.training(), tmp_path)
    proto = read_model(path)
    assert proto.SerializeToString() == path.read_bytes()
    prepare(proto, path, {})
    assert proto.SerializeToString() == path.read_bytes()
