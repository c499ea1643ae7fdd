"""Where the weights of a captured graph go. Needs no PyTorch."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan.api.capture.captured_weights import (
    Weight,
    WeightPlace,
    choose_place,
    embed,
    write_captured,
)
from memplan.errors import UsageError


def weights(nbytes: int = 12) -> dict[str, Weight]:
    array = np.arange(nbytes // 4, dtype=np.float32)
    kind = TensorProto.FLOAT
    return {
        "a": Weight(kind, array.shape, lambda: memoryview(array.view(np.uint8))),
        "b": Weight(kind, (), lambda: np.float32(2).tobytes()),
    }


def model() -> onnx.ModelProto:
    node = helper.make_node("Mul", ["a", "b"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    graph = helper.make_graph([node], "g", [], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def values(read: onnx.ModelProto) -> dict[str, list[float]]:
    return {t.name: numpy_helper.to_array(t).tolist() for t in read.graph.initializer}


def test_embedded() -> None:
    made = model()
    embed(made, weights())
    assert values(made) == {"a": [0, 1, 2], "b": 2}


def test_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    write_captured(model(), weights(), WeightPlace.COPY, path, False)
    assert values(onnx.load(path)) == {"a": [0, 1, 2], "b": 2}
    assert path.stat().st_size < 1000
    assert sorted(item.name for item in tmp_path.iterdir()) == ["step.onnx", "step.onnx.data"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data = tmp_path / "step.onnx.data"
    data.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        write_captured(model(), weights(), WeightPlace.COPY, tmp_path / "step.onnx", False)
    assert data.read_text() == "mine"
    assert [item.name for item in tmp_path.iterdir()] == ["step.onnx.data"]


def test_auto_puts_few_into_the_file_and_many_beside_it(tmp_path: Path) -> None:
    many = {"a": Weight(TensorProto.FLOAT, (1 << 27,), lambda: b"")}
    path = tmp_path / "step.onnx"
    assert choose_place("auto", weights(), path) is WeightPlace.EMBED
    assert choose_place("auto", many, path) is WeightPlace.COPY
    assert choose_place("auto", many, None) is WeightPlace.NONE
    huge = {"a": Weight(TensorProto.FLOAT, (1 << 29,), lambda: b"")}
    with pytest.raises(UsageError, match="do not fit into one ONNX file"):
        choose_place("embed", huge, path)
    with pytest.raises(UsageError, match="requires an output file"):
        choose_place("copy", weights(), None)
