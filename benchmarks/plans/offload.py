"""What a budget costs by recomputation alone, and with tensors offloaded to the host.

Simulated, on the CUDA rules, behind the free passes; nothing runs, and no GPU figure is in the
record. Seconds are estimates: kernels by the roofline of an H200, copies by the bandwidth of a link
that is assumed (``LINKS``), both directions charged whenever a tensor is read back and nothing
beside them. So the extra time with offload is an upper bound for that link. Every file is written,
simulated anew and proved equivalent as ``memplan rewrite`` does it.

    python -m benchmarks.plans.offload gpt2_small_bs8_seq1024 resnet50_bs32_224 --budgets 40% 25% \\
        --json benchmarks/results/offload.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.models import SHARED
from benchmarks.record import write_record

# Device profiles by their links to the host.
LINKS = {"none": "h200", "PCIe 5.0 x16": "h200", "NVLink-C2C": "gh200"}
ROUNDS = 8  # of the searches: the record does not depend on the machine


@dataclass(frozen=True, slots=True)
class Row:
    """A graph under a budget with one link to the host (``none``: recomputation alone).

    ``extra_percent``: more time, estimated; None where no plan was found, and then ``why``.
    ``bound_percent``: no plan takes less.
    """

    graph: str
    budget: str
    budget_bytes: int
    link: str
    peak_bytes: int | None
    extra_percent: float | None
    bound_percent: float | None
    recomputed_nodes: int
    offloaded_tensors: int
    to_host_bytes: int
    to_device_bytes: int
    host_bytes: int
    why: str = ""


def measure(path: Path, budget: str, link: str) -> Row:
    """Plan one case."""
    from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
    from memplan.errors import InfeasibleError
    from memplan.units import parse_size

    options = RewriteOptions(
        parse_size(budget),
        provider="cuda",
        optimize="none",
        device=LINKS[link],
        effort=ROUNDS,
        offload=link != "none",
    )
    name = path.stem.removesuffix("_train")
    try:
        result = rewrite(path, options, dry_run=True)
    except InfeasibleError as error:
        return Row(name, budget, 0, link, None, None, None, 0, 0, 0, 0, 0, error.message)
    plan, offload = result.plan, result.offload
    return Row(
        graph=name,
        budget=budget,
        budget_bytes=result.budget_bytes,
        link=link,
        peak_bytes=result.timeline.peak_with_workspace_bytes,
        extra_percent=round(100 * plan.extra_cost_fraction, 3),
        bound_percent=round(100 * plan.bound_fraction, 3),
        recomputed_nodes=plan.clones,
        offloaded_tensors=len(offload.tensors) if offload else 0,
        to_host_bytes=offload.out_bytes if offload else 0,
        to_device_bytes=offload.back_bytes if offload else 0,
        host_bytes=offload.host_bytes if offload else 0,
    )


def show(row: Row) -> None:
    """One line on standard output."""
    extra = "no plan" if row.extra_percent is None else f"+{row.extra_percent:.2f}%"
    print(
        f"{row.graph:28} {row.budget:>5} {row.link:14} {extra:>10}  "
        f"{row.recomputed_nodes:5} recomputed {row.offloaded_tensors:4} offloaded  {row.why}",
        flush=True,
    )


def main(arguments: Sequence[str]) -> int:
    """Plan every graph under every budget with every link; with ``--json`` written after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "graphs", nargs="+", help="names in full_scale/ of MEMPLAN_SHARED, or files"
    )
    parser.add_argument("--budgets", nargs="+", default=["40%"])
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=list(LINKS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for graph in options.graphs:
        path = Path(graph) if graph.endswith(".onnx") else SHARED / "full_scale" / f"{graph}.onnx"
        for budget in options.budgets:
            for link in options.links:
                rows.append(measure(path, budget, link))
                show(rows[-1])
                if options.json:
                    command = "python -m benchmarks.plans.offload " + " ".join(arguments)
                    write_record(options.json, command, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
