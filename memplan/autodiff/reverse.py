"""The reverse pass: from gradients of some tensors to gradients of others."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import onnx

from memplan.autodiff.activity import require_rules
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import RuleError, Scope, scope_of
from memplan.autodiff.emit.gradient_registry import Entry, Gradient, entry_for, fitting
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import Expanded
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY
from memplan.proto.nodes import captured_names
from memplan.shapes.tensor_type import TensorType

OnReady = Callable[[str, Value], None]


class ReversePass:
    """Differentiates a list of nodes that stands in topological order.

    Contributions to one tensor are added as they come, so that no more than one sum of it is alive.
    Nodes between parameters and the rest of the graph (a transposed or cast weight) are
    differentiated as soon as they can be, whatever their place in the file, and a gradient that was
    asked for is handed out once it is complete: weight gradients can be consumed early.
    """

    def __init__(self, seen: Expanded, xs: Collection[str], on_ready: OnReady) -> None:
        """Prepare to differentiate a graph.

        Args:
            seen: the graph; its emitter gets the backward nodes.
            xs: tensors whose gradients are asked for.
            on_ready: called with the name and the whole gradient of each x, as soon as it is
                complete and everything is built that the node at hand has to build: what is made
                of the gradient stands behind the last node that reads the x. Never called for an x
                whose gradient is zero.

        Raises:
            ModelError: an operator that gradients flow through has no rule.
        """
        require_rules(seen.nodes, seen.activity)
        self.emitter = seen.emitter
        nodes = self.nodes = seen.nodes
        activity = self.activity = seen.activity
        self.xs = frozenset(xs)
        self.on_ready = on_ready
        self.sums: dict[str, Value] = {}
        self.producer = {
            name: index for index in activity.nodes for name in nodes[index].output if name
        }
        self.readers: Counter[str] = Counter()
        for index in activity.nodes:
            self.readers.update(self._active_inputs(index))
        self.waiting = {
            index: sum(self.readers[name] > 0 for name in self._active_outputs(index))
            for index in activity.nodes
        }
        self.parameter_side = self._parameter_side(seen.fixed)
        self.heap: list[tuple[int, int, int]] = []
        self.complete: list[tuple[str, Value]] = []

    def run(self, seeds: Mapping[str, Value]) -> None:
        """Build the backward nodes; ``seeds`` are gradients as they come from outside."""
        for name, grad in seeds.items():
            if name in self.activity.tensors:
                self._contribute(name, grad)
        for name in sorted(self.xs):
            if self.readers[name] == 0:
                self._finish(name)
        self._hand_out()
        self.heap = [self._priority(index) for index, count in self.waiting.items() if count == 0]
        heapq.heapify(self.heap)
        while self.heap:
            self._differentiate(heapq.heappop(self.heap)[-1])
            self._hand_out()

    def _settle(self, name: str) -> None:
        """Note that one more node has contributed to a tensor's gradient.

        If it was the last, the gradient is complete, and the producer comes in line; at once, if
        it stands between a parameter and the rest.
        """
        self.readers[name] -= 1
        if self.readers[name]:
            return
        self._finish(name)
        producer = self.producer.get(name)
        if producer is None:
            return
        self.waiting[producer] -= 1
        if self.waiting[producer]:
            return
        if producer in self.parameter_side:
            self._differentiate(producer)
        else:
            heapq.heappush(self.heap, self._priority(producer))

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

    def _finish(self, name: str) -> None:
        """Note the gradient of an x as complete; others wait for their producer."""
        if name not in self.xs or name not in self.sums:
            return
        producer = self.producer.get(name)
        stem = self.nodes[producer].name if producer is not None else name
        with self.emitter.scope(Scope(f"{stem}/grad", {PHASE_KEY: Phase.BACKWARD})):
            grad = Operations(self.emitter).expand_like(self.sums[name], self.emitter.tensor(name))
        self.sums[name] = grad
        if producer is None:
            del self.sums[name]
        self.complete.append((name, grad))

    def _hand_out(self) -> None:
        for name, grad in self.complete:
            self.on_ready(name, grad)
        self.complete.clear()

    def _contribute(self, name: str, grad: Value) -> None:
        before = self.sums.get(name)
        self.sums[name] = grad if before is None else before + grad

    def _differentiate(self, index: int) -> None:
        """Apply the rule of a node to the gradients of its outputs."""
        node = self.nodes[index]
        left = sorted(self._active_inputs(index))
        incoming = [self.sums.pop(name, None) for name in node.output]
        if any(grad is not None for grad in incoming):
            with fitting(node), self.emitter.scope(scope_of(node, Phase.BACKWARD, "grad")):
                for name in self._apply(node, tuple(incoming), left):
                    left.remove(name)
        for name in left:
            self._settle(name)

    def _apply(
        self, node: onnx.NodeProto, incoming: tuple[Value | None, ...], active: Sequence[str]
    ) -> Iterator[str]:
        """Build what is wanted, parameters first: what they read can die before the rest.

        Gives the tensors whose part from this node is complete and settled. No rule is asked about
        tensors without elements: such outputs bring zeros in, and such inputs get nothing else.
        """
        incoming = tuple(
            None if self._is_empty(name) else grad
            for name, grad in zip(node.output, incoming, strict=True)
        )
        entry = entry_for(node)
        assert entry is not None
        assert entry.rule is not None
        wanted = self.activity.wanted(node, entry)
        ctx = Context(self.emitter, node, incoming, wanted, self.sums, self.activity.tensors)
        if not (entry.elementwise or entry.broadcast):
            ctx.grads = tuple(
                None if grad is None else ctx.whole(k) for k, grad in enumerate(incoming)
            )
        flows = any(grad is not None for grad in incoming)
        found = entry.rule(ctx) if flows else ()
        parts: dict[str, list[Gradient]] = {}
        if isinstance(found, Mapping):
            parts = {name: [part] for name, part in found.items() if name in self.activity.tensors}
        else:
            for slot, part in enumerate(found):
                if ctx.wants(slot):
                    parts.setdefault(node.input[slot], []).append(part)
        for name in filter(self._is_empty, active) if flows else active:
            parts[name] = [ctx.full_like(self.emitter.tensor(name))]
        for name in sorted(parts, key=self._is_data):
            for part in parts[name]:
                grad = part() if callable(part) else part
                if grad is not None:
                    target = self.emitter.tensor(name)
                    self._contribute(name, self._fitted(ctx, entry, grad, target))
            self._settle(name)
            yield name

    def _is_empty(self, name: str) -> bool:
        return 0 in (self.emitter.tensor(name).type.shape or ())

    def _is_data(self, name: str) -> bool:
        """Whether a tensor is neither a parameter nor made of parameters alone."""
        return name not in self.xs and self.producer.get(name) not in self.parameter_side

    def _fitted(self, ctx: Context, entry: Entry, grad: Value, target: Value) -> Value:
        """``grad`` summed to the shape of its tensor, or checked to have it.

        Raises:
            RuleError: a rule gives a gradient of another type.
        """
        if entry.elementwise:
            grad = ctx.sum_to(grad, ctx.y, target)
        elif not _agree(grad.type, target.type, entry.broadcast):
            raise RuleError(
                f"the gradient of {ctx.node.name} ({ctx.node.op_type}) for '{target.name}' has "
                f"type {grad.type}, not {target.type}"
            )
        elif not entry.broadcast:
            grad = self._sized(grad, target)
        return grad

    def _sized(self, grad: Value, target: Value) -> Value:
        """``grad``, which has the shape of its tensor, with the sizes that are known of that: names
        of dimensions that must be equal are not always the same."""
        shape, known = grad.type.shape, target.type.shape
        if shape is None or known is None:
            return grad
        sizes = tuple(b if isinstance(b, int) else a for a, b in zip(shape, known, strict=True))
        if sizes != shape:
            self.emitter.types[grad.name] = TensorType(grad.dtype, sizes)
        return self.emitter.tensor(grad.name)


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
