"""Where nodes and tensors of a session on a GPU are: fallback to the CPU, copies, host tensors.

Follows ONNX Runtime 1.31.1: ``cuda_execution_provider.cc`` (a node with a kernel is taken),
``fallback_cpu_capability.cc`` (computations on shapes stay on the CPU), ``transformer_memcpy.cc``
(one copy per tensor that both sides need). Compared
with the real provider over a stub of the CUDA runtime (tests/gpu).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import onnx

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind
from memplan.ops.kernels import COPY_OPS, Kernels, kernels_of, schema_version
from memplan.providers import PROVIDERS

_SMALL = 100  # elements of an initializer that does not keep a node on the device
_NAMED = 3  # nodes that a note names
_BFLOAT16 = onnx.TensorProto.BFLOAT16
_DEVICE_ONLY = frozenset(
    {
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.FLOAT8E4M3FN,
        onnx.TensorProto.FLOAT8E4M3FNUZ,
        onnx.TensorProto.FLOAT8E5M2,
        onnx.TensorProto.FLOAT8E5M2FNUZ,
    }
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """A node that runs on the CPU, with the bytes that it drags across.

    ``to_host_bytes`` are those of its inputs that device nodes make, ``to_device_bytes`` those of
    its outputs that device nodes read. A tensor that several nodes share counts with each.
    ``by_choice``: the GPU has a kernel, but works on tensors that are on the host anyway.
    ``bfloat16``: it works on that type, for which the CPU has next to no kernels.
    """

    name: str
    op: str
    to_host_bytes: int
    to_device_bytes: int
    by_choice: bool
    bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class Devices:
    """Where everything in a graph is on ``provider``: node and tensor ids.

    ``host_nodes`` run on the CPU, ``host_tensors`` lie there: neither counts as device memory.
    ``copies`` are the nodes that move a tensor; they stand behind the file's own nodes.
    """

    provider: str
    host_nodes: frozenset[int]
    host_tensors: frozenset[int]
    copies: tuple[int, ...]
    fallbacks: tuple[Fallback, ...]


def host_copies(graph: Graph) -> frozenset[int]:
    """Tensors that the graph's own copies make on the host (``rewrite --offload``)."""
    made = (n.writes for n in graph.nodes if n.op == "MemcpyToHost" and not n.domain)
    return frozenset(t for writes in made for t in writes)


def place(graph: Graph, provider: str) -> tuple[Graph, Devices]:
    """The graph with the copies that a session on ``provider`` inserts, and where everything is."""
    kernels = kernels_of(provider)
    capable = {
        node.id
        for node in graph.nodes
        if _has_kernel(graph, node, kernels) and not (provider == "cuda" and _left_to_the_cpu(node))
    }
    preferred = _preferred_on_cpu(graph, kernels, capable)
    on_device = capable - preferred
    return _Copier(graph, provider, on_device).run(preferred)


def _has_kernel(graph: Graph, node: Node, kernels: Kernels) -> bool:
    def types(slots: tuple[int, ...]) -> list[int | None]:
        tensors = [graph.tensors[t] if t != ABSENT else None for t in slots]
        return [t.dtype if t is not None and t.counted else None for t in tensors]

    if node.op in COPY_OPS:
        return True
    version = schema_version(node.domain, node.op, graph.opset)
    return kernels.has(node.key, version, types(node.inputs), types(node.outputs))


def _left_to_the_cpu(node: Node) -> bool:
    """Recurrent nodes that cuDNN cannot do (``RNNNeedFallbackToCPU``; two of its conditions)."""
    if node.key == ":GRU":
        return not node.attributes.get("linear_before_reset", 0)
    return node.key == ":LSTM" and len(node.inputs) > 7 and node.inputs[7] != ABSENT


def _preferred_on_cpu(graph: Graph, kernels: Kernels, capable: set[int]) -> set[int]:
    """Nodes with a CUDA kernel all of whose inputs are on the host (``GetCpuPreferredNodes``)."""
    host: set[int] = set()
    queue: list[int] = []

    def follow(tensor: int) -> None:
        host.add(tensor)
        for reader in graph.tensors[tensor].readers:
            heapq.heappush(queue, reader)

    for node in graph.nodes:
        if node.id in capable:
            for slot in kernels.host_outputs.get(node.key, ()):
                if slot < len(node.outputs) and node.outputs[slot] != ABSENT:
                    follow(node.outputs[slot])
    chosen: set[int] = set()
    seen: set[int] = set()
    while queue:
        index = heapq.heappop(queue)
        if index in seen:
            continue
        seen.add(index)
        node = graph.nodes[index]
        if index not in capable or _stays_on_host(graph, node, kernels, host):
            if index in capable:
                chosen.add(index)
            for tensor in node.writes:
                follow(tensor)
    return chosen


def _stays_on_host(graph: Graph, node: Node, kernels: Kernels, host: set[int]) -> bool:
    wanted = kernels.host_inputs.get(node.key, frozenset())
    for slot, index in enumerate(node.inputs):
        if index == ABSENT:
            return False
        tensor = graph.tensors[index]
        if tensor.dtype in _DEVICE_ONLY:
            return False
        if tensor.kind is TensorKind.INPUT:
            continue
        if tensor.kind is TensorKind.INITIALIZER and math.prod(tensor.shape) <= _SMALL:
            continue
        if index not in host or slot in wanted:
            return False
    return True


def fallback_notes(devices: Devices | None) -> list[str]:
    """A line for nodes without a kernel, one for those that stay on the host by choice, and one for
    those that may not run anywhere."""
    if devices is None:
        return []
    kernel = f"have no {PROVIDERS[devices.provider].title} kernel and"
    apart = [[f for f in devices.fallbacks if f.by_choice is which] for which in (False, True)]
    return [
        *_line(apart[0], kernel, devices.provider),
        *_line(apart[1], "compute on host tensors and", devices.provider),
        *_refused([f for f in devices.fallbacks if f.bfloat16 and not f.by_choice]),
    ]


def _refused(fallbacks: list[Fallback]) -> list[str]:
    if not fallbacks:
        return []
    ops = ", ".join(sorted({f.op for f in fallbacks})[:8])
    return [
        "bfloat16: the CPU has next to no kernels of that type, so ONNX Runtime may refuse the "
        f"file ({ops}); compute such nodes in float32"
    ]


def _line(fallbacks: list[Fallback], why: str, provider: str) -> list[str]:
    if not fallbacks:
        return []
    ops = ", ".join(f"{op} ×{n}" for op, n in Counter(f.op for f in fallbacks).most_common(8))
    worst = sorted(fallbacks, key=lambda f: -(f.to_host_bytes + f.to_device_bytes))[:_NAMED]
    named = "; ".join(
        f"{f.name}: {f.to_host_bytes:,} B to the host, {f.to_device_bytes:,} B back" for f in worst
    )
    count = len(fallbacks)
    what = "node" if count == 1 else "nodes"
    verb = why.replace("have", "has").replace("compute ", "computes ") if count == 1 else why
    runs = "runs" if count == 1 else "run"
    return [f"{provider}: {count} {what} {verb} {runs} on the CPU: {ops} ({named})"]


def fallbacks_json(devices: Devices) -> list[dict[str, object]]:
    """The nodes that run on the CPU, with the bytes that they drag across."""
    return [
        {
            "node": f.name,
            "op": f.op,
            "to_host_bytes": f.to_host_bytes,
            "to_device_bytes": f.to_device_bytes,
            "has_cuda_kernel": f.by_choice,
        }
        for f in devices.fallbacks
    ]


class _Copier:
    """State of ``TransformerMemcpyImpl``: who needs which tensor where."""

    def __init__(self, graph: Graph, provider: str, on_device: set[int]) -> None:
        self.graph = graph
        self.provider = provider
        self.kernels = kernels_of(provider)
        self.on_device = on_device
        self.nodes = list(graph.nodes)
        self.tensors = list(graph.tensors)
        self.device_in: set[int] = set()
        self.host_in: set[int] = set()
        self.device_out: set[int] = set()
        self.host_out: set[int] = set()

    def run(self, preferred: set[int]) -> tuple[Graph, Devices]:
        for node in self.graph.nodes:
            self._note(node)
        names = self.tensors
        both = [t for t in self.graph.inputs if t in self.device_in and t in self.host_in]
        down = sorted(self.host_out & self.device_in, key=lambda t: names[t].name)
        up = sorted(self.device_out & self.host_in, key=lambda t: names[t].name)
        self._host = self._host_tensors()
        fallbacks = self._fallbacks(preferred)
        first = len(self.nodes)
        for tensor in (*both, *down):
            self._copy_in(tensor)
        for tensor in up:
            self._copy_out(tensor)
        graph = replace(
            self.graph,
            nodes=tuple(self.nodes),
            tensors=tuple(self._with_readers()),
            metadata=(*self.graph.metadata, *({} for _ in self.nodes[first:])),
        )
        host_nodes = frozenset(n.id for n in self.graph.nodes) - self.on_device
        copies = tuple(range(first, len(self.nodes)))
        return graph, Devices(self.provider, host_nodes, frozenset(self._host), copies, fallbacks)

    def _note(self, node: Node) -> None:
        if node.id not in self.on_device:
            self.host_in.update(t for t in node.inputs if t != ABSENT)
            self.host_out.update(node.writes)
            return
        for slot, tensor in enumerate(node.inputs):
            if tensor != ABSENT:
                (self.host_in if self._reads_host(node, slot) else self.device_in).add(tensor)
        outputs = self.kernels.host_outputs.get(node.key, frozenset())
        if node.op == "MemcpyToHost":
            outputs = frozenset({0})
        for slot, tensor in enumerate(node.outputs):
            if tensor != ABSENT:
                (self.host_out if slot in outputs else self.device_out).add(tensor)

    def _reads_host(self, node: Node, slot: int) -> bool:
        if node.op == "MemcpyFromHost":
            return True
        return slot in self.kernels.host_inputs.get(node.key, frozenset())

    def _host_tensors(self) -> set[int]:
        """Tensors whose bytes are not on the device, before copies are made."""
        host = set(self.host_out)
        for tensor in self.tensors:
            if tensor.kind is TensorKind.INPUT and (
                tensor.id in self.host_in or tensor.id not in self.device_in
            ):
                host.add(tensor.id)
            if tensor.kind is TensorKind.INITIALIZER and tensor.id not in self.device_in:
                host.add(tensor.id)
        return host

    def _fallbacks(self, preferred: set[int]) -> tuple[Fallback, ...]:
        found = []
        for node in self.graph.nodes:
            if node.id in self.on_device:
                continue
            reads = {t for t in node.inputs if t != ABSENT and t in self.device_out}
            writes = {t for t in node.writes if t in self.device_in}
            size = self.tensors
            found.append(
                Fallback(
                    node.name,
                    node.key.lstrip(":"),
                    sum(size[t].nbytes for t in reads),
                    sum(size[t].nbytes for t in writes),
                    node.id in preferred,
                    any(self.tensors[t].dtype == _BFLOAT16 for t in (*node.reads, *node.writes)),
                )
            )
        return tuple(found)

    def _new_tensor(self, of: int) -> Tensor:
        old = self.tensors[of]
        new = replace(
            old,
            id=len(self.tensors),
            name=f"{old.name}_{PROVIDERS[self.provider].runtime_name}",
            kind=TensorKind.COMPUTED,
            is_output=False,
            producer=ABSENT,
            readers=(),
        )
        self.tensors.append(new)
        return new

    def _new_node(self, op: str, source: int, target: int) -> None:
        node = Node(
            len(self.nodes), f"{op}/{self.tensors[source].name}", "", op, (source,), (target,)
        )
        self.nodes.append(node)

    def _device_readers(self, tensor: int, new: int) -> None:
        """Let the device side read ``new`` instead of ``tensor``."""
        for reader in dict.fromkeys(self.tensors[tensor].readers):
            node = self.nodes[reader]
            if reader not in self.on_device:
                continue
            slots = [k for k, t in enumerate(node.inputs) if t == tensor]
            if any(not self._reads_host(node, k) for k in slots):
                inputs = tuple(new if t == tensor else t for t in node.inputs)
                self.nodes[reader] = replace(node, inputs=inputs)

    def _copy_in(self, tensor: int) -> None:
        new = self._new_tensor(tensor)
        self._device_readers(tensor, new.id)
        self._new_node("MemcpyFromHost", tensor, new.id)

    def _copy_out(self, tensor: int) -> None:
        """The maker writes a new tensor; the old one, and a graph output, is its host copy."""
        new = self._new_tensor(tensor)
        maker = self.nodes[self.tensors[tensor].producer]
        outputs = tuple(new.id if t == tensor else t for t in maker.outputs)
        self.nodes[maker.id] = replace(maker, outputs=outputs)
        self._device_readers(tensor, new.id)
        self._new_node("MemcpyToHost", new.id, tensor)
        self._host.add(tensor)

    def _with_readers(self) -> list[Tensor]:
        """The tensors with makers and readers as they are now."""
        readers: dict[int, list[int]] = defaultdict(list)
        maker = [ABSENT] * len(self.tensors)
        for node in self.nodes:
            for tensor in node.reads:
                readers[tensor].append(node.id)
            for tensor in node.writes:
                maker[tensor] = node.id
        return [
            replace(tensor, readers=tuple(readers[tensor.id]), producer=maker[tensor.id])
            for tensor in self.tensors
        ]
