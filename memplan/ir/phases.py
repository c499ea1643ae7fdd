"""Forward, loss, backward and update, found from the data flow alone.

1. The *loss* is a scalar float output (one called loss, else the first).
2. *Forward* is what the loss depends on. Its tail after the last use of a parameter is the *loss*
   phase: everything there is made from predictions and labels only.
3. *Backward* is the rest that depends on the loss phase, and what only serves that. But where
   outputs are known for gradients or new values, what serves none of them, nor depends on what
   does or on the loss, is forward work: metrics of predictions.
4. *Update* is the rest that makes new state: what depends on optimizer state, and running
   statistics, which do not depend on the loss.
5. A node that says what it is (``metadata_props`` ``memplan.phase``, which ``memplan grad`` writes)
   is believed, and so is a file that says which outputs belong to which inputs, and what these are
   (:mod:`memplan.ir.stated`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.errors import UsageError
from memplan.ir.graph import Graph, Node, Phase, Tensor, TensorKind
from memplan.ir.pairs import WEIGHTED, is_scalar_float, pair_outputs, weights_by_use
from memplan.ir.reach import dependent_nodes, needed_nodes
from memplan.ir.roles import Role
from memplan.ir.stated import NOTHING, Stated, read_stated
from memplan.proto.metadata import PHASE_KEY
from memplan.shapes.tensor_type import FLOATS

_PHASES = {phase.value: phase for phase in Phase}
_LOSS_NAME = re.compile(r"loss|cost|objective", re.IGNORECASE)
_FIXED_ROLES = frozenset({Role.FROZEN, Role.AVERAGE})
_BOUNDARY_OP = "com.microsoft:YieldOp"
_ACCUMULATORS = frozenset(
    {"com.microsoft:InPlaceAccumulatorV2", "com.microsoft:InPlaceAccumulator"}
)
# Elementwise operators of optimizer arithmetic on one gradient.
_SCALING = frozenset(
    {":Mul", ":Div", ":Neg", ":Pow", ":Sqrt", ":Add", ":Sub", ":Cast", ":CastLike", ":Where"}
)


@dataclass(frozen=True, slots=True)
class Phases:
    """``of`` gives the phase of every node by id; ``loss`` is the loss output's tensor id or None.

    ``parameters`` are trained tensors (inputs or initializers), ``state`` inputs that only the
    update reads (optimizer state) or that the step renews (running statistics). ``pairs`` maps an
    output to what it is the gradient or the new value of. ``fixed`` are weights that the forward
    pass reads and no gradient flows to: frozen ones, and moving averages of others.
    """

    of: tuple[Phase, ...]
    loss: int | None
    parameters: frozenset[int]
    state: frozenset[int]
    pairs: Mapping[int, int] = field(default_factory=dict)
    fixed: frozenset[int] = frozenset()

    @property
    def forward(self) -> frozenset[int]:
        """The nodes that the loss depends on, its own among them."""
        return frozenset(
            node for node, phase in enumerate(self.of) if phase in (Phase.FORWARD, Phase.LOSS)
        )


def find_phases(
    graph: Graph, loss: str | None = None, metadata: Mapping[str, object] | None = None
) -> Phases:
    """Assign every node a phase.

    Args:
        graph: the graph.
        loss: name of the loss output, to override the search.
        metadata: that of the file (:func:`memplan.proto.metadata.get_metadata`).

    Raises:
        UsageError: ``loss`` is not an output of the graph.
    """
    finder = _Finder(graph, loss, read_stated(graph, metadata) if metadata else NOTHING)
    return finder.run()


class _Finder:
    """Works on sets of node ids."""

    def __init__(self, graph: Graph, loss: str | None, stated: Stated) -> None:
        self.graph = graph
        self.wanted = loss
        self.stated = stated
        self.pairs = pair_outputs(graph, stated)
        self.activating: set[int] = set()
        self.boundary = [node.id for node in graph.nodes if node.key == _BOUNDARY_OP]

    def run(self) -> Phases:
        loss = self._loss()
        forward = self._forward(loss)
        parameters = self._parameters(forward)
        fixed = self._fixed(forward)
        weights = parameters | fixed
        tail = self._loss_tail(forward, weights) if loss is not None else set()
        self.activating = self._activating(forward - tail, weights)
        backward, update = self._rest(forward, tail)
        # Renewed inputs that are not weights: optimizer state, running statistics, counters.
        state = {source for source in self.pairs.values() if source not in weights}
        update |= self._optimizer(state, backward)
        backward -= update
        of = tuple(
            told
            if (told := self._told(node.id)) is not None
            else Phase.LOSS
            if node.id in tail
            else Phase.FORWARD
            if node.id in forward
            else Phase.UPDATE
            if node.id in update
            else Phase.BACKWARD
            for node in self.graph.nodes
        )
        return Phases(
            of, loss, frozenset(parameters), frozenset(state), self.pairs, frozenset(fixed)
        )

    def _told(self, node: int) -> Phase | None:
        return _PHASES.get(self.graph.metadata[node].get(PHASE_KEY, ""))

    def _loss(self) -> int | None:
        outputs = [self.graph.tensors[t] for t in self.graph.outputs]
        if self.wanted is not None:
            found = next((t.id for t in outputs if t.name == self.wanted), None)
            if found is None:
                raise UsageError(
                    f"--loss {self.wanted}: the graph has no such output",
                    "outputs: " + ", ".join(t.name for t in outputs[:8]),
                )
            return found
        scalars = [t for t in outputs if is_scalar_float(t)]
        told = [t for t in scalars if self.stated.roles.get(t.name) is Role.LOSS]
        if told:
            return told[0].id
        scalars = [t for t in scalars if t.id not in self.pairs]
        named = [t for t in scalars if _LOSS_NAME.search(t.name)]
        return next((t.id for t in (*named, *scalars)), None)

    def _forward(self, loss: int | None) -> set[int]:
        graph = self.graph
        if self.boundary:
            roots = [t for node in self.boundary for t in graph.nodes[node].reads]
            return needed_nodes(self.graph, roots) | set(self.boundary)
        if loss is not None:
            return needed_nodes(self.graph, [loss])
        # No loss: what no gradient-like output separates is one forward pass.
        plain = [t for t in graph.outputs if t not in self.pairs]
        if plain and self.pairs:
            return needed_nodes(self.graph, plain)
        return set(range(len(graph.nodes)))

    def _parameters(self, forward: set[int]) -> set[int]:
        """Paired inputs that the forward pass reads and whose values are floats."""
        found = set()
        for source in self.pairs.values():
            tensor = self.graph.tensors[source]
            role = self.stated.roles.get(tensor.name, Role.PARAMETER)
            read = any(reader in forward for reader in tensor.readers)
            if tensor.dtype in FLOATS and role is Role.PARAMETER and read:
                found.add(source)
        return found or weights_by_use(self.graph)

    def _fixed(self, forward: set[int]) -> set[int]:
        """Inputs of which the file says that they are weights without a gradient, as far as the
        forward pass reads them."""
        tensors = (self.graph.tensors[t] for t in self.graph.inputs)
        return {
            tensor.id
            for tensor in tensors
            if self.stated.roles.get(tensor.name) in _FIXED_ROLES
            and any(reader in forward for reader in tensor.readers)
        }

    def _loss_tail(self, forward: set[int], parameters: set[int]) -> set[int]:
        """Forward nodes behind the last node that reads a parameter."""
        graph = self.graph
        weights = self._derived(parameters)
        before: set[int] = set()  # nodes that a parameter reader still follows
        for node in reversed(graph.nodes):
            if node.id in forward and (
                not weights.isdisjoint(node.reads)
                or any(not before.isdisjoint(graph.tensors[t].readers) for t in node.writes)
            ):
                before.add(node.id)
        return forward - before

    def _activating(self, nodes: set[int], parameters: set[int]) -> set[int]:
        """Nodes of the forward part before the loss that do not work on parameters alone."""
        weights = self._derived(parameters)
        return {node for node in nodes if weights.isdisjoint(self.graph.nodes[node].writes)}

    def _derived(self, parameters: set[int]) -> set[int]:
        """Parameters and what is made from them alone (a transposed weight)."""
        found = set(parameters)
        constant = TensorKind.INITIALIZER
        for node in self.graph.nodes:
            if not found.isdisjoint(node.reads) and all(
                t in found or self.graph.tensors[t].kind is constant for t in node.reads
            ):
                found.update(node.writes)
        return found

    def _rest(self, forward: set[int], tail: set[int]) -> tuple[set[int], set[int]]:
        graph = self.graph
        rest = {node.id for node in graph.nodes} - forward
        if self.boundary:
            seeds = [t for node in self.boundary for t in graph.nodes[node].writes]
        else:
            seeds = [
                t for node in tail for t in (*graph.nodes[node].reads, *graph.nodes[node].writes)
            ]
        seeds = [t for t in seeds if graph.tensors[t].kind is TensorKind.COMPUTED]
        metrics = self._metrics(rest)
        forward |= metrics
        rest -= metrics
        core = dependent_nodes(self.graph, seeds) & rest
        if not core:
            return rest, set()
        roots = [t for node in core for t in graph.nodes[node].reads]
        helpers = (needed_nodes(self.graph, roots) & rest) - core
        # What only serves the backward but runs before it (saved statistics) is forward work, but
        # for what an update makes of moments. A rewritten file may make the loss late.
        end = min(max(tail, default=-1), min(core))
        sources = (graph.tensors[t] for t in self.pairs.values())
        moments = {t.id for t in sources if not any(reader in forward for reader in t.readers)}
        early = {node for node in helpers if node < end} - dependent_nodes(self.graph, moments)
        forward |= early
        backward = core | (helpers - early)
        return backward, rest - backward - forward

    def _metrics(self, rest: set[int]) -> set[int]:
        """Nodes of ``rest`` that make neither gradients nor new values, nor read what does, nor the
        loss."""
        if not self.pairs or self.boundary:
            return set()
        making = needed_nodes(self.graph, self.pairs) & rest
        made = [t for node in making for t in self.graph.nodes[node].writes]
        loss = self._loss()
        return rest - making - dependent_nodes(self.graph, made if loss is None else [*made, loss])

    def _optimizer(self, state: set[int], backward: set[int]) -> set[int]:
        """Backward nodes that are really optimizer arithmetic."""
        graph = self.graph
        found = {node for node in backward if graph.nodes[node].key in _ACCUMULATORS}
        new_values = {
            output for output, source in self.pairs.items() if _is_new_value(graph, output, source)
        }
        scales = {t for t in state if self._scales_gradients(t, backward)}
        found |= dependent_nodes(self.graph, state - scales) & backward
        if not new_values:
            return found
        for node in reversed(graph.nodes):
            if node.id in found or node.id not in backward:
                continue
            counts = _makes_number(graph, node)
            if not counts and (node.key not in _SCALING or not _scales_one(graph, node)):
                continue
            if self._only_updates(node, found, new_values):
                found.add(node.id)
        return found

    def _scales_gradients(self, state: int, backward: set[int]) -> bool:
        """Whether a number is a loss scale: what is made of it meets activations, which an
        optimizer does not read."""
        graph = self.graph
        if math.prod(graph.tensors[state].shape) != 1:
            return False
        return any(
            graph.tensors[t].producer in self.activating
            for node in dependent_nodes(self.graph, [state]) & backward
            for t in graph.nodes[node].reads
        )

    def _only_updates(self, node: Node, update: set[int], new_values: set[int]) -> bool:
        for t in node.writes:
            readers = self.graph.tensors[t].readers
            if t in new_values:
                continue
            if not readers or any(reader not in update for reader in readers):
                return False
        return True


def _is_new_value(graph: Graph, output: int, source: int) -> bool:
    """Whether an output is made from the very input it is paired with (a step, not a gradient)."""
    producer = graph.tensors[output].producer
    return producer >= 0 and source in graph.nodes[producer].reads


def _makes_number(graph: Graph, node: Node) -> bool:
    """Whether a node makes a number, without a weight: a norm, or whether all is finite."""
    whole = all(math.prod(graph.tensors[t].shape) == 1 for t in node.writes)
    return whole and node.key not in WEIGHTED


def _scales_one(graph: Graph, node: Node) -> bool:
    """Whether at most one computed tensor of full size enters (the rest are scalars or state)."""
    full: set[int] = set()
    for t in node.reads:
        tensor: Tensor = graph.tensors[t]
        if tensor.kind is TensorKind.COMPUTED and math.prod(tensor.shape) > 1:
            full.add(t)
    return len(full) <= 1


def differentiated(graph: Graph, phases: Phases) -> frozenset[int]:
    """The forward nodes on a way from a parameter to the loss: those that gradients flow through.

    Without a loss, or without parameters, that end of the way is not asked for.
    """
    forward = phases.forward
    below: set[int] = set()
    tensors = set(phases.parameters)
    for node in graph.nodes:
        if node.id in forward and (not phases.parameters or any(t in tensors for t in node.reads)):
            below.add(node.id)
            tensors.update(node.writes)
    if phases.loss is None:
        return frozenset(below)
    above: set[int] = set()
    tensors = {phases.loss}
    for node in reversed(graph.nodes):
        if node.id in below and any(t in tensors for t in node.writes):
            above.add(node.id)
            tensors.update(node.reads)
    return frozenset(above)


def count_phases(phases: Phases) -> Mapping[Phase, int]:
    """Nodes per phase."""
    return {phase: sum(p is phase for p in phases.of) for phase in Phase}
