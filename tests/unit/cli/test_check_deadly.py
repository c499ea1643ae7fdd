"""A model that onnx's C++ code has no answer to costs ``check`` its own line only."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from helpers import odd_models as odd
from helpers.running import Memplan


def deadly() -> onnx.ModelProto:
    """Shape inference of onnx 1.23 reads the type of an input that is not there, and ends its
    process (``tests/unit/proto/test_native.py``), where the checker does not refuse it before."""
    node = helper.make_node(
        "LabelEncoder", [""], ["y"], domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[1]
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [4])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_model_that_kills_onnx_costs_its_own_line_only(inside: Memplan, tmp_path: Path) -> None:
    odd.saved(odd.training(), tmp_path, "a.onnx")
    odd.saved(odd.training(), tmp_path, "b.onnx")
    odd.saved(odd.training(), tmp_path, "c.onnx")
    assert inside("check", "--update", "a.onnx", "b.onnx", "c.onnx").returncode == 0
    odd.saved(deadly(), tmp_path, "b.onnx")
    done = inside("check")
    assert done.returncode == 3
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: b.onnx: ")
    assert "the ONNX checker refuses" in error or "died of SIGSEGV" in error
    *_, last = done.stdout.splitlines()
    assert last == "1 of 3 models could not be read"
