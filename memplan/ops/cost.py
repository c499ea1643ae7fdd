"""Estimated seconds per node: the roofline of a device, and its link to the host for copies.

time = max(FLOPs / compute rate, bytes moved / bandwidth) + latency per kernel (Williams et al.,
"Roofline: an insightful visual performance model", CACM 52(4), 2009). Views cost nothing: they
only rename memory. Figures are data-sheet peaks times a stated efficiency, so relative costs are
what to trust; measured costs replace them (``--costs``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import operator
from memplan.ops.in_graph import in_graph
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import semantics

_PCIE_4 = "PCIe 4.0 x16: 31.5 GB/s each way (PCI-SIG, 16 GT/s, 128b/130b); about 85% of that"


@dataclass(frozen=True, slots=True)
class Device:
    """A roofline: FLOP/s in float32, bytes/s of memory, seconds per kernel launch.

    ``host_bytes_per_second``: of the link to the host's memory, in each direction; ``host_source``:
    where that figure is from.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    kernel_seconds: float
    source: str
    host_bytes_per_second: float = 26.8e9
    host_source: str = _PCIE_4


DEVICES = {
    "h200": Device(
        "h200",
        60e12,
        4.0e12,
        2e-6,
        "NVIDIA H200 SXM data sheet (2024): 67 TFLOP/s float32, 4.8 TB/s; about 85-90% of both",
        53.6e9,
        "PCIe 5.0 x16: 63 GB/s each way (PCI-SIG, 32 GT/s, 128b/130b); about 85% of that",
    ),
    "a100": Device(
        "a100",
        17e12,
        1.7e12,
        3e-6,
        "NVIDIA A100 80GB data sheet (2021): 19.5 TFLOP/s float32, 2.04 TB/s; about 85% of both",
    ),
    "rtx4090": Device(
        "rtx4090",
        70e12,
        0.86e12,
        3e-6,
        "NVIDIA Ada whitepaper (2022): 82.6 TFLOP/s float32, 1.01 TB/s; about 85% of both",
    ),
    "cpu": Device(
        "cpu",
        0.1e12,
        15e9,
        2e-6,
        "two AVX2 cores: 2 × 16 FMA lanes × about 3 GHz; one DDR4 channel. A stand-in, not a "
        "measurement: use --costs for a particular machine",
    ),
}


def device_for(provider: str) -> Device:
    """The profile that a provider gets unless another is named."""
    return DEVICES["cpu" if provider == "cpu" else "h200"]


def node_costs(graph: Graph, device: Device, provider: str) -> list[float]:
    """Estimated seconds of every node, by node id. Loops: their bodies, as often as they run; of
    an ``If`` the longer branch."""
    rules = semantics(provider)
    costs = []
    for node in graph.nodes:
        is_view = all(rules.alias_input(node.key, k) is not None for k in range(len(node.outputs)))
        if is_view and not any(graph.tensors[t].is_output for t in node.writes):
            costs.append(0.0)
            continue
        if node.op in COPY_OPS:
            costs.append(copy_seconds(graph, node, device))
            continue
        if node.id in graph.bodies:
            costs.append(_inside(graph, node, device, provider) + device.kernel_seconds)
            continue
        moved = sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
        seconds = max(flops(graph, node) / device.flops_per_second, moved / device.bytes_per_second)
        costs.append(seconds + device.kernel_seconds)
    return costs


def copy_seconds(graph: Graph, node: Node, device: Device) -> float:
    """Estimated seconds of a copy between device and host that nothing overlaps."""
    moved = max((graph.tensors[t].nbytes for t in (*node.reads, *node.writes)), default=0)
    return moved / device.host_bytes_per_second + device.kernel_seconds


def _inside(graph: Graph, node: Node, device: Device, provider: str) -> float:
    """Estimated seconds of a control-flow node's bodies; one step where their number is unknown."""
    found = []
    for body in graph.bodies[node.id]:
        once = 0.0
        if body.graph is None:
            moved = sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
            once = moved / device.bytes_per_second
        else:
            once = sum(node_costs(body.graph, device, provider))
        found.append(once * (1 if body.trips is None or body.graph is None else body.trips))
    return max(found, default=0.0)


def flops(graph: Graph, node: Node) -> float:
    """Floating-point operations of one execution; elementwise operators count one per element."""
    if not node.writes:
        return 0.0
    work = operator(node.key).work
    if work is not None:
        return 2.0 * work(in_graph(graph, node))
    made = float(math.prod(graph.tensors[node.writes[0]].shape))
    inputs = (graph.tensors[t] for t in node.inputs if t != ABSENT)
    return max(made, float(max((math.prod(t.shape) for t in inputs), default=0)))
