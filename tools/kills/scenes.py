"""What is killed: commands with their inputs, and what their outputs hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_GRAD = ("grad", "forward.onnx", "--loss", "loss", "--optimizer", "adamw", "--weights", "copy")
_DATA = ("-o", "step.onnx")


@dataclass(frozen=True, slots=True)
class Scene:
    """A command line without ``--force``, what it writes, and the model that it reads."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    model: str


SCENES = {
    "grad": Scene((*_GRAD, "-o", "step.onnx"), ("step.onnx",), "forward.onnx"),
    "--update-output": Scene(
        (*_GRAD, "-o", "step.onnx", "--update-output", "update.onnx"),
        ("step.onnx", "update.onnx"),
        "forward.onnx",
    ),
    "lower": Scene(
        ("lower", "old.onnx", "--no-check", "--weights", "copy", "-o", "step.onnx"),
        ("step.onnx",),
        "old.onnx",
    ),
    "rewrite": Scene(
        (
            *("rewrite", "training.onnx", "--budget", "min", "--effort", "2", "--optimize", "none"),
            *("--weights", "copy", "-o", "small.onnx"),
        ),
        ("small.onnx",),
        "training.onnx",
    ),
    "--export-forward": Scene(
        (
            *("run", "training.onnx", "--steps", "3", "--threads", "1", "--checkpoint-every", "1"),
            *("--checkpoint", "run.npz", "--export-forward", "net.onnx"),
        ),
        ("net.onnx", "run.npz"),
        "training.onnx",
    ),
}


def make_inputs(folder: Path, scene: Scene, seed: int) -> None:
    """Write the model of a scene, with weights beside it; another ``seed``, other weights."""
    made = {"forward.onnx": _forward, "old.onnx": _of_onnxruntime, "training.onnx": _training}
    model = made[scene.model](np.random.default_rng(seed))
    data = f"{scene.model}.weights"
    (folder / data).unlink(missing_ok=True)
    onnx.save_model(
        model, folder / scene.model, save_as_external_data=True, location=data, size_threshold=0
    )


def content(path: Path) -> str:
    """A digest of what a model or a checkpoint holds, weights in other files included.

    Raises:
        Exception: it is not whole.
    """
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            parts = [f"{key} {arrays[key].tobytes()!r}".encode() for key in sorted(arrays)]
        return hashlib.sha256(b"\n".join(parts)).hexdigest()
    return hashlib.sha256(onnx.load(path).SerializeToString(deterministic=True)).hexdigest()


def _weights(random: np.random.Generator) -> list[TensorProto]:
    sizes = {"w1": (32, 64), "w2": (64, 64), "w3": (64, 8)}
    return [
        numpy_helper.from_array(random.normal(0, 0.1, size).astype(np.float32), name)
        for name, size in sizes.items()
    ]


def _model(
    nodes: list[onnx.NodeProto], outputs: list[str], weights: list[TensorProto]
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    shapes = {"loss": [], "w3_grad": [64, 8]}
    graph = helper.make_graph(
        nodes,
        "network",
        [value("x", TensorProto.FLOAT, [16, 32])],
        [value(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        weights,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _layers() -> list[onnx.NodeProto]:
    node = helper.make_node
    return [
        node("MatMul", ["x", "w1"], ["a"], "first"),
        node("Tanh", ["a"], ["b"], "tanh"),
        node("MatMul", ["b", "w2"], ["c"], "second"),
        node("Relu", ["c"], ["d"], "relu"),
        node("MatMul", ["d", "w3"], ["y"], "third"),
        node("Relu", ["y"], ["z"], "last"),
        node("ReduceMean", ["z"], ["loss"], "mean", keepdims=0),
    ]


def _forward(random: np.random.Generator) -> onnx.ModelProto:
    return _model(_layers(), ["loss"], _weights(random))


def _of_onnxruntime(random: np.random.Generator) -> onnx.ModelProto:
    node = helper.make_node
    backward = [
        node("ReluGrad", ["z", "z"], ["y_grad"], "relu_grad", domain="com.microsoft"),
        node("Gemm", ["d", "y_grad"], ["w3_grad"], "third_grad", transA=1),
    ]
    return _model([*_layers(), *backward], ["loss", "w3_grad"], _weights(random))


def _training(random: np.random.Generator) -> onnx.ModelProto:
    from memplan.api.grad.differentiate import grad
    from memplan.api.grad.training_graph import GradOptions

    return grad(_forward(random), GradOptions(loss="loss", optimizer="adamw")).model
