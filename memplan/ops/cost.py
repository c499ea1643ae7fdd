"""Estimated seconds per node: the roofline of a device, and its link to the host for copies.

time = max(FLOPs / compute rate, bytes moved / bandwidth) + latency per kernel (Williams et al.,
"Roofline: an insightful visual performance model", CACM 52(4), 2009). Views cost nothing: they
only rename memory. Figures are data-sheet peaks times a stated efficiency, so relative costs are
what to trust; measured costs replace them (``--costs``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Node, Tensor
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


def is_contraction(op: str) -> bool:
    """Whether an operator multiplies matrices or convolves: more arithmetic than memory traffic."""
    return op in _CONTRACTIONS


def flops(graph: Graph, node: Node) -> float:
    """Floating-point operations of one execution; elementwise operators count one per element."""
    inputs = [graph.tensors[t] if t != ABSENT else None for t in node.inputs]
    outputs = [graph.tensors[t] for t in node.writes]
    if not outputs:
        return 0.0
    elements = float(math.prod(outputs[0].shape))
    rule = _CONTRACTIONS.get(node.op)
    if rule is not None:
        return 2.0 * rule(node, inputs, outputs)
    read = max((math.prod(t.shape) for t in inputs if t is not None), default=0)
    return max(elements, float(read))


def _matmul(node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> float:
    """Multiply-adds: output elements × inner dimension. Also FusedMatMul, Gemm."""
    first = inputs[0]
    assert first is not None
    transposed = bool(node.attributes.get("transA", 0))
    inner = first.shape[-2 if transposed and len(first.shape) > 1 else -1] if first.shape else 1
    return float(math.prod(outputs[0].shape)) * inner


def _conv(node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> float:
    """Multiply-adds: output elements × weights per output channel."""
    weight = inputs[1]
    assert weight is not None
    return float(math.prod(outputs[0].shape)) * math.prod(weight.shape[1:])


def _conv_transpose(
    node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> float:
    """Multiply-adds: input elements × weights per input channel."""
    first, weight = inputs[0], inputs[1]
    assert first is not None
    assert weight is not None
    return float(math.prod(first.shape)) * math.prod(weight.shape[1:])


def _recurrent(node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> float:
    """Multiply-adds: time × batch × the elements of input and recurrence weights."""
    first = inputs[0]
    assert first is not None
    weights = sum(math.prod(t.shape) for t in inputs[1:3] if t is not None)
    return float(math.prod(first.shape[:2])) * weights


def _einsum(node: Node, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> float:
    """Multiply-adds: the product of the sizes of all labels (no smarter contraction order)."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.split("->")[0].split(","), inputs, strict=False):
        if tensor is not None and "." not in labels:
            sizes.update(zip(labels, tensor.shape, strict=False))
    return float(math.prod(sizes.values())) if sizes else float(math.prod(outputs[0].shape))


_CONTRACTIONS = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "FusedMatMul": _matmul,
    "FusedGemm": _matmul,
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Einsum": _einsum,
}
