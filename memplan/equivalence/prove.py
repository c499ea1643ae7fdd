"""The proof: every node of a graph against a reference graph.

**Why a proof.** A rewritten file that runs and gives the same numbers has shown something about one
set of inputs, one build of the runtime and one machine. What a user wants to know is that it
computes the same for *all* inputs. For that, both files are enough: a rewrite repeats nodes, moves
them and adds a few of known kinds, so its file can be explained node by node. This module explains
it, without the plan and without a word of ``rewrite``'s notes but the level of fusions, dimensions
and the kind of session. A planner with a bug, or a file edited by hand, meets the same questions.

**How: value numbering.** Every tensor of both files gets a *term*: the operator, its attributes and
the terms of what it reads (:mod:`memplan.equivalence.terms`). Equal terms get equal numbers, and
equal numbers are equal bits, as far as a kernel gives the same bits twice. Both graphs are numbered
by the same code with the same table, the reference first. Names, order and repetition are not in a
term, so a recomputed node has the number of the node that it repeats, which is the whole proof of
it. Compilers number values to find what is redundant; here what is redundant on purpose is found to
be nothing else.

**What must hold.** Every node computes what a node of the reference computes (*kept*, or
*recomputed* where another does so already), or is explained by a rule of
:mod:`memplan.equivalence.rewrite_rules`, or is a pin. Every output has the term that it has in the
reference. A node that draws random numbers or has effects is told apart by its turn: each of them
runs as often as it did, and in the same order among its kind. What the reference knows of shapes
goes with the terms, so the other graph's own statements are never believed.

**Rules** are few and each proves a family: a fence, a shortened view, Dropout rebuilt from its
mask, a packed mask (every element has a bit of its own and comes back), two masks joined to one,
chunks (axis rules: a slice is a part, parts joined without a gap are the whole). A rule that is
wrong proves wrong files, so every one has files that look right and are not, and the proof has to
refuse all of them (``tests/unit/equivalence``).

**Up to rounding.** Sums in another order are equal in arithmetic and not in bits. They are never
*proved*: the terms concerned are listed as assumed up to rounding, and the verdict says so. Nor is
a kernel a function of its inputs' values alone, as measurements showed: one for the CPU packs a
weight that is a constant and then adds in another order, a product that a loop makes step by step
is the slice of the whole product only up to 128 terms, and a ``MaxPool`` that does not list its
indices is another kernel, which treats NaN otherwise. All of it is a table now, measured with
special values and with 1, 2 and 4 threads.

**What it does not do.** It says nothing of memory, and nothing of what a kernel really computes:
``validate`` runs both files as well, and where runs contradict the proof, that is a finding that
names the outputs. A changed loop is followed step by step where its states and sequences can be;
where they cannot, it is named as assumed, and its equality rests on the runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from memplan.equivalence.loop_proof import LOOPS, other_read, outer_reads
from memplan.equivalence.normal_forms import Applied, Constant
from memplan.equivalence.numbering import (
    Numbered,
    Numbering,
    occurrence_of,
    type_bytes,
    unseeded,
)
from memplan.equivalence.parts import Parts
from memplan.equivalence.terms import ABSENT, Fact, Terms
from memplan.ops.book import operator
from memplan.proto.metadata import node_metadata
from memplan.proto.nodes import all_nodes, domain_of, is_standard
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel
from memplan.units import counted

_OVERRIDABLE_FROM_IR = 4


@dataclass(frozen=True, slots=True)
class Equivalence:
    """What is proved of a graph and its reference.

    ``reason``: why they may differ; None where they do not. ``assumed``: loops whose bodies differ,
    which the rest of the proof takes to give what they gave. ``removed_outputs``: outputs of the
    reference that are not there. ``redrawn``: operators without a seed draw other random numbers
    than they would there. ``rounded``: tensors of the reference that are made in another way, equal
    in exact arithmetic, so equal up to rounding, as is all that follows from them; ``rounding``
    says which ways.
    Counts of nodes: ``kept`` as they were, ``recomputed`` a further time, ``explained`` by a rule
    (a shortened view, a rebuilt Dropout, a fence), ``pins``.
    """

    reason: str | None
    kept: int = 0
    recomputed: int = 0
    explained: int = 0
    pins: int = 0
    removed_outputs: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    redrawn: bool = False
    rounded: tuple[str, ...] = ()
    rounding: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether the graphs are equivalent by construction, nothing assumed."""
        taken = self.assumed or self.redrawn or self.rounded
        return self.reason is None and not taken

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return {
            "proved": self.proved,
            "reason": self.reason,
            "kept_nodes": self.kept,
            "recomputed_nodes": self.recomputed,
            "explained_nodes": self.explained,
            "pins": self.pins,
            "removed_outputs": list(self.removed_outputs),
            "assumed_loops": list(self.assumed),
            "random_numbers_in_other_order": self.redrawn,
            "assumed_up_to_rounding": list(self.rounded),
            "reasons_of_rounding": list(self.rounding),
        }


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two graphs. ``folder``: where its external data lies. ``facts``: what is known of
    its tensors, only read of the reference."""

    model: onnx.ModelProto
    folder: Path
    facts: Mapping[str, Fact] = field(default_factory=dict)


class _Refuted(Exception):
    """The graphs may differ; the text says where."""


def prove(reference: Side, other: Side, provider: str = "cpu") -> Equivalence:
    """Prove that ``other`` computes what ``reference`` does, or say where it may not.

    ``provider``: whose kernels run both; some rules rest on what one does with NaN.

    Never raises for what is in the models: whatever cannot be followed is a reason.
    """
    try:
        return _Proof(reference, other, provider).run()
    except _Refuted as refuted:
        return Equivalence(str(refuted))
    except (KeyError, OSError, ValueError, IndexError, RecursionError) as error:
        return Equivalence(f"the graphs cannot be followed: {type(error).__name__}: {error}")


class _Proof:
    """Numbers both graphs, and keeps what has yet to be explained of the second."""

    def __init__(self, reference: Side, other: Side, provider: str) -> None:
        self.first, self.second = reference.model, other.model
        _same_opsets(self.first, self.second)
        self.terms = Terms(provider)
        self.old = _numbering(reference, self.terms, reference.facts)
        self.new = replace(
            _numbering(other, self.terms, {}), parts=Parts(self.terms, self.old.opset)
        )
        self.old.graph(self.first.graph)
        self.terms.known = len(self.terms.forms)
        self.applied = Counter(n.applied for n in self.old.nodes)
        self.by_name = {occurrence_of(n.node): n for n in self.old.nodes}
        self.pending: dict[int, list[Numbered]] = {}
        self.explained: set[int] = set()  # by identity: nodes that look alike are several
        self.counts: Counter[str] = Counter()
        self.assumed: list[str] = []

    def run(self) -> Equivalence:
        """The proof; raises _Refuted where it fails."""
        self._inputs()
        self._number_second()
        if self.pending:
            raise _Refuted(self._difference(next(iter(self.pending.values()))[0]))
        removed = self._outputs()
        self._occurrences()
        rounded = self._rounded()
        return Equivalence(
            None,
            self.counts["kept"],
            self.counts["recomputed"],
            self.counts["explained"],
            self.counts["pins"],
            removed,
            tuple(self.assumed),
            _draws(self.old.nodes, among=self.new.nodes) != _draws(self.new.nodes),
            tuple(rounded),
            tuple(dict.fromkeys(rounded.values())),
        )

    def _rounded(self) -> dict[str, str]:
        """Names in the reference of what is equal up to rounding, and how it is made."""
        granted = self.terms.rounded
        names: dict[int, str] = {}
        for name, term in self.old.names.items():
            if term in granted:
                names.setdefault(term, name)
        named = ((names.get(term, name), how) for term, (name, how) in granted.items())
        return {name: how for name, how in named if name}

    def _inputs(self) -> None:
        types = {value.name: type_bytes(value) for value in self.first.graph.input}
        for value in self.second.graph.input:
            if types.get(value.name) != type_bytes(value):
                raise _Refuted(f"the graph input '{value.name}' is not one of the original's")

    def _number_second(self) -> None:
        new, graph = self.new, self.second.graph
        seen: Counter[Applied] = Counter()
        new.interface(graph)
        self._defaults()
        for node in graph.node:
            numbered = new.node(node, new.names, 0)
            self._classify(numbered, seen)
            new.nodes.append(numbered)
            seen[numbered.applied] += 1

    def _defaults(self) -> None:
        """Inputs that need not be given must have the default that they had."""
        for value in self.second.graph.input:
            if self.old.defaults.get(value.name) != self.new.defaults.get(value.name):
                raise _Refuted(f"the default of the graph input '{value.name}' is another")

    def _classify(self, numbered: Numbered, seen: Counter[Applied]) -> None:
        """Count a node under what it is, or put it among those that wait for an explanation."""
        node, applied = numbered.node, numbered.applied
        if applied.op == "Constant":
            return
        if applied in self.applied:
            again = seen[applied] >= self.applied[applied]
            if again and applied.occurrence:
                raise _Refuted(
                    f"node '{node.name}' ({node.op_type}) runs more than once, and is not known to "
                    "give the same twice"
                )
            self.counts["recomputed" if again else "kept"] += 1
        elif applied.op == "Size" and not applied.domain:
            self.counts["pins"] += 1
        elif numbered.by_rule and any(
            ABSENT < term < self.terms.known for term in numbered.outputs
        ):
            self.counts["explained"] += 1
            self._explain(applied.reads)
            self._wait(numbered)
        elif numbered.by_rule and numbered.outputs[0] in self.pending:
            self._stands_for(numbered)
        elif numbered.by_rule and isinstance(self.terms.forms[numbered.outputs[0]], Constant):
            self.counts["explained"] += 1  # the axes of fences: no elements
        elif applied.op in LOOPS and not applied.domain and self._assume(numbered):
            self._explain(applied.reads)  # what another loop stacks for it alone
        else:
            self._wait(numbered)

    def _stands_for(self, numbered: Numbered) -> None:
        """A node that gives, by a rule, what waits for an explanation; that waits on."""
        term = numbered.outputs[0]
        waiting = self.pending.pop(term)
        self.counts["explained"] += 1
        self._explain(numbered.applied.reads)
        self.pending[term] = waiting

    def _wait(self, numbered: Numbered) -> None:
        """Outputs that the reference does not have are to be explained by who reads them."""
        for term in numbered.outputs:
            if term >= self.terms.known:
                self.pending.setdefault(term, []).append(numbered)

    def _explain(self, reads: Iterable[int]) -> None:
        """What only led to an explained node needs no other explanation."""
        waiting = list(reads)
        while waiting:
            for numbered in self.pending.pop(waiting.pop(), ()):
                if id(numbered) in self.explained:
                    continue
                self.explained.add(id(numbered))
                self.counts["explained"] += 1
                waiting.extend((*numbered.outputs, *numbered.applied.reads))

    def _assume(self, numbered: Numbered) -> bool:
        """Take a loop with another body for the loop of that name, output by output name, if it
        reads nothing else."""
        twin = self.by_name.get(numbered.node.name)
        if twin is None or twin.node.op_type != numbered.node.op_type:
            return False
        inner = outer_reads(self.old.nodes, self.old.names, self.terms)
        other = other_read(numbered, twin, self.terms, self.new.names, inner)
        if other is not None:
            raise _Refuted(other)
        was = dict(zip(twin.node.output, twin.outputs, strict=False))
        for name in numbered.node.output:
            if name in was:
                self.new.names[name] = was[name]
        self.assumed.append(numbered.node.name)
        return True

    def _outputs(self) -> tuple[str, ...]:
        """Compare outputs; those of the reference that are not there."""
        was = {value.name: value for value in self.first.graph.output}
        now = {value.name: value for value in self.second.graph.output}
        for name, value in now.items():
            if name not in was:
                raise _Refuted(f"the graph output '{name}' is not one of the original's")
            if type_bytes(was[name]) != type_bytes(value):
                raise _Refuted(f"the graph output '{name}' has another type")
            if self.new.names[name] != self.old.names[name]:
                raise _Refuted(
                    f"the graph output '{name}' is {self._named(self.new.names[name])}, not what "
                    "the original computes under that name"
                )
        if list(now) != [name for name in was if name in now]:
            raise _Refuted("the graph outputs are in another order")
        return tuple(name for name in was if name not in now)

    def _named(self, term: int) -> str:
        """A term by a name that the original has for it."""
        name = next((n for n, t in self.old.names.items() if t == term), None)
        return "something else" if name is None else f"what the original computes as '{name}'"

    def _occurrences(self) -> None:
        """What has effects must run as often, and in the order, as it did."""
        was, now = ([_run(n) for n in side.nodes if n.effects] for side in (self.old, self.new))
        if was != now:
            raise _Refuted("nodes with effects beyond their outputs are gone or in another order")

    def _difference(self, numbered: Numbered) -> str:
        """Where a node that computes something new departs from what it seems to be a copy of."""
        node, applied = numbered.node, numbered.applied
        begin = f"node '{node.name}' ({node.op_type}) computes nothing that the original computes"
        names = (node_metadata(node).get("memplan.of", ""), node.name)
        twin = next((self.by_name[name] for name in names if name in self.by_name), None)
        if twin is None:
            return begin
        what = f"{begin}: unlike '{twin.node.name}' there, it"
        if (applied.domain, applied.op) != (twin.applied.domain, twin.applied.op):
            return f"{what} is not a {twin.node.op_type}"
        if applied.attributes != twin.applied.attributes:
            return f"{what} has other attributes"
        if len(applied.reads) != len(twin.applied.reads):
            inputs = counted(len(applied.reads), "input")
            return f"{what} has {inputs} instead of {len(twin.applied.reads)}"
        pairs = zip(applied.reads, twin.applied.reads, strict=True)
        slot = next((slot for slot, (mine, its) in enumerate(pairs) if mine != its), None)
        if slot is None and applied.occurrence != twin.applied.occurrence:
            return f"{what} is a further run of what is not known to give the same twice"
        if slot is None:
            other = "outputs" if applied.outputs != twin.applied.outputs else "bodies"
            return f"{what} has other {other}"
        mine, its = node.input[slot], twin.node.input[slot]
        if mine == its:
            return f"{what} reads a '{mine}' as input {slot} that is not what it was"
        return f"{what} reads '{mine}' as input {slot}, which is not '{its}'"


def reference_side(prepared: PreparedModel, other: onnx.ModelProto | None = None) -> Side:
    """A prepared model as the reference, with its types; shapes only where every run has them.

    ``other``: what it is the reference for. If that is for one size only, so is the reference.
    """
    if symbolic_dims(prepared.proto) and other is not None and not symbolic_dims(other):
        prepared = replace(prepared, proto=prepared.bound)
    exact = prepared.exact  # it looks at all inputs
    facts = {
        name: Fact(value.dtype, value.sizes if exact else None)
        for name, value in prepared.types.items()
    }
    return Side(prepared.proto, prepared.folder, facts)


def _numbering(side: Side, terms: Terms, facts: Mapping[str, Fact]) -> Numbering:
    model = side.model
    opset = next((o.version for o in model.opset_import if is_standard(o.domain)), 0)
    # Functions call each other, so one that is changed may change them all.
    contents = sorted(f.SerializeToString(deterministic=True) for f in model.functions)
    digest = hashlib.sha256(repr(contents).encode()).hexdigest()
    functions = {f"{f.domain}:{f.name}": digest for f in model.functions}
    fixed = model.ir_version < _OVERRIDABLE_FROM_IR
    return Numbering(terms, facts, side.folder, opset, functions, fixed=fixed)


def _same_opsets(first: onnx.ModelProto, second: onnx.ModelProto) -> None:
    versions = [
        {"" if is_standard(o.domain) else o.domain: o.version for o in model.opset_import}
        for model in (first, second)
    ]
    inner = all_nodes(second.graph.node)
    for domain in {domain_of(node) for node in inner}:
        if versions[0].get(domain) != versions[1].get(domain):
            raise _Refuted(f"the opset of '{domain or 'ai.onnx'}' is another")


def _draws(nodes: Iterable[Numbered], among: Iterable[Numbered] = ()) -> list[object]:
    """Nodes that draw random numbers without a seed of their own, in order; of ``among`` alone.

    All Dropouts share one stream. The others (``RandomNormal``, ...) start from their place in the
    file or body, which therefore counts.
    """
    kept = {n.applied.occurrence for n in among}
    found: list[object] = []
    for place, numbered in enumerate(nodes):
        if numbered.draws and (not kept or numbered.applied.occurrence in kept):
            drawn = unseeded(numbered.node, place)
            places = tuple(None if operator(key).shared_stream else where for key, where in drawn)
            found.append((numbered.applied.occurrence, places))
    return found


def _run(numbered: Numbered) -> object:
    """What tells a node with effects; a Scan may hand out less, and its terms tell it."""
    applied = numbered.applied
    return applied.occurrence if applied.op == "Scan" else applied
