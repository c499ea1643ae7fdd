"""Where PyTorch lets no gradient through, said in the exported program.

``detach`` and blocks without gradients (``no_grad``) are in what torch.export gives, and lost once
it is decomposed. So the edit here puts :func:`~memplan.pytorch.surrogate_exports.backward_through`
there, and only where a gradient would flow otherwise: other programs stay as they are.

1. A tensor is *active* if PyTorch would say that it requires a gradient; it *carries* if the plain
   graph would let a gradient through to it. What carries and is not active is stopped.
2. ``detach`` is stopped on the spot, what a block without gradients computes where it leaves the
   block; a block with gradients inside (``enable_grad``) is entered by what was stopped.
3. What is written in place without gradients keeps the history that it had: the gradient of the new
   value is handed to the old one.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from memplan.errors import ModelError
from memplan.pytorch.operators import may_be_view, writes, written_slots, written_to
from memplan.pytorch.surrogate_exports import BACKWARD_THROUGH

aten = torch.ops.aten
_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_DETACH = (aten.detach.default, aten.detach_.default)
Flags = tuple[bool, bool]
"""Whether a tensor is active, and whether it carries."""


def with_stops(program: ExportedProgram) -> ExportedProgram:
    """A copy of a program, before its decomposition, that says where gradients end.

    Raises:
        ModelError: it changes a tensor in place in a way whose gradient cannot be said.
    """
    if not any(node.target in (*_DETACH, _SET_GRAD) for node in _all_nodes(program.graph_module)):
        return program
    module = copy.deepcopy(program.graph_module)
    given = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    wanted = [isinstance(value, torch.Tensor) and value.requires_grad for value in given]
    _Region(module, True).walk([(flag, flag) for flag in wanted])
    _write_in_line(module)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _write_in_line(module: GraphModule) -> None:
    """Let what blocks without gradients compute stand where it is called, in place: behind the
    stops it is like anything else, and its nodes tell their own modules. Blocks that write in place
    stay: parameters may be written so alone."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_SET_GRAD):
        named = node.args[1]
        body = getattr(module, str(named.target))
        if any(inner.op == "get_attr" or writes(inner) for inner in body.graph.nodes):
            continue
        given = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, given)
        for taken in list(node.users):
            taken.replace_all_uses_with(results[taken.args[1]])
            graph.erase_node(taken)
        graph.erase_node(node)
        if not named.users:
            graph.erase_node(named)
    module.recompile()


def _all_nodes(module: GraphModule) -> Iterator[Node]:
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield from part.graph.nodes


@dataclass(slots=True)
class _Region:
    """One graph, run with or without gradients.

    ``roots`` maps tensors to the one whose storage they share, ``results`` the calls of other
    graphs to the flags of what these give. ``detached`` share a storage without its history.
    """

    module: GraphModule
    enabled: bool
    active: set[Node] = field(default_factory=set)
    carries: set[Node] = field(default_factory=set)
    detached: set[Node] = field(default_factory=set)
    roots: dict[Node, Node] = field(default_factory=dict)
    results: dict[Node, list[Flags]] = field(default_factory=dict)

    def walk(self, given: Sequence[Flags]) -> list[Flags]:
        """State all stops; the flags of the results."""
        graph = self.module.graph
        for node, flags in zip(graph.find_nodes(op="placeholder"), given, strict=True):
            self._mark(node, flags)
        for node in list(graph.nodes):
            if node.op == "call_function":
                self._visit(node)
        ends = graph.output_node()
        if not self.enabled:
            self._stop_reads(ends)
        self.module.recompile()
        results = ends.args[0] if isinstance(ends.args[0], list | tuple) else ends.args
        return [self._flags(node) if isinstance(node, Node) else (False, False) for node in results]

    def _flags(self, node: Node) -> Flags:
        return node in self.active, node in self.carries

    def _any(self, nodes: Sequence[Node]) -> Flags:
        return not self.active.isdisjoint(nodes), not self.carries.isdisjoint(nodes)

    def _mark(self, node: Node, flags: Flags) -> None:
        if _is_float(node.meta.get("val")):
            self.active |= {node} if flags[0] else set()
            self.carries |= {node} if flags[1] else set()

    def _root(self, node: Node) -> Node:
        return self.roots.get(node, node)

    def _visit(self, node: Node) -> None:
        """Find a node's flags, and state what it stops."""
        if bodies := self._bodies(node):
            self._enter(node, bodies)
        elif node.target in _DETACH:
            self._detach(node)
        elif slots := written_slots(node):
            self._write(node, slots)
        elif node.target is operator.getitem and node.args[0] in self.results:
            self._mark(node, self.results[node.args[0]][node.args[1]])
        else:
            read = [n for n in node.args[1:] if isinstance(n, Node)]
            read = read if node.target is BACKWARD_THROUGH else node.all_input_nodes
            active, carries = self._any(read)
            self._mark(node, (active and self.enabled, carries))
            if _is_view(node):
                self._share(node, node.all_input_nodes[0])

    def _share(self, node: Node, source: Node) -> None:
        self.roots[node] = self._root(source)
        if source in self.detached:
            self.detached.add(node)

    def _bodies(self, node: Node) -> list[tuple[Node, GraphModule]]:
        found = []
        for read in node.all_input_nodes:
            if read.op == "get_attr":
                body = operator.attrgetter(str(read.target))(self.module)
                if isinstance(body, GraphModule):
                    found.append((read, body))
        return found

    def _enter(self, node: Node, bodies: Sequence[tuple[Node, GraphModule]]) -> None:
        """Walk the graphs that a node calls. What loops hand from turn to turn counts as active if
        anything that enters does."""
        enabled = bool(node.args[0]) if node.target is _SET_GRAD else self.enabled
        if enabled and not self.enabled:
            self._stop_reads(node)
        names = {read for read, _ in bodies}
        given = [read for read in _nodes_in(node.args) if read not in names]
        for _, body in bodies:
            places = body.graph.find_nodes(op="placeholder")
            operands = given[-len(places) :] if places else []
            flags = [self._flags(read) for read in operands]
            if node.target not in (_SET_GRAD, _AUTOCAST) or len(operands) < len(places):
                flags = [self._any(given)] * len(places)
            inner = _Region(body, enabled)
            found = inner.walk(flags)
            before = self.results.get(node, [(False, False)] * len(found))
            self.results[node] = [
                (a or b, c or d) for (a, c), (b, d) in zip(before, found, strict=True)
            ]
            for place, read in zip(places, operands, strict=False):
                self._spread(read, inner._flags(place))

    def _spread(self, node: Node, flags: Flags) -> None:
        """What is written into a tensor is in everything that shares its storage."""
        root = self._root(node)
        for shares in (root, *(n for n, own in self.roots.items() if own is root)):
            if shares not in self.detached:
                self._mark(shares, flags)

    def _detach(self, node: Node) -> None:
        source = node.all_input_nodes[0]
        if not (self.enabled and source in self.carries):
            self.roots[node] = self._root(source)
            self.detached.add(node)
            self._mark(node, (False, source in self.carries))
        elif _is_written_later(node):
            raise _behind_autograd(source)
        else:
            if node.target is aten.detach_.default:
                nodes = list(self.module.graph.nodes)
                later = set(nodes[nodes.index(node) + 1 :])
                source.replace_all_uses_with(node, delete_user_cb=later.__contains__)
            node.target = BACKWARD_THROUGH

    def _write(self, node: Node, slots: Sequence[int | str]) -> None:
        """An in-place operator."""
        slot = slots[0]
        target = node.args[slot] if isinstance(slot, int) else node.kwargs[slot]
        assert isinstance(target, Node)
        silent = not self.enabled or target in self.detached
        local = self._root(target).op != "placeholder" and target not in self.detached
        others = [read for read in node.all_input_nodes if read is not target]
        self._share(node, target)
        if silent and target not in self.active and self._root(target) in self.active:
            raise _behind_autograd(target)
        if silent and target in self.active:
            self._keep_history(node, target, slot, len(slots))
        elif silent and not local:
            self._stop_reads(node, others)
        else:
            active, carries = self._any(others)
            self._spread(target, (active and not silent, carries))
        self._mark(node, self._flags(target))

    def _keep_history(self, node: Node, target: Node, slot: int | str, slots: int) -> None:
        """Let an in-place operator write into a copy, and that into the tensor, whose gradient goes
        on to what it was."""
        if slots > 1 or not isinstance(slot, int):
            raise ModelError(
                f"{node.target} changes several tensors that need a gradient, without one",
                "compute new tensors instead",
            )
        graph = self.module.graph
        with graph.inserting_before(node):
            made = _like(graph.call_function(aten.clone.default, (target,)), target)
        arguments = list(node.args)
        arguments[slot] = made
        node.args = tuple(arguments)
        node.replace_all_uses_with(target)
        with graph.inserting_after(node):
            through = _like(graph.call_function(BACKWARD_THROUGH, (made, target)), target)
        with graph.inserting_after(through):
            _like(graph.call_function(aten.copy_.default, (target, through)), target)

    def _stop_reads(self, node: Node, reads: Sequence[Node] | None = None) -> None:
        """Let a node read what carries a gradient that it must not have through a stop."""
        for read in node.all_input_nodes if reads is None else reads:
            if read in self.carries and (reads is not None or read not in self.active):
                with self.module.graph.inserting_before(node):
                    made = self.module.graph.call_function(BACKWARD_THROUGH, (read,))
                node.replace_input_with(read, _like(made, read))


def _behind_autograd(node: Node) -> ModelError:
    return ModelError(
        f"'{node.name}' shares its storage with a tensor that needs a gradient, and is changed in "
        "place without one (.data, detach(), no_grad)",
        "compute a new tensor instead",
    )


def _like(node: Node, other: Node) -> Node:
    """A new node with the metadata of another, whose value is like its own."""
    node.meta = dict(other.meta)
    return node


def _is_float(value: Any) -> bool:
    """Whether a value, or one of several, is a tensor that may have a gradient; what is not known
    may be one."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    if isinstance(value, list | tuple):
        return any(map(_is_float, value))
    return value is None


def _nodes_in(arguments: Any) -> list[Node]:
    """The nodes in nested arguments, in order, as often as they stand there."""
    if isinstance(arguments, Node):
        return [arguments]
    if isinstance(arguments, list | tuple):
        return [node for item in arguments for node in _nodes_in(item)]
    return []


def _is_view(node: Node) -> bool:
    """Whether a result shares the storage of the first input, or may."""
    return node.target is operator.getitem or may_be_view(node)


def _is_written_later(node: Node) -> bool:
    """Whether something writes into a tensor or a view of it."""
    return any(
        node in written_to(user) or (_is_view(user) and _is_written_later(user))
        for user in node.users
    )
