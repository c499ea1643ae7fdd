"""How ``check`` grows with the models of a repository and with their size.

    python -m benchmarks.plans.scale --check 300x500 --check 10x10000 --json FILE

As many chains of about as many nodes in one lock: ``check``, and ``check --base`` after two of them
have changed, by the installed program in a process of its own. A chain is square linear layers with
Tanh: forward, loss, backward, and the update of every weight with momentum, so that there are as
many outputs, parameters and modules as layers.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper

from benchmarks.record import Row, arguments, run

PER_LAYER = 11
"""Nodes of a chain."""
_SIDE = 64
_FLOAT = onnx.TensorProto.FLOAT


def chain(nodes: int) -> onnx.ModelProto:
    """A training graph of about so many nodes."""
    layers = max(1, (nodes - 2) // PER_LAYER)
    square = [_SIDE, _SIDE]
    made: list[onnx.NodeProto] = []

    def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        made.append(helper.make_node(op, inputs, [output], name=f"n/{output}", **attributes))
        return output

    last = "x"
    for k in range(layers):
        hidden = node("MatMul", [last, f"layers.{k}.weight"], f"h{k}")
        last = node("Tanh", [hidden], f"a{k}")
    node("ReduceMean", [last], "loss", keepdims=0)
    gradient = node("Mul", [last, "scale"], f"d{layers - 1}")
    for k in reversed(range(layers)):
        source = f"a{k - 1}" if k else "x"
        squared = node("Mul", [f"a{k}", f"a{k}"], f"s{k}")
        slope = node("Sub", ["one", squared], f"o{k}")
        inner = node("Mul", [gradient, slope], f"g{k}")
        by_weight = node("Gemm", [source, inner], f"w{k}", transA=1)
        gradient = node("Gemm", [inner, f"layers.{k}.weight"], f"d{k - 1}", transB=1)
        kept, name = f"layers.{k}.weight.momentum", f"layers.{k}.weight"
        scaled = node("Mul", [kept, "decay"], f"k{k}")
        speed = node("Add", [scaled, by_weight], f"{kept}_new")
        change = node("Mul", [speed, "lr"], f"c{k}")
        node("Sub", [name, change], f"{name}_new")
    weights = [f"layers.{k}.weight{part}" for k in range(layers) for part in ("", ".momentum")]
    squares = [helper.make_tensor_value_info(name, _FLOAT, square) for name in weights]
    results = [helper.make_tensor_value_info(f"{name}_new", _FLOAT, square) for name in weights]
    graph = helper.make_graph(
        made,
        "chain",
        [
            helper.make_tensor_value_info("x", _FLOAT, square),
            helper.make_tensor_value_info("lr", _FLOAT, []),
            *squares,
        ],
        [helper.make_tensor_value_info("loss", _FLOAT, []), *results],
        [helper.make_tensor(name, _FLOAT, [], [0.5]) for name in ("scale", "one", "decay")],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)  # exporters and memplan grad state all shapes


def checks(models: int, nodes: int) -> Iterator[Row]:
    """``check`` and ``check --base`` of a repository with so many chains and their lock."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"m{k:03}.onnx" for k in range(models)]
        for k, model in enumerate(names):
            onnx.save(chain(nodes + PER_LAYER * (k - models // 2)), folder / model)
        taken(folder, models, nodes, "check", "--update", *names)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "models"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
        yield taken(folder, models, nodes, "check")
        for model in (names[0], names[-1]):
            onnx.save(chain(2 * nodes), folder / model)
        yield taken(folder, models, nodes, "check", "--base", "HEAD")


def taken(folder: Path, models: int, nodes: int, *command: str) -> Row:
    """What a command of the installed program takes: how long, its CPU seconds, the most memory of
    its process."""
    program = shutil.which("memplan", path=str(Path(sys.executable).parent))
    words = [program] if program else [sys.executable, "-m", "memplan_cli.main"]
    begun, before, most = time.perf_counter(), os.times(), 0
    running = subprocess.Popen([*words, *command], cwd=folder, stdout=subprocess.DEVNULL)
    while running.poll() is None:
        # Not from wait4, which counts the parent's in.
        lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
        most = next((1024 * int(ln.split()[1]) for ln in lines if ln.startswith("VmHWM:")), most)
        time.sleep(0.02)
    seconds, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    shown = " ".join(command[:3])
    return {
        "command": shown,
        "models": models,
        "nodes": nodes,
        "exit_code": running.returncode,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "resident_set_bytes": most,
    }


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """What was asked for, one by one."""
    for size in options.check:
        models, _, nodes = size.partition("x")
        yield from checks(int(models), int(nodes))


if __name__ == "__main__":
    parser = arguments("plans.scale", __doc__)
    parser.add_argument("--check", action="append", default=[], metavar="MODELSxNODES")
    run(parser, rows)
