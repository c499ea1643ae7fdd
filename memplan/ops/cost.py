"""Estimated seconds per node: the roofline of a device, and its link to the host for copies.

time = max(FLOPs / compute rate, bytes moved / bandwidth) + latency per kernel (Williams et al.,
"Roofline: an insightful visual performance model", CACM 52(4), 2009). Views cost nothing: they
only rename memory. A product on the CPU first copies its right factor into panels, which nothing
hides (:func:`packed_bytes`). Figures are data-sheet peaks times a stated efficiency, so relative
costs are what to trust; measured costs replace them (``--costs``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import PRODUCTS, operator
from memplan.ops.instance import MISFITS, in_graph
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import semantics

_PCIE_4 = "PCIe 4.0 x16: 31.5 GB/s each way (PCI-SIG, 16 GT/s, 128b/130b); about 85% of that"
_PCIE_5 = "PCIe 5.0 x16: 63 GB/s each way (PCI-SIG, 32 GT/s, 128b/130b); about 85% of that"


@dataclass(frozen=True, slots=True)
class Device:
    """A roofline: FLOP/s in float32, bytes/s of memory, seconds per kernel launch.

    ``host_bytes_per_second``: of the link to the host's memory, in each direction; ``host_source``:
    where that figure is from. ``packs``: products begin with a copy (:func:`packed_bytes`).
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    kernel_seconds: float
    source: str
    host_bytes_per_second: float = 26.8e9
    host_source: str = _PCIE_4
    packs: bool = False


DEVICES = {
    "h200": Device(
        "h200",
        60e12,
        4.0e12,
        2e-6,
        "NVIDIA H200 SXM data sheet (2024): 67 TFLOP/s float32, 4.8 TB/s; about 85-90% of both",
        53.6e9,
        _PCIE_5,
    ),
    "gh200": Device(
        "gh200",
        60e12,
        4.0e12,
        2e-6,
        "NVIDIA GH200 data sheet (2024): 67 TFLOP/s float32, 4.9 TB/s; about 80-90% of both",
        382e9,
        "NVLink-C2C: 450 GB/s each way (NVIDIA GH200 data sheet, 2024); about 85% of that",
    ),
    "h100": Device(
        "h100",
        60e12,
        2.8e12,
        2e-6,
        "NVIDIA H100 SXM data sheet (2023): 67 TFLOP/s float32, 3.35 TB/s; about 85-90% of both",
        53.6e9,
        _PCIE_5,
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
        packs=True,
    ),
}


def device_for(provider: str) -> Device:
    """The profile that a provider gets unless another is named."""
    return DEVICES["cpu" if provider == "cpu" else "h200"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a node asks of a device: kernels to launch (one a node at least), bytes that they read
    and write, and estimated seconds."""

    launches: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0


def node_costs(graph: Graph, device: Device, provider: str) -> list[float]:
    """Estimated seconds of every node, by node id. Loops: their bodies, as often as they run; of
    an ``If`` the longer branch."""
    return [work.seconds for work in node_work(graph, device, provider)]


def node_work(graph: Graph, device: Device, provider: str) -> list[Work]:
    """The work of every node, by node id; bodies as in :func:`node_costs`."""
    rules = semantics(provider)
    found = []
    for node in graph.nodes:
        is_view = all(rules.alias_input(node.key, k) is not None for k in range(len(node.outputs)))
        if is_view and not any(graph.tensors[t].is_output for t in node.writes):
            found.append(Work())
            continue
        moved = sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
        if node.op in COPY_OPS:
            found.append(Work(1, moved, copy_seconds(graph, node, device)))
            continue
        if node.id in graph.bodies:
            inside = _inside(graph, node, device, provider)
            found.append(replace(inside, seconds=inside.seconds + device.kernel_seconds))
            continue
        seconds = max(flops(graph, node) / device.flops_per_second, moved / device.bytes_per_second)
        if device.packs:
            seconds += 2 * packed_bytes(graph, node) / device.bytes_per_second
        found.append(Work(1, moved, seconds + device.kernel_seconds))
    return found


def packed_bytes(graph: Graph, node: Node) -> int:
    """Bytes of a product's right factor, which ONNX Runtime's CPU kernels read and write once more
    in panels (``MlasGemmPackB``, Goto and van de Geijn, "Anatomy of high-performance matrix
    multiplication", ACM TOMS 34(3), 2008). Weights of a training step change, and tuned sessions
    pack none ahead.

    The fewer rows a product has, the more this counts: of 256, 512 and 2,048 rows times
    320 x 1,280, two cores made 188, 196 and 206 GFLOP/s.
    """
    if node.key not in PRODUCTS or len(node.inputs) < 2 or node.inputs[1] == ABSENT:
        return 0
    return graph.tensors[node.inputs[1]].nbytes


def copy_seconds(graph: Graph, node: Node, device: Device) -> float:
    """Estimated seconds of a copy between device and host that nothing overlaps."""
    moved = max((graph.tensors[t].nbytes for t in (*node.reads, *node.writes)), default=0)
    return moved / device.host_bytes_per_second + device.kernel_seconds


def total_work(works: Iterable[Work], times: int = 1) -> Work:
    """The sum, so many times."""
    launches = moved = 0
    seconds = 0.0
    for work in works:
        launches += work.launches
        moved += work.moved_bytes
        seconds += work.seconds
    return Work(times * launches, times * moved, times * seconds)


def _inside(graph: Graph, node: Node, device: Device, provider: str) -> Work:
    """The work of a control-flow node's bodies, or of its longest; one step where their number is
    unknown."""
    found = []
    for body in graph.bodies[node.id]:
        if body.graph is None:
            moved = sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
            found.append(Work(1, moved, moved / device.bytes_per_second))
        else:
            works = node_work(body.graph, device, provider)
            found.append(total_work(works, 1 if body.trips is None else body.trips))
    return max(found, key=lambda work: work.seconds, default=Work())


def flops(graph: Graph, node: Node) -> float:
    """Floating-point operations of one execution; elementwise operators count one per element."""
    if not node.writes:
        return 0.0
    work = operator(node.key).work
    if work is not None:
        with suppress(*MISFITS):
            return 2.0 * work(in_graph(graph, node))
    made = float(math.prod(graph.tensors[node.writes[0]].shape))
    inputs = (graph.tensors[t] for t in node.inputs if t != ABSENT)
    return max(made, float(max((math.prod(t.shape) for t in inputs), default=0)))
