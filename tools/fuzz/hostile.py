"""Damaged and odd models through five commands: what to do with them is in :mod:`mutate`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import onnx
from ended import Ended, called
from google.protobuf.message import DecodeError
from mutate import mutated, mutated_text
from onnx import TensorProto, helper
from steps import parsed

import memplan
from memplan.api.check.checking import CheckRequest, run_update
from memplan.errors import EXIT_BUG

COMMANDS = ("analyze", "rewrite", "grad", "validate", "check")
_STRATEGIES = ("auto", "greedy", "none", "segments", "mirror", "speed", "memory")
_TRAINED = ("image", "text", "recurrent", "functions")
_LOCKED = "step"  # the seed of which there is a lock
_TEXTS = Path(__file__).with_name("seeds.txt")
# Where the runtime is asked, in a process of its own, which takes ten times as long as the rest:
_SHARE_OF_PLAIN = 0.02  # sessions with default options
_SHARE_OF_FUSIONS = 0.2  # rewrites with ONNX Runtime's optimizer
_SHARE_OF_STEPS = 0.7  # training graphs: of others nothing can be recomputed
_CHECKS = (("check",), ("check",), ("check", "--update"), ("check", "--format", "json"))


def examined(command: str, seed: int, number: int) -> Ended:
    """Calls of a command on a damaged file, one after the other, until one does not end with exit
    code 0."""
    r = random.Random(f"{seed}/{command}/{number}")
    files, calls = _mutant(command, r)
    for name, data in files.items():
        Path(name).write_bytes(data)
    code, place, message = 0, "", ""
    for arguments in calls:
        code, place, message = called(arguments)
        if code:
            break
    text = "".join(" ".join(call) + "\n" for call in calls)
    files = {**files, "calls.txt": text.encode()}
    return Ended({f"exit {code}": 1}, place if code == EXIT_BUG else "", message, files)


def _mutant(command: str, r: random.Random) -> tuple[dict[str, bytes], Sequence[Sequence[str]]]:
    models = seeds()
    if command == "check":
        lock = mutated_text(_lock(models[_LOCKED]), r).encode(errors="replace")
        return {"memplan.lock": lock, "model.onnx": models[_LOCKED]}, (r.choice(_CHECKS),)
    names = sorted(models)
    if command == "rewrite" and r.random() < _SHARE_OF_STEPS:
        names = [name for name in names if "step" in name]
    data = mutated(models[r.choice(names)], r)
    return {"model.onnx": data}, _calls(command, data, r)


def _calls(command: str, data: bytes, r: random.Random) -> tuple[tuple[str, ...], ...]:
    dims, outputs = _interface(data)
    bound = [part for name in dims for part in ("--dim", f"{name}={r.choice((2, 4, 8))}")]
    if command == "analyze":
        provider = r.choice(("cpu", "cpu", "cuda"))
        session = "default" if r.random() < _SHARE_OF_PLAIN else "tuned"
        form = r.choice(("text", "json", "html"))
        options = ["--provider", provider, "--session", session, "--format", form]
        return (("analyze", "model.onnx", *options, *bound),)
    if command == "rewrite":
        options = ["--budget", r.choice(("99%", "95%", "90%", "80%", "60%"))]
        options += ["--strategy", r.choice(_STRATEGIES)]
        options += ["--optimize", "extended" if r.random() < _SHARE_OF_FUSIONS else "none"]
        return (("rewrite", "model.onnx", "--dry-run", "--time-limit", "0.1", *options, *bound),)
    if command == "validate":
        options = ["--budget", "100%", "--strategy", "greedy", "-o", "new.onnx", "--force"]
        runs = ["--runs", "1", "--time-limit", "60"]
        return (
            ("rewrite", "model.onnx", *options, *bound),
            ("validate", "model.onnx", "new.onnx", *runs, *bound),
        )
    loss = r.choice(("mse", "mse", "cross-entropy"))
    options = ["--loss", loss, "--logits", r.choice(outputs or ["y"]), "-o", "step.onnx"]
    options += ["--wrt", "*"] if r.random() < 0.7 else []
    options += ["--optimizer", r.choice(("none", "sgd", "adamw"))]
    return (("grad", "model.onnx", "--force", *options),)


def _interface(data: bytes) -> tuple[list[str], list[str]]:
    """Symbolic dimensions of the inputs, and names of the outputs."""
    try:
        graph = onnx.ModelProto.FromString(data).graph
    except DecodeError:
        return [], []
    given = {tensor.name for tensor in graph.initializer}
    dims = {
        dim.dim_param
        for value in graph.input
        for dim in value.type.tensor_type.shape.dim
        if value.name not in given and isinstance(dim.dim_param, str) and dim.dim_param
    }
    names = [value.name for value in graph.output if isinstance(value.name, str) and value.name]
    return sorted(dims), names


# --- What is damaged ------------------------------------------------------------------------------


@cache
def seeds() -> dict[str, bytes]:
    """Small models that have a little of everything, and training graphs of some of them."""
    texts = _TEXTS.read_text(encoding="utf-8").split("\n\n")
    models = {model.graph.name: model for model in map(parsed, texts)}
    steps = {f"{name} step": _training_step(models[name]) for name in _TRAINED}
    models |= {**steps, "deep step": _training_step(parsed(_deep(8)))}
    return {name: model.SerializeToString() for name, model in models.items()}


def _training_step(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, the sum of its last output as the loss, and the gradients of its float inputs and
    weights."""
    outputs = [value.name for value in model.graph.output]
    axes = {"keepdims": 0}
    model.graph.node.append(helper.make_node("ReduceSum", outputs[-1:], ["sum_of_all"], **axes))
    model.graph.output.add(name="sum_of_all").type.tensor_type.elem_type = TensorProto.FLOAT
    constants = [tensor for tensor in model.graph.initializer if tensor.data_type == 1]
    inputs = [value for value in model.graph.input if value.type.tensor_type.elem_type == 1]
    names = [value.name for value in (*constants, *inputs)]
    return memplan.gradients(model, "sum_of_all", names)


def _deep(layers: int) -> str:
    """A chain whose activations are most of what is taken."""
    body = "\n".join(
        f"  a{k} = MatMul (h{k}, w)\n  b{k} = Tanh (a{k})\n  h{k + 1} = Mul (b{k}, b{k})"
        for k in range(layers)
    )
    return f"""
<ir_version: 10, opset_import: ["" : 18]>
deep (float[64,16] h0) => (float[64,16] h{layers})
<float[16,16] w = {{0.1}}>
{{
{body}
}}
"""


@cache
def _lock(data: bytes) -> str:
    """The lock of a model, as ``check --update`` writes it."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        model, lock = Path(folder) / "model.onnx", Path(folder) / "memplan.lock"
        model.write_bytes(data)
        run_update(CheckRequest(lock, (model,)))
        return lock.read_text()
