"""Damaged and odd models through five commands; ``rewrite`` also has sound training graphs."""

import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from edits import IMPOSSIBLE, edited
from ended import Ended, called, forked_child
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from steps import NETS, parsed, training_graph, training_step

from helpers.mutate import change_field, scrambled
from memplan.api.check.checking import CheckRequest, run_update
from memplan.errors import EXIT_INFEASIBLE, EXIT_MODEL, EXIT_OK
from memplan.processes import child

COMMANDS = ("analyze", "rewrite", "grad", "validate", "check")
_STRATEGIES = ("auto", "greedy", "none", "segments", "mirror", "speed", "memory")
_LOCKED = "step"  # the seed of which there is a lock
_TEXTS = Path(__file__).with_name("seeds.txt")
# Where the runtime is asked, in a process of its own, which takes ten times as long as the rest:
_SHARE_OF_PLAIN = 0.02  # sessions with default options
_SHARE_OF_FUSIONS = 0.2  # rewrites with ONNX Runtime's optimizer
_SHARE_OF_STEPS = 0.7  # training graphs: of others nothing can be recomputed
_SHARE_OF_SOUND = 0.2  # rewrites of graphs without damage, which are written, and written again
_BUDGETS = (97, 93, 89, 85, 80, 75, 70, 65, 55, 45)  # of the peak before, in percent
_CHECKS = (("check",), ("check",), ("check", "--update"), ("check", "--format", "json"))


def examined(command: str, seed: int, number: int) -> Ended:
    """Calls of a command on a file, one after the other, until one does not end with exit code 0;
    a sound one may have no plan for a budget, and nothing else may go wrong."""
    child._run = forked_child
    r = random.Random(f"{seed}/{command}/{number}")
    sound = command == "rewrite" and r.random() < _SHARE_OF_SOUND
    files, calls = _sound(r) if sound else _mutant(command, r)
    for name, data in files.items():
        Path(name).write_bytes(data)
    code, place, message = 0, "", ""
    for arguments in calls:
        code, place, message = called(arguments)
        if code and not (sound and code == EXIT_INFEASIBLE):
            break
    if sound and code not in (EXIT_OK, EXIT_INFEASIBLE, EXIT_MODEL):
        place = place or f"exit {code}"
    text = "".join(" ".join(call) + "\n" for call in calls)
    files = {**files, "calls.txt": text.encode()}
    return Ended({f"exit {code}": 1}, place, message, files)


def _sound(r: random.Random) -> tuple[dict[str, bytes], Sequence[Sequence[str]]]:
    """A training graph that is rewritten to ever less, and what was written last once more."""
    data = training_graph(r)[1].SerializeToString()
    session = r.choice(("tuned", "tuned", "tuned", "default"))
    budgets = sorted(r.sample(_BUDGETS, 3), reverse=True)
    calls = []
    for model, budget in (*(("model.onnx", budget) for budget in budgets), ("new.onnx", 90)):
        options = ["--budget", f"{budget}%", "--session", session, "--time-limit", "0.3"]
        options += ["--strategy", r.choice(("greedy", "greedy", "auto", "search{iterations=6}"))]
        options += ["--passes", r.choice(("all", "none")), "--force"]
        # Mostly none: the runtime is asked for fusions in a process of its own.
        fused = session == "default" or r.random() < _SHARE_OF_FUSIONS
        options += ["--optimize", "extended" if fused else "none"]
        output = "again.onnx" if model == "new.onnx" else "new.onnx"
        calls.append(("rewrite", model, *options, "-o", output))
    return {"model.onnx": data, "new.onnx": data}, calls


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
        options = ["--budget", r.choice(("99%", "95%", "90%", "80%", "min", "min"))]
        options += ["--strategy", r.choice(_STRATEGIES)]
        options += ["--optimize", "extended" if r.random() < _SHARE_OF_FUSIONS else "none"]
        return (("rewrite", "model.onnx", "--dry-run", "--time-limit", "0.1", *options, *bound),)
    if command == "validate":
        options = ["--budget", "100%", "--strategy", "greedy", "-o", "new.onnx", "--force"]
        runs = ["--runs", "1", "--time-limit", "10"]  # a Loop may never end
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


# --- What is damaged, and how ---------------------------------------------------------------------


@cache
def seeds() -> dict[str, bytes]:
    """Small models that have a little of everything, and training graphs."""
    texts = _TEXTS.read_text(encoding="utf-8").split("\n\n")
    models = {model.graph.name: model for model in map(parsed, texts)}
    r = random.Random(0)
    models |= {f"{name} step": training_step(text, r) for name, text in NETS.items()}
    return {name: model.SerializeToString() for name, model in models.items()}


@cache
def _lock(data: bytes) -> str:
    """The lock of a model, as ``check --update`` writes it."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        model, lock = Path(folder) / "model.onnx", Path(folder) / "memplan.lock"
        model.write_bytes(data)
        run_update(CheckRequest(lock, (model,)))
        return lock.read_text()


def mutated(data: bytes, r: random.Random, share_of_bytes: float = 0.1) -> bytes:
    """A model with one to four changes: of any field, or such as most models survive, which reach
    what lies behind the first checks; sometimes of its bytes."""
    if r.random() < share_of_bytes:
        return scrambled(data, r)
    model = onnx.ModelProto.FromString(data)
    gentle = r.random() < _SHARE_OF_GENTLE
    for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
        edit = r.choice(_GENTLE) if gentle or r.random() < 0.2 else change_field
        with suppress(*IMPOSSIBLE):
            edit(model, r)
    return model.SerializeToString()


def _edited(model: onnx.ModelProto, r: random.Random) -> None:
    edited(model, {}, r)


def _nest(model: onnx.ModelProto, r: random.Random) -> None:
    """A node put into an If."""
    k = r.randrange(len(model.graph.node))
    node = onnx.NodeProto.FromString(model.graph.node[k].SerializeToString())
    outputs = [name for name in node.output if name]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    body = helper.make_graph([node], "body", [], values)
    flag = f"flag{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), flag))
    nested = helper.make_node("If", [flag], outputs, then_branch=body, else_branch=body)
    model.graph.node[k].CopyFrom(nested)


def _forget(model: onnx.ModelProto, r: random.Random) -> None:
    """No shapes but those of the inputs, and nodes without names, or all with one."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    name = r.choice(("", "same"))
    for node in model.graph.node:
        node.name = name


def _shrink(model: onnx.ModelProto, r: random.Random) -> None:
    """Another size or name of the first axis of an input, as an edit of the batch is."""
    dim = r.choice(model.graph.input).type.tensor_type.shape.dim[0]
    if r.random() < 0.5:
        dim.dim_value = r.choice((1, 2, 3, 4, 16))
    else:
        dim.dim_param = r.choice(("N", "batch", "T"))


_GENTLE = (_edited, _edited, _edited, _forget, _shrink, _nest)
_SHARE_OF_GENTLE = 0.4
_VALUES = ("-1", "0", "9" * 4000, "1e400", "nan", "true", '""', "[]", "{}", "[1]", "{a = 1}")
_VALUES += ('"\\u001b[31m"', '"1%"', "0x7fffffffffffffffffff", "[" * 3000 + "]" * 3000)
_LINES = ("<<<<<<< HEAD", "[[models]]", "[models.x.y.z]", '"""', "\0", "# " + "x" * 10_000)
_LINES += ("a." * 30_000 + "b = 1", "[" + "a." * 20_000 + "b]")


def mutated_text(text: str, r: random.Random) -> str:
    """A lock with one to three edits."""
    lines = text.split("\n")
    for _ in range(r.choice((1, 1, 2, 3))):
        k, how = r.randrange(len(lines)), r.randrange(4)
        if how <= 1 and "=" in lines[k]:
            lines[k] = lines[k].split("=")[0] + "= " + r.choice(_VALUES)
        elif how == 2:
            del lines[k]
        else:
            lines.insert(k, r.choice(_LINES))
        lines = lines or [""]
    return "\n".join(lines)
