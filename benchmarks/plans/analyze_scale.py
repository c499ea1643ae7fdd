"""How ``analyze`` grows: generated training graphs of any number of nodes.

A chain of square linear layers with Tanh: forward, loss, backward, and the update of every weight
with momentum, so that there are as many graph outputs, parameters and modules as layers. Time is
CPU time, best of some runs; each graph is analyzed in a process of its own, as the largest one
decides the memory of a process. Files may be measured beside them. The C++ of ONNX runs in a child
process (:mod:`memplan.proto.native`), which CPU time leaves out and elapsed time has.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper

CHAIN = "chain"
_WIDTH = 64
_PER_LAYER = 11
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True)
class Cost:
    """One graph: CPU seconds to import onnx, to parse the file and to analyze it (the JSON
    included), how long the latter took by the clock, and the most memory that the process had.
    ``graph`` is ``chain``, or the name of a file."""

    graph: str
    nodes: int
    import_seconds: float
    parse_seconds: float
    analyze_seconds: float
    elapsed_seconds: float
    resident_set_bytes: int

    @property
    def ratio(self) -> float:
        """Analysis against what every program that reads the file must spend."""
        return self.analyze_seconds / (self.import_seconds + self.parse_seconds)


def chain(nodes: int) -> onnx.ModelProto:
    """A training graph of about so many nodes."""
    layers = max(1, (nodes - 2) // _PER_LAYER)
    square = [_WIDTH, _WIDTH]
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


def measure(path: Path, runs: int = 5) -> Cost:
    """The cost of a file, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plans.analyze_scale", str(path), str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def slope(found: Sequence[Cost]) -> float:
    """By which power of the nodes the CPU time of chains grows: least squares through the
    logarithms."""
    points = [(math.log(c.nodes), math.log(c.analyze_seconds)) for c in found if c.graph == CHAIN]
    across = sum(x for x, _ in points) / len(points)
    up = sum(y for _, y in points) / len(points)
    spread = sum((x - across) ** 2 for x, _ in points)
    return sum((x - across) * (y - up) for x, y in points) / spread


def measure_graph(graph: str) -> Cost:
    """The cost of a chain of a number of nodes, or of a file."""
    if not graph.isdecimal():
        return measure(Path(graph))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{CHAIN}.onnx"
        onnx.save(chain(int(graph)), path)
        return measure(path)


def _measured(path: Path, runs: int, import_seconds: float) -> Cost:
    from memplan.api.analysis import analyze

    parsing, analyzing, elapsed, count = [], [], [], 0
    for _ in range(runs):
        started = time.process_time()
        count = len(onnx.load(path, load_external_data=False).graph.node)
        parsed, clock = time.process_time(), time.perf_counter()
        json.dumps(analyze(path).as_json())
        parsing.append(parsed - started)
        analyzing.append(time.process_time() - parsed)
        elapsed.append(time.perf_counter() - clock)
    best = (min(parsing), min(analyzing), min(elapsed))
    return Cost(path.stem, count, import_seconds, *best, _most_memory())


def _most_memory() -> int:
    """The most bytes that this process had; ``getrusage`` counts those of its parent in (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    imported = time.process_time()  # of a process that has imported onnx and little else
    print(json.dumps(asdict(_measured(Path(sys.argv[1]), int(sys.argv[2]), imported))))
