"""Pairs of loops in a ready training graph: what ``rewrite`` has them store, and what that costs.

Training graphs as ``memplan.gradients`` makes them with nothing made again: an ONNX LSTM, and a
cell of hand in a ``Scan``. Each is rewritten with everything made again and for budgets, where the
planner decides. ``memplan validate`` gives the measured peaks (against the same graph with the same
fusions) and the comparison of all outputs.

    python -m benchmarks.plans.recurrent_pairs --json benchmarks/results/recurrent_pairs.json
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

import memplan
from benchmarks.record import write_record
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.api.validate.validating import ValidateOptions, validate
from memplan.errors import InfeasibleError
from memplan.units import parse_size

_GATES = {"LSTM": 4, "GRU": 3}
WISHES = (("100%", "all"), ("85%", "auto"), ("75%", "auto"), ("65%", "auto"))

# Gates of a product inside the loop, one state, and an activation of four operators.
CELL = """
    <ir_version: 10, opset_import: ["" : 20]>
    cell (float[T,N,I] x, float[N,H] h0, float[I,G] w, float[H,G] r, float[T,N,H] target)
        => (float loss)
    {
        [loop] last, all = Scan<num_scan_inputs = 1, body = step
            (float[N,H] h, float[N,I] xt) => (float[N,H] next, float[N,H] out)
            {
                [in] a = MatMul(xt, w)
                [rec] b = MatMul(h, r)
                [sum] s = Add(a, b)
                [split] i, g = Split<axis = -1, num_outputs = 2>(s)
                [gate] u = Sigmoid(i)
                [exp] e = Exp(g)
                [tanh] t = Tanh(e)
                [mix] m = Mul(t, e)
                [change] d = Sub(m, h)
                [part] p = Mul(u, d)
                [next] next = Add(h, p)
                [out] out = Identity(next)
            }>(h0, x)
        [product] product = Mul(all, target)
        [loss] loss = ReduceSum<keepdims = 0>(product)
    }"""


@dataclass(frozen=True, slots=True)
class Case:
    """A layer; ``width`` are its inputs per step."""

    op: str
    steps: int
    batch: int
    width: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Row:
    """One rewriting of one graph. Stored bytes are what the backward loop reads of what the
    forward loop stacks."""

    model: str
    steps: int
    batch: int
    hidden: int
    budget: str
    scan_recompute: str
    stored_bytes_per_step_before: int
    stored_bytes_per_step_after: int
    operators_again_per_step: int
    estimated_extra_percent: float
    measured_peak_bytes_before: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    equality: str
    proved: bool


def forward_graph(case: Case) -> onnx.ModelProto:
    """The layer, and the sum of its outputs times a target as the loss."""
    random = np.random.default_rng(0)
    rows = _GATES[case.op] * case.hidden

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        array = random.standard_normal(shape) / np.sqrt(shape[-1])
        return numpy_helper.from_array(array.astype(np.float32), name)

    nodes = [
        helper.make_node(case.op, ["x", "W", "R", "B"], ["y"], name="rnn", hidden_size=case.hidden),
        helper.make_node("Mul", ["y", "target"], ["product"], name="product"),
        helper.make_node("ReduceSum", ["product"], ["loss"], name="sum", keepdims=0),
    ]
    inputs = {
        "x": (case.steps, case.batch, case.width),
        "target": (case.steps, 1, case.batch, case.hidden),
    }
    graph = helper.make_graph(
        nodes,
        case.op,
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, ())],
        [
            weight("W", 1, rows, case.width),
            weight("R", 1, rows, case.hidden),
            weight("B", 1, 2 * rows),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def training_graphs(case: Case) -> dict[str, onnx.ModelProto]:
    """The graphs by name."""
    sizes = {
        "T": case.steps,
        "N": case.batch,
        "I": case.width,
        "H": case.hidden,
        "G": 2 * case.hidden,
    }
    text = CELL
    for name, size in sizes.items():
        text = text.replace(f"[{name},", f"[{size},").replace(f",{name}]", f",{size}]")
        text = text.replace(f",{name},", f",{size},")
    lstm = memplan.gradients(forward_graph(case), "loss", ["W", "R", "B"])
    cell = memplan.gradients(onnx.parser.parse_model(text), "loss", ["w", "r"])
    return {"LSTM": lstm, "Scan cell": cell}


def measure(name: str, path: Path, case: Case) -> list[Row]:
    """All rewritings of one graph for which there is a plan."""
    rows = []
    for budget, wish in WISHES:
        target = path.with_suffix(".less.onnx")
        options = RewriteOptions(parse_size(budget), scan_recompute=wish)
        try:
            result = rewrite(path, options, target, force=True)
        except InfeasibleError as error:
            print(f"{name} within {budget}: {error.message}", flush=True)
            continue
        found = validate(path, target, ValidateOptions(provider="cpu", runs=1))
        pair = result.pairs[0]
        rows.append(
            Row(
                name,
                case.steps,
                case.batch,
                case.hidden,
                budget,
                wish,
                pair.before_bytes,
                pair.after_bytes,
                len(pair.recomputed),
                100 * result.plan.extra_cost_fraction,
                found.original.measured_peak_bytes,
                result.timeline.peak_bytes,
                found.rewritten.measured_peak_bytes,
                found.equality,
                not found.findings,
            )
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    case = Case("LSTM", options.steps, options.batch, options.width, options.hidden)
    rows = []
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        for number, (name, model) in enumerate(training_graphs(case).items()):
            path = Path(folder) / f"graph{number}.onnx"
            onnx.save(model, path)
            rows += measure(name, path, case)
    if options.json is not None:
        command = shlex.join(["python", "-m", "benchmarks.plans.recurrent_pairs", *sys.argv[1:]])
        write_record(options.json, command, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
