"""How planning grows: generated transformer training graphs of any number of layers.

Nodes, sizes and durations are those of a decoder of width 1024 with 16 heads, batch 8 of 512
tokens, in single precision: forward, loss and backward, weight gradients consumed at once.
Durations are a roofline of 15 TFLOP/s and 700 GB/s with 3 us per node. 300 layers are 16,210
nodes.

    python -m benchmarks.plans.scale --layers 24 --layers 300 --ratio 0.5 --seconds 5 --json FILE

How ``analyze`` grows (:mod:`benchmarks.plans.analyze_scale`):

    python -m benchmarks.plans.scale --analyze 1000 --analyze 100000 --analyze MODEL --json FILE
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.plans.analyze_scale import measure_graph, slope
from benchmarks.plans.instances import Instance, verify_instance
from benchmarks.plans.public_graphs import to_problem
from benchmarks.record import write_record

_BATCH, _TOKENS, _WIDTH, _HEADS, _CLASSES = 8, 512, 1024, 16, 1024
_FLOPS, _BYTES, _LATENCY = 15e12, 700e9, 3e-6
_ROWS = _BATCH * _TOKENS

Gradients = list[tuple[int, int]]
"""(forward node, node that makes the gradient of its output)."""
Backward = Callable[[int], Gradients]
"""From the node that makes the gradient of the output."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row. ``first_seconds``: until the first plan that fits."""

    layers: int
    nodes: int
    ratio: float
    feasible: bool
    extra_cost_percent: float
    first_seconds: float | None
    planning_seconds: float
    recomputed_nodes: int
    resident_set_bytes: int


@dataclass(slots=True)
class Tape:
    """A graph under construction: nodes, and what each forward node does in backward."""

    elements: list[int] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[tuple[int, Backward]] = field(default_factory=list)

    def node(self, elements: int, flops: float, reads: Sequence[int]) -> int:
        """Append a node that makes ``elements`` numbers of four bytes."""
        moved = 4 * (elements + sum(self.elements[u] for u in reads))
        seconds = _LATENCY + flops / _FLOPS + moved / _BYTES
        self.elements.append(elements)
        self.nanoseconds.append(round(1e9 * seconds))
        self.reads.append(tuple(sorted(set(reads))))
        return len(self.elements) - 1

    def forward(self, elements: int, flops: float, reads: Sequence[int], backward: Backward) -> int:
        """Append a forward node."""
        made = self.node(elements, flops, reads)
        self.steps.append((made, backward))
        return made

    def linear(self, x: int, inner: int, outer: int) -> int:
        """``x`` (rows, inner) times a weight matrix."""
        flops = 2.0 * _ROWS * inner * outer

        def backward(gradient: int) -> Gradients:
            self.node(inner * outer, flops, [x, gradient])
            return [(x, self.node(_ROWS * inner, flops, [gradient]))]

        return self.forward(_ROWS * outer, flops, [x], backward)

    def product(self, a: int, b: int, elements: int) -> int:
        """The product of two activations."""
        flops = 2.0 * _ROWS * _TOKENS * _WIDTH

        def backward(gradient: int) -> Gradients:
            return [
                (a, self.node(self.elements[a], flops, [gradient, b])),
                (b, self.node(self.elements[b], flops, [gradient, a])),
            ]

        return self.forward(elements, flops, [a, b], backward)

    def map(self, x: int, flops: int, needs: str = "") -> int:
        """An elementwise node whose gradient ``needs`` its input (x), its output (y) or neither."""
        size = self.elements[x]

        def backward(gradient: int) -> Gradients:
            needed = {"x": [x], "y": [made], "": []}[needs]
            return [(x, self.node(size, flops * size, [gradient, *needed]))]

        made = self.forward(size, flops * size, [x], backward)
        return made

    def add(self, a: int, b: int) -> int:
        """A residual sum; the gradient passes through."""
        size = self.elements[a]
        return self.forward(size, size, [a, b], lambda gradient: [(a, gradient), (b, gradient)])

    def finish(self, loss: int) -> None:
        """Append the backward part."""
        found: dict[int, list[int]] = {loss: [self.node(1, 0, [loss])]}
        for made, backward in reversed(self.steps):
            if made not in found:
                continue
            first, *others = found.pop(made)
            for other in others:
                first = self.node(self.elements[first], self.elements[first], [first, other])
            for source, gradient in backward(first):
                found.setdefault(source, []).append(gradient)


def transformer(layers: int) -> Instance:
    """The training graph of a decoder with ``layers`` layers."""
    tape = Tape()
    x = tape.node(_ROWS * _WIDTH, 0, [])
    for _ in range(layers):
        x = _feed_forward(tape, _attention(tape, x))
    x = tape.linear(tape.map(x, 8, "x"), _WIDTH, _CLASSES)
    scores = tape.map(x, 6, "y")
    size = tape.elements[scores]
    loss = tape.forward(
        1,
        size,
        [scores],
        lambda gradient: [(scores, tape.node(size, size, [gradient, scores]))],
    )
    tape.finish(loss)
    count = len(tape.elements)
    return Instance(
        f"transformer{layers}",
        tuple(range(count)),
        tuple(tape.nanoseconds),
        tuple(4 * elements for elements in tape.elements),
        tuple(tape.reads),
    )


def _attention(tape: Tape, x: int) -> int:
    normed = tape.map(x, 8, "x")
    query, key, value = (
        tape.map(made, 1) for made in [tape.linear(normed, _WIDTH, _WIDTH) for _ in range(3)]
    )
    scores = tape.product(query, key, _BATCH * _HEADS * _TOKENS * _TOKENS)
    weights = tape.map(tape.map(tape.map(scores, 1), 1), 6, "y")
    mixed = tape.product(weights, value, _ROWS * _WIDTH)
    return tape.add(x, tape.map(tape.linear(mixed, _WIDTH, _WIDTH), 1))


def _feed_forward(tape: Tape, x: int) -> int:
    hidden = tape.map(tape.linear(tape.map(x, 8, "x"), _WIDTH, 4 * _WIDTH), 1)
    out = tape.linear(tape.map(hidden, 12, "x"), 4 * _WIDTH, _WIDTH)
    return tape.add(x, tape.map(out, 1))


def run_point(instance: Instance, layers: int, ratio: float, seconds: float) -> Result:
    """Plan one graph at one ratio; the plan is verified independently."""
    from memplan.deadline import Deadline
    from memplan.solver.search.warm_up import warm_up
    from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio

    warm_up()
    problem = to_problem(instance, ratio, fixed=False)
    first: list[float] = []
    started = time.perf_counter()

    def tell(peak: int, extra: float) -> None:
        del peak, extra
        first.append(time.perf_counter() - started)

    decision, _ = solve_portfolio(problem, Deadline(seconds), PortfolioOptions(certify=False), tell)
    spent = time.perf_counter() - started
    sequence = [int(node) for node in decision.sequence]
    if decision.feasible:
        verify_instance(instance, ratio, sequence)
    return Result(
        layers,
        len(instance.ids),
        ratio,
        decision.feasible,
        100 * decision.extra_cost / problem.base_cost,
        first[0] if first else None,
        spent,
        len(sequence) - len(instance.ids),
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def _analyze(graphs: Sequence[str], target: Path) -> int:
    """Measure ``analyze`` instead of the planner: chains of so many nodes, and files."""
    found = []
    head = ("analyze s", "elapsed s", "import + parse s")
    print(f"{'nodes':>8}{head[0]:>11}{head[1]:>11}{head[2]:>18}{'ratio':>7}{'MB':>7}")
    for graph in graphs:
        cost = measure_graph(graph)
        found.append(cost)
        print(
            f"{cost.nodes:>8}{cost.analyze_seconds:>11.3f}{cost.elapsed_seconds:>11.3f}"
            f"{cost.import_seconds + cost.parse_seconds:>18.3f}{cost.ratio:>7.1f}"
            f"{cost.resident_set_bytes / 1e6:>7.0f}",
            flush=True,
        )
    rows: list[object] = [{**asdict(cost), "ratio": cost.ratio} for cost in found]
    if sum(graph.isdecimal() for graph in graphs) > 1:
        rows.append({"log_log_slope": slope(found)})
        print(f"log-log slope {slope(found):.3f}")
    command = " ".join(f"--analyze {Path(graph).name}" for graph in graphs)
    write_record(target, f"python -m benchmarks.plans.scale {command}", rows)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the points one by one; rows are written after each."""
    parser = argparse.ArgumentParser(prog="benchmarks.plans.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--layers", type=int, action="append", default=[], help="repeatable")
    parser.add_argument("--ratio", type=float, action="append", default=[], help="repeatable")
    parser.add_argument("--analyze", action="append", metavar="NODES|FILE", help="repeatable")
    parser.add_argument("--seconds", type=float, default=5.0, help="planning, per point")
    parser.add_argument("--json", type=Path, required=True, help="where the results go")
    options = parser.parse_args(argv)
    if options.analyze:
        return _analyze(options.analyze, options.json)
    if not (options.layers and options.ratio):
        parser.error("give --layers and --ratio, or --analyze")
    chosen = [f"--layers {n}" for n in options.layers] + [f"--ratio {r:g}" for r in options.ratio]
    command = f"python -m benchmarks.plans.scale {' '.join(chosen)} --seconds {options.seconds:g}"
    rows: list[object] = []
    print(
        f"{'layers':>6}{'nodes':>8}{'ratio':>7}{'extra %':>9}{'first s':>9}{'plan s':>8}{'MB':>7}"
    )
    for layers in options.layers:
        instance = transformer(layers)
        for ratio in options.ratio:
            result = run_point(instance, layers, ratio, options.seconds)
            rows.append(asdict(result))
            first = "-" if result.first_seconds is None else f"{result.first_seconds:.2f}"
            print(
                f"{layers:>6}{result.nodes:>8}{ratio:>7.2f}{result.extra_cost_percent:>9.3f}"
                f"{first:>9}{result.planning_seconds:>8.2f}{result.resident_set_bytes / 1e6:>7.0f}",
                flush=True,
            )
            write_record(options.json, command, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
