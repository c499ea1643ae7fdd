"""The reverse pass: from gradients of some tensors to gradients of others."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from memplan.autodiff.activity import Activity
from memplan.autodiff.context import Context
from memplan.autodiff.emitter import Emitter, Scope, scope_of
from memplan.autodiff.registry import Entry, Gradient, entry_for
from memplan.autodiff.types import TensorType
from memplan.autodiff.value import Value
from memplan.errors import MemplanError
from memplan.graph.build import captured_names
from memplan.graph.phases import KEY as PHASE_KEY
from memplan.graph.types import Phase

OnReady = Callable[[str, Value], None]


class ReversePass:
    """Differentiates a list of nodes that stands in topological order.

    Contributions to one tensor are added as they come, so that no more than one sum of it is alive.
    Nodes between parameters and the rest of the graph (a transposed or cast weight) are
    differentiated as soon as they can be, whatever their place in the file, and a gradient that was
    asked for is handed out once it is complete: weight gradients can be consumed early.
    """

    def __init__(
        self,
        emitter: Emitter,
        nodes: Sequence[onnx.NodeProto],
        activity: Activity,
        xs: Collection[str],
        fixed: Collection[str] = (),
    ) -> None:
        """``fixed`` are the initializers that are not among ``xs``."""
        self.emitter = emitter
        self.nodes = nodes
        self.activity = activity
        self.xs = frozenset(xs)
        self.sums: dict[str, Value] = {}
        self.producer = {
            name: index for index in activity.nodes for name in nodes[index].output if name
        }
        self.readers: Counter[str] = Counter()
        for index in activity.nodes:
            self.readers.update(self._active_inputs(index))
        self.parameter_side = self._parameter_side(frozenset(fixed))

    def run(self, seeds: Mapping[str, Value], on_ready: OnReady) -> None:
        """Build the backward nodes.

        Args:
            seeds: gradients of some tensors, as they come from outside.
            on_ready: called with the name and the whole gradient of each x when it is complete;
                never for an x whose gradient is zero.
        """
        for name, grad in seeds.items():
            if name in self.activity.tensors:
                self._contribute(name, grad)
        waiting = {
            index: sum(self.readers[name] > 0 for name in self._active_outputs(index))
            for index in self.activity.nodes
        }
        heap = [self._priority(index) for index, count in waiting.items() if count == 0]
        heapq.heapify(heap)
        for name in sorted(self.xs):
            if self.readers[name] == 0:
                self._finish(name, on_ready)
        while heap:
            index = heapq.heappop(heap)[-1]
            self._differentiate(index)
            for name in sorted(self._active_inputs(index)):
                self.readers[name] -= 1
                if self.readers[name]:
                    continue
                self._finish(name, on_ready)
                producer = self.producer.get(name)
                if producer is not None:
                    waiting[producer] -= 1
                    if waiting[producer] == 0:
                        heapq.heappush(heap, self._priority(producer))

    def _priority(self, index: int) -> tuple[int, int, int]:
        return (0 if index in self.parameter_side else 1, -index, index)

    def _active_inputs(self, index: int) -> set[str]:
        node = self.nodes[index]
        names = {*node.input, *captured_names(node)}
        return {name for name in names if name in self.activity.tensors}

    def _active_outputs(self, index: int) -> set[str]:
        return {name for name in self.nodes[index].output if name in self.activity.tensors}

    def _parameter_side(self, fixed: frozenset[str]) -> frozenset[int]:
        """Nodes that only see xs and constants; none if everything does."""
        known = set(self.xs) | fixed
        found = set()
        for index, node in enumerate(self.nodes):
            names = [*filter(None, node.input), *captured_names(node)]
            if all(name in known or name in self.emitter.constants for name in names):
                known.update(node.output)
                found.add(index)
        active = found & self.activity.nodes
        return frozenset(active) if active != self.activity.nodes else frozenset()

    def _finish(self, name: str, on_ready: OnReady) -> None:
        """Hand out the gradient of an x; others wait for their producer."""
        if name not in self.xs or name not in self.sums:
            return
        producer = self.producer.get(name)
        grad = self.sums[name]
        stem = self.nodes[producer].name if producer is not None else name
        with self.emitter.scope(Scope(f"{stem}/grad", {PHASE_KEY: Phase.BACKWARD})):
            grad = self.emitter.full(grad, self.emitter.tensor(name))
        if producer is not None:
            self.sums[name] = grad
        else:
            del self.sums[name]
        on_ready(name, grad)

    def _contribute(self, name: str, grad: Value) -> None:
        before = self.sums.get(name)
        self.sums[name] = grad if before is None else before + grad

    def _differentiate(self, index: int) -> None:
        node = self.nodes[index]
        entry = entry_for(node)
        assert entry is not None
        assert entry.rule is not None
        incoming = [self.sums.pop(name, None) for name in node.output]
        if all(grad is None for grad in incoming):
            return
        with self.emitter.scope(scope_of(node, Phase.BACKWARD, "grad")):
            ctx = Context(
                self.emitter, node, tuple(incoming), self.activity.wanted(node, entry), self.sums
            )
            if not (entry.elementwise or entry.broadcast):
                ctx.grads = tuple(
                    None if grad is None else ctx.whole(k) for k, grad in enumerate(incoming)
                )
            gradients = entry.rule(ctx)
            if not isinstance(gradients, Mapping):
                named = zip(node.input, gradients, strict=False)
                self._collect(ctx, entry, [(slot, *pair) for slot, pair in enumerate(named)])
            else:
                self._collect(ctx, entry, [(-1, *pair) for pair in gradients.items()])

    def _collect(
        self, ctx: Context, entry: Entry, gradients: Sequence[tuple[int, str, Gradient]]
    ) -> None:
        """Build what is wanted, parameters first: what they read can die before the rest."""

        def side(item: tuple[int, str, Gradient]) -> int:
            name = item[1]
            return 0 if name in self.xs or self.producer.get(name) in self.parameter_side else 1

        for slot, name, gradient in sorted(gradients, key=side):
            if not (ctx.wants(slot) if slot >= 0 else name in self.activity.tensors):
                continue
            grad = gradient() if callable(gradient) else gradient
            if grad is not None:
                target = self.emitter.tensor(name)
                self._contribute(name, self._fitted(ctx, entry, grad, target))

    def _fitted(self, ctx: Context, entry: Entry, grad: Value, target: Value) -> Value:
        """``grad`` summed to the shape of its tensor, or checked to have it.

        Raises:
            MemplanError: a rule gives a gradient of another type.
        """
        if entry.elementwise:
            grad = ctx.sum_to(grad, ctx.y, target)
        elif not _agree(grad.type, target.type, entry.broadcast):
            raise MemplanError(
                f"the gradient of {ctx.node.name} ({ctx.node.op_type}) for '{target.name}' has "
                f"type {grad.type}, not {target.type}",
                "this is a bug in a gradient rule; please report it with the model",
            )
        return grad


def _agree(grad: TensorType, target: TensorType, smaller: bool) -> bool:
    """Whether a gradient has its tensor's type, as far as that is known."""
    if grad.shape is None or target.shape is None:
        return True
    lead = len(target.shape) - len(grad.shape)
    if grad.dtype != target.dtype or lead < 0 or (lead > 0 and not smaller):
        return False
    return all(
        a == b or (smaller and a == 1) or isinstance(a, str) or isinstance(b, str)
        for a, b in zip(grad.shape, target.shape[lead:], strict=True)
    )
