"""A graph's tensors by term: node after node, with its bodies.

Both graphs are numbered by the same code with the same :class:`~memplan.equivalence.terms.Terms`,
the reference first. What it knows of shapes goes with the terms, so the other graph's own
statements are never believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from memplan.equivalence.facts import inferred
from memplan.equivalence.loop_call import Call
from memplan.equivalence.normal_forms import (
    Applied,
    Broadcast,
    Core,
    Final,
    Formal,
    Input,
    Opaque,
    Output,
    Stack,
    State,
)
from memplan.equivalence.parts import Parts, product_of
from memplan.equivalence.rewrite_rules import same_as
from memplan.equivalence.scans import Steps, added_at_once, read_scan
from memplan.equivalence.terms import (
    ABSENT,
    BY_STEPS,
    PACKED,
    UNKNOWN,
    Fact,
    Terms,
    attributes_key,
    plain_attributes,
)
from memplan.ops.book import CONTROL_FLOW_OPS, PRODUCTS, RANDOM_OPS, operator
from memplan.ops.memory import has_effects, packed_inputs
from memplan.proto.nodes import all_nodes, domain_of, is_constant, operator_key, subgraphs
from memplan.shapes.fold import constant_value

_SEED = "seed"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A node, what it applies, and its output terms by slot (ABSENT where one is left out).

    ``by_rule``: whether the first output is that of another node, by a rule.
    """

    node: onnx.NodeProto
    applied: Applied
    outputs: tuple[int, ...]
    by_rule: bool

    @property
    def effects(self) -> bool:
        """Whether it or a body does more than make its outputs, as far as anybody knows."""
        return any(has_effects(operator_key(node)) for node in all_nodes([self.node]))

    @property
    def draws(self) -> bool:
        """Whether it takes numbers from the stream of random numbers that all nodes share."""
        return any(True for _ in unseeded(self.node, 0))


@dataclass(slots=True)
class Numbering:
    """The terms of one graph by tensor name, in ``names``; ``nodes`` in file order; ``defaults``
    of graph inputs that need not be given.

    Args:
        terms: shared by the graphs that are compared.
        facts: what is known of the graph's tensors; none for a graph that is not believed.
        folder: where external data lies.
        opset: of the standard operators.
        functions: digests of model-local functions, with all that they may call, by
            ``domain:name``.
        parts: what follows chunks; None for the reference, which has none.
        fixed: whether constants that are graph inputs as well cannot be replaced (IR before 4).
    """

    terms: Terms
    facts: Mapping[str, Fact]
    folder: Path
    opset: int
    functions: Mapping[str, str] = field(default_factory=dict)
    parts: Parts | None = None
    fixed: bool = False
    names: dict[str, int] = field(default_factory=dict)
    defaults: dict[str, int] = field(default_factory=dict)
    nodes: list[Numbered] = field(default_factory=list)
    _constants_in_scope: set[str] = field(default_factory=set)

    def graph(self, graph: onnx.GraphProto) -> None:
        """Number the inputs, constants and nodes of a main graph."""
        self.interface(graph)
        for node in graph.node:
            self.nodes.append(self.node(node, self.names, 0))

    def interface(self, graph: onnx.GraphProto) -> None:
        """Number the inputs and constants of a main graph.

        The default of an input, which a run may replace, is not its value.
        """
        for value in graph.input:
            form = Input(value.name, type_bytes(value))
            self.names[value.name] = self.terms.of(form, self.facts.get(value.name, UNKNOWN))
        constants: dict[str, int] = {}
        self._constants(graph, constants)
        self.defaults = {name: term for name, term in constants.items() if name in self.names}
        self.names = {**constants, **self.names}
        if not self.fixed:
            self._constants_in_scope.difference_update(self.defaults)

    def _constants(self, graph: onnx.GraphProto, names: dict[str, int]) -> None:
        """Number the initializers of a graph."""
        for tensor in graph.initializer:
            names.setdefault(tensor.name, self.terms.tensor(tensor, self.folder))
            self._constants_in_scope.add(tensor.name)
        for sparse in graph.sparse_initializer:
            content = sparse.SerializeToString(deterministic=True)
            names[sparse.values.name] = self.terms.of(Opaque(content))

    def node(self, node: onnx.NodeProto, names: dict[str, int], depth: int) -> Numbered:
        """Number a node's outputs; ``names`` are those in its scope.

        Raises:
            KeyError: it reads a name that nothing defines.
        """
        reads = tuple(names[name] if name else ABSENT for name in node.input)
        while reads and reads[-1] == ABSENT:
            reads = reads[:-1]
        if is_constant(node):
            term = self._constant_node(node)
            names[node.output[0]] = term
            self._constants_in_scope.add(node.output[0])
            return Numbered(node, Applied("", "Constant", (term,)), (term,), True)
        if node.op_type == "Scan" and not domain_of(node) and ABSENT not in reads:
            applied, found = self._scan(node, reads, names, depth)
            facts = self._facts(node, applied, names, depth)
        else:
            applied = self._applied(node, reads, names, depth)
            facts = self._facts(node, applied, names, depth)
            found = self._found(node, applied, facts[0] if facts else UNKNOWN, depth)
        outputs = []
        for slot, (name, fact) in enumerate(zip(node.output, facts, strict=True)):
            if not name:
                outputs.append(ABSENT)
                continue
            term = found[slot] if slot in found else self.terms.output(applied, slot, fact)
            self.terms.learn(term, fact)
            outputs.append(term)
            names[name] = term
            self._constants_in_scope.discard(name)
        if self.parts is not None and not depth and not found:
            self.parts.note_slice(applied, plain_attributes(node), outputs[0])
        if self.parts is None and not depth:
            self._note_product(node, applied, outputs)
        return Numbered(node, applied, tuple(outputs), bool(found))

    def _facts(
        self, node: onnx.NodeProto, applied: Applied, names: Mapping[str, int], depth: int
    ) -> Sequence[Fact]:
        """What is known of a node's outputs: of the reference what it was given, of the other graph
        what follows from what is known of the reference."""
        if depth:
            return (UNKNOWN,) * len(node.output)
        if self.parts is None:
            return [self.facts.get(name, UNKNOWN) for name in node.output]
        if applied in self.terms.first or self.terms.has(Output(applied, 0)):
            return (UNKNOWN,) * len(node.output)
        return inferred(node, names, self.terms, self.opset)

    def _found(
        self, node: onnx.NodeProto, applied: Applied, known: Fact, depth: int
    ) -> dict[int, int]:
        """Output terms by a rule, or of an operator on chunks. What the reference computes is none
        of the latter."""
        row = self._row_by_row(node, applied) if self.parts is not None and depth else {}
        if row:
            return row
        first = self._by_rule(node, applied, known)
        theirs = (first is not None and first < self.terms.known) or applied in self.terms.first
        if (
            self.parts is not None
            and not depth
            and not theirs
            and not self.terms.has(Output(applied, 0))
        ):
            found = self.parts.outputs(applied, plain_attributes(node), len(node.output))
            if found:
                return found
        if first is None:
            return {}
        self.terms.first[applied] = first
        return {0: first}

    def _row_by_row(self, node: onnx.NodeProto, applied: Applied) -> dict[int, int]:
        """The slice of a product that the reference makes as a whole, up to rounding."""
        if self.terms.has(Output(applied, 0)):
            return {}
        row, whole = self.terms.rows.get(replace(applied, packed=()), (ABSENT, ABSENT))
        if row == ABSENT:
            return {}
        self.terms.grant(whole, BY_STEPS, node.output[0])
        return {0: row}

    def _note_product(self, node: onnx.NodeProto, applied: Applied, outputs: list[int]) -> None:
        product = product_of(applied, plain_attributes(node), self.terms)
        if product is not None and outputs[0] != ABSENT:
            self.terms.products.setdefault(product, outputs[0])

    def _by_rule(self, node: onnx.NodeProto, applied: Applied, known: Fact) -> int | None:
        if applied.domain or not node.output:
            return None
        if applied in self.terms.first:
            return self.terms.first[applied]
        attributes, reads = plain_attributes(node), applied.reads
        call = Call(node.op_type, reads, attributes, self.opset, self.terms, known, applied)
        return self._filled(applied, call) if node.op_type == "ConstantOfShape" else same_as(call)

    def _filled(self, applied: Applied, call: Call) -> int | None:
        """One value, repeated: known by that and the shape, however the shape is written."""
        shape = call.ints(0)
        if shape is None or 0 in shape:
            return None
        value = self.terms.output(replace(applied, reads=()), 0, Fact(call.result.dtype, ()))
        return self.terms.of(Broadcast(value, tuple(shape)), Fact(call.result.dtype, tuple(shape)))

    def _scan(
        self, node: onnx.NodeProto, reads: tuple[int, ...], outer: dict[str, int], depth: int
    ) -> tuple[Applied, dict[int, int]]:
        """What a Scan applies, and the terms of its outputs by slot."""
        call, inside = read_scan(node, reads, self.terms), depth + 1
        body = next(a.g for a in node.attribute if a.name == "body")
        steps = Steps(self.terms, self.opset, inside, call.steps)
        symbols = [
            self.terms.of(State(inside, place, type_bytes(value)), UNKNOWN, 1 << inside)
            for place, value in enumerate(body.input[: len(call.states)])
        ]
        symbols += [steps.element(*sequence) for sequence in call.sequences]
        self._constants_in_scope.difference_update(value.name for value in body.input)
        names = dict(outer)
        names.update(zip((value.name for value in body.input), symbols, strict=True))
        results, marked = self._inside(body, names, inside)
        updates = results[: len(call.states)]
        lengths = (
            () if call.steps is not None else tuple((t, axis) for t, axis, _ in call.sequences)
        )
        free = self._free((*call.states, *results, *(t for t, _ in lengths)), inside)
        occurrence = occurrence_of(node) if marked else ""
        form = Core(call.steps, lengths, inside, call.states, updates, marked, occurrence)
        core = self.terms.of(form, UNKNOWN, free)
        found = {
            place: self.terms.of(Final(core, place), UNKNOWN, free)
            for place in range(len(call.states))
        }
        for place, (axis, mirrored) in enumerate(call.stacked, len(call.states)):
            stack = Stack(core, results[place], axis, mirrored)
            found[place] = self.terms.of(stack, UNKNOWN, free)
        outputs = tuple(range(len(node.output)))
        made = Applied("", "Scan", reads, (), ((core, results),), outputs, (), occurrence, free)
        return made, found

    def _free(self, terms: Iterable[int], inside: int = 0) -> int:
        """Depths of the symbols in some terms, but for those of a body at depth ``inside``."""
        free = 0
        for term in terms:
            free |= self.terms.free[term] if term != ABSENT else 0
        return free & ~(1 << inside) if inside else free

    def _constant_node(self, node: onnx.NodeProto) -> int:
        attribute = node.attribute[0]
        if attribute.name == "value":
            return self.terms.tensor(attribute.t, self.folder)
        if (value := constant_value(attribute)) is not None:
            return self.terms.constant(value)
        return self.terms.of(Opaque(attributes_key([attribute], self.folder, self.terms)))

    def _applied(
        self, node: onnx.NodeProto, reads: tuple[int, ...], names: dict[str, int], depth: int
    ) -> Applied:
        key = operator_key(node)
        plain = [a for a in node.attribute if not (a.HasField("g") or a.graphs)]
        bodies = tuple(
            (name, *self._body(body, name, names, depth + 1))
            for name, body in sorted(_bodies(node), key=lambda named: named[0])
        )
        own = any(marked for *_, marked in bodies)
        function = f"{self.functions.get(key, '')} {node.overload}"
        applied = Applied(
            domain_of(node),
            node.op_type,
            reads,
            (*attributes_key(plain, self.folder, self.terms), function),
            bodies,
            _telling_outputs(node, key),
            self._packed(node, key),
            occurrence_of(node) if own or not _is_function(key) else "",
            self._free(reads) | self._free((t for _, _, o, _ in bodies for t in o), depth + 1),
        )
        return self._of_any_weights(node, applied) if self._packable(node, key) else applied

    def _packable(self, node: onnx.NodeProto, key: str) -> Iterable[int]:
        """The slots in which constants make a difference: of a function, any of them may."""
        if key in self.functions:
            return range(len(node.input))
        return packed_inputs(key, self.terms.provider)

    def _packed(self, node: onnx.NodeProto, key: str) -> tuple[int, ...]:
        given, constants = node.input, self._constants_in_scope
        slots = self._packable(node, key)
        return tuple(s for s in slots if s < len(given) and given[s] in constants)

    def _of_any_weights(self, node: onnx.NodeProto, applied: Applied) -> Applied:
        """The operator, as the reference has it where that differs in rounding alone."""
        if self.parts is None:
            self.terms.kernels.setdefault(replace(applied, packed=()), applied)
            return applied
        known = self.terms.as_known(applied)
        if known.packed != applied.packed and not self._added_at_once(node, applied):
            for slot, name in enumerate(node.output):
                self.terms.grant(self.terms.output(known, slot), PACKED, name)
        return known

    def _added_at_once(self, node: onnx.NodeProto, applied: Applied) -> bool:
        """Whether it is a product so short that all kernels add it alike."""
        first, second = (self.terms.fact(t).shape for t in (*applied.reads, ABSENT, ABSENT)[:2])
        if applied.key not in PRODUCTS or not first or second is None or len(second) != 2:
            return False
        turned = bool(plain_attributes(node).get("transB", 0))
        inner, columns = second[:: -1 if turned else 1]
        return inner > 0 and added_at_once(math.prod(first) // inner, inner, columns)

    def _body(
        self, body: onnx.GraphProto, attribute: str, outer: Mapping[str, int], depth: int
    ) -> tuple[int, tuple[int, ...], tuple[Applied, ...]]:
        """How many inputs a body has, its output terms, and what in it is no function.

        An input is known by its place, so that names do not matter.
        """
        names = dict(outer)
        for place, value in enumerate(body.input):
            form = Formal(depth, attribute, place, type_bytes(value))
            names[value.name] = self.terms.of(form, UNKNOWN, 1 << depth)
            self._constants_in_scope.discard(value.name)
        return len(body.input), *self._inside(body, names, depth)

    def _inside(
        self, body: onnx.GraphProto, names: dict[str, int], depth: int
    ) -> tuple[tuple[int, ...], tuple[Applied, ...]]:
        """Output terms of a body whose inputs are in ``names``, and what in it is no function."""
        own: dict[str, int] = {}
        self._constants(body, own)
        names.update(own)
        nodes = [self.node(node, names, depth) for node in body.node]
        marked = tuple(n.applied for n in nodes if n.applied.occurrence)
        return tuple(names[value.name] for value in body.output), marked


def type_bytes(value: onnx.ValueInfoProto) -> bytes:
    """A tensor's type as the file states it, in a form to compare."""
    content: bytes = value.type.SerializeToString(deterministic=True)
    return content


def _bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The bodies of a node with the names of their attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, body in enumerate(attribute.graphs):
            yield f"{attribute.name} {index}", body


def unseeded(node: onnx.NodeProto, place: int) -> Iterator[tuple[str, int]]:
    """Operators without a seed of their own that draw random numbers, in a node and its bodies,
    each with its place among the nodes of its graph (``place``: that of the node)."""
    own = any(attribute.name == _SEED for attribute in node.attribute)
    if operator_key(node) in RANDOM_OPS and not own:
        yield operator_key(node), place
    for body in subgraphs(node):
        for index, inner in enumerate(body.node):
            yield from unseeded(inner, index)


def _telling_outputs(node: onnx.NodeProto, key: str) -> tuple[int, ...]:
    """The outputs without which it might give others: those that it cannot leave out, and those
    that choose the kernel."""
    entry = operator(key)
    optional = entry.optional_outputs
    named = {slot for slot, name in enumerate(node.output) if name and slot not in optional}
    return tuple(sorted(named | set(range(1, min(entry.listed_outputs, len(node.output))))))


def _is_function(key: str) -> bool:
    """Whether equal inputs give equal outputs, and nothing else happens."""
    return key in CONTROL_FLOW_OPS or not (key in RANDOM_OPS or has_effects(key))


def occurrence_of(node: onnx.NodeProto) -> str:
    """What tells this node from another that looks the same."""
    return node.name or next((name for name in node.output if name), "?")
