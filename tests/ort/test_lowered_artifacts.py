"""Files that onnxruntime-training really wrote, lowered: finite differences of the loss in float64,
the same gradients in float32 on stock ONNX Runtime, and what analyze and validate say of them.

Where ONNX Runtime's training package and finite differences disagree (it does in one known case),
the latter judge.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import memplan
from helpers.float64_ops import OPS
from helpers.gradients import runtime
from helpers.lowering import LayerNormalization
from helpers.models import SHARED
from helpers.running import Memplan
from memplan.proto.edit import copied, remove_unread
from memplan.proto.read import read_model

FOLDER = SHARED / "ort_training"
FILES = sorted(FOLDER.glob("*.onnx"))
HALVES = (TensorProto.FLOAT, TensorProto.FLOAT16)
SIZES = {"input-0_dim1": 784, "inputs_attention_mask_dim1": 6, "inputs_labels_dim1": 6}
COUNT = 3
VOCABULARY = 250_880
"""Of the largest file: a thousandth of it tells as much."""
STEP, DIRECTIONS = 1e-5, 4
Array = Any


class Dropout(OpRun):
    """The same elements at every run, as differences need it."""

    def _run(
        self, x: Array, ratio: Array = None, training: Array = None, seed: int | None = None
    ) -> tuple[Array, ...]:
        if training is None or not training:
            return (x, np.ones(x.shape, bool))[: len(self.output)]
        share = 0.5 if ratio is None else float(ratio)
        mask = np.random.default_rng(x.size).random(x.shape) >= share
        return (x * mask / (1 - share), mask)[: len(self.output)]


def read(path: Path) -> onnx.ModelProto:
    """The file, with a small vocabulary and no random mask of its own."""
    model = read_model(path)
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == VOCABULARY:
                dim.dim_value = VOCABULARY // 1000
    return model


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every float32 and float16 as a float64."""
    result, double = copied(model), TensorProto.DOUBLE
    graph = result.graph
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = double
    for k, tensor in enumerate(graph.initializer):
        if tensor.data_type in HALVES:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            graph.initializer[k].CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for node in graph.node:
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i in HALVES:
                item.i = double
            if item.type == onnx.AttributeProto.TENSOR and item.t.data_type in HALVES:
                item.t.CopyFrom(
                    numpy_helper.from_array(numpy_helper.to_array(item.t).astype(np.float64))
                )
    return result


def drawn(model: onnx.ModelProto) -> dict[str, Array]:
    """Inputs of :func:`in_float64`."""
    draw = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or SIZES.get(d.dim_param, COUNT) for d in kind.shape.dim]
        if kind.elem_type != TensorProto.DOUBLE:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            whole = np.ones(shape) if "mask" in value.name else draw.integers(0, 2, shape)
            feeds[value.name] = whole.astype(dtype)
            continue
        scale = 0.3 if len(shape) < 2 else shape[-1] ** -0.5
        feeds[value.name] = draw.standard_normal(shape) * scale
        if "norm" in value.name and value.name.endswith("weight"):
            feeds[value.name] += 1
    return feeds


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    return ReferenceEvaluator(model, new_ops=[*OPS, LayerNormalization, Dropout])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_gradients_are_those_of_finite_differences(path: Path) -> None:
    result = memplan.lower(read(path))
    loss, gradients = result.loss, result.contract.gradients
    assert gradients
    assert loss is not None
    model = in_float64(result.model)
    feeds = drawn(model)
    names = [value.name for value in model.graph.output]
    values = dict(zip(names, evaluator(model).run(None, feeds), strict=True))
    forward = copied(model)
    kept = [copied(value) for value in forward.graph.output if value.name == loss]
    del forward.graph.output[:]
    forward.graph.output.extend(kept)
    remove_unread(forward.graph)
    run = evaluator(forward)
    ways: list[tuple[str, ...]] = [(name,) for name in gradients.values()]
    if len(ways) > 20:  # a large network: all parameters move together
        ways = [tuple(gradients.values())] * DIRECTIONS
    outputs = {name: output for output, name in gradients.items()}
    draw = np.random.default_rng(1)
    for moving in ways:
        by = {name: draw.standard_normal(feeds[name].shape) for name in moving}
        by = {name: way / np.sqrt(way.size) for name, way in by.items()}
        ends = []
        for sign in (STEP, -STEP):
            moved = {**feeds, **{n: feeds[n] + sign * way for n, way in by.items()}}
            ends.append(np.asarray(run.run(None, moved)[0]).item())
        wanted = (ends[0] - ends[1]) / (2 * STEP)
        given = sum(float((values[outputs[n]] * way).sum()) for n, way in by.items())
        scale = max(float(np.linalg.norm(values[outputs[n]])) for n in moving)
        assert abs(wanted - given) <= 1e-6 * max(scale, 1e-3), (moving[:1], wanted, given)


@pytest.mark.parametrize(
    "path", [path for path in FILES if "bloom" not in path.stem], ids=lambda path: path.stem
)
def test_stock_runtime_gives_them_too(path: Path) -> None:
    result = memplan.lower(read(path))
    stay = copied(result.model)
    for tensor in stay.graph.initializer:
        if "dropout" in tensor.name and "Constant_1" in tensor.name:  # training_mode
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(False), tensor.name))
    feeds = drawn(in_float64(stay))
    single = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in feeds.items()}
    found = runtime(stay, single)
    model = in_float64(stay)
    names = [value.name for value in model.graph.output]
    for name, wanted in zip(names, evaluator(model).run(None, feeds), strict=True):
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found[name], wanted, atol=1e-4 * scale)


@pytest.mark.parametrize(
    "path", [path for path in FILES if "bloom" not in path.stem], ids=lambda path: path.stem
)
def test_predicted_is_measured(path: Path, inside: Memplan, tmp_path: Path) -> None:
    lowered = inside("lower", path, "-o", "step.onnx")
    assert lowered.returncode == 0, lowered.stderr
    dims: list[str] = []
    for value in onnx.load(tmp_path / "step.onnx").graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dims += ["--dim", f"{dim.dim_param}={SIZES.get(dim.dim_param, 32)}"]
    done = inside(
        "rewrite",
        "step.onnx",
        "-o",
        "fits.onnx",
        *dims,
        "--budget",
        "100%",
        "--strategy",
        "greedy",
    )
    assert done.returncode == 0, done.stderr
    done = inside("validate", "step.onnx", "fits.onnx", *dims, "--runs", "1", "--format", "json")
    found = json.loads(done.stdout)
    assert found["proved"], found["findings"]
    for side in ("original", "rewritten"):
        assert found[side]["predicted_peak_bytes"] == found[side]["measured_peak_bytes"]
