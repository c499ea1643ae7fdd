"""May a new value be written over the old one? An answer from the file alone, with its own rules.

A training session can bind the output that is the next value of an input onto that input's buffer:
the node that makes it, its *maker*, then overwrites the old value. The results stay what they were
if nobody reads the old value afterwards and the maker itself reads it no later than it writes, in
any of its threads:

1. Pairs are one to one, an output of the graph that a node makes and an input of the graph, of one
   type and shape. (A session compares shapes once more, and fails where they differ.)
2. No node behind the maker reads the old value: neither by name, nor what shares its buffer (views,
   and views of those), nor from inside a body. The old value is not an output of the graph itself,
   nor is what shares its buffer: the caller would see it change.
3. The maker does not read the old value, or reads it index by index: arithmetic without a body,
   whose result has the type and shape of the old value, so that it is not broadcast.
4. No other output of the graph shares the buffer of the new value: the caller would hold it while
   the next step overwrites it.

Nodes run in the order of the list, which holds in a tuned session of a graph whose functions, and
operators without kernels, are inlined. What this module does not know is refused: makers with
bodies or of unknown domains, whatever unknown operators read, functions of the model (their nodes
run elsewhere), attributes that decide on the order. On purpose it shares no code with the simulator
and the planner, whose answer to the same question it checks; what an operator does with its buffers
stands once, in the operator book and the measured tables beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from memplan.ops.book import SHAPE_READERS, operator
from memplan.ops.memory import shared_buffers
from memplan.proto.nodes import is_constant, operator_key

_OWN_DOMAINS = frozenset({"", "ai.onnx"})
# Operators of ONNX Runtime's own: what they share is known.
_KNOWN_DOMAINS = _OWN_DOMAINS | {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
_Shape = tuple[int | str, ...]


def unsafe_pairs(model: onnx.ModelProto, pairs: Mapping[str, str]) -> dict[str, str]:
    """Which new values may not be written over the old ones, and why.

    Args:
        model: a checked model; its nodes run in the order of its list.
        pairs: graph output → the graph input whose next value it is.

    Returns:
        For each output that may not be written into the buffer of its input, the reason in words;
        empty if all may. It takes time in proportion to the model.
    """
    if not pairs:
        return {}
    whole = _unknown_order(model)
    if whole:
        return dict.fromkeys(pairs, whole)
    return _Checker(model, pairs).run()


def unlike_pairs(model: onnx.ModelProto, pairs: Mapping[str, str]) -> dict[str, str]:
    """The same, of those that no other order of nodes would make safe (rule 1)."""
    if not pairs:
        return {}
    checker = _Checker(model, pairs)
    found = {out: checker.mismatch(out, given) for out, given in pairs.items()}
    return {out: reason for out, reason in found.items() if reason}


def _unknown_order(model: onnx.ModelProto) -> str:
    """Why the session's order may not be that of the list; empty if it is."""
    functions = {(_domain(each.domain), each.name) for each in model.functions}
    for node in model.graph.node:
        if (_domain(node.domain), node.op_type) in functions:
            return f"the session puts the nodes of function '{node.op_type}' in another place"
        for attribute in node.attribute:
            if attribute.name.startswith("__"):  # __backwardpass, __critical_path_...
                return f"attribute '{attribute.name}' decides on the order of nodes"
    return ""


@dataclass(slots=True)
class _Life:
    """What happens to one old value: the last node that reads it, by place and words.

    ``slots``: where its maker reads it, ``inside``: in a body of the maker.
    """

    output: str
    maker: int
    last: int = -1
    last_reader: str = ""
    slots: list[int] = field(default_factory=list)
    inside: bool = False
    shared_out: str = ""
    handed_on: str = ""


class _Checker:
    """Walks the nodes once, and follows the old values and what shares their buffers."""

    def __init__(self, model: onnx.ModelProto, pairs: Mapping[str, str]) -> None:
        self.graph = model.graph
        self.pairs = pairs
        self.inputs = {value.name: value for value in self.graph.input}
        self.outputs = {value.name: value for value in self.graph.output}
        self.listed = Counter(value.name for value in self.graph.output)
        self.claims: dict[str, list[str]] = {}
        for out, given in pairs.items():
            self.claims.setdefault(given, []).append(out)
        self.maker: dict[str, int] = {}
        self.remade: set[str] = set()
        for place, node in enumerate(self.graph.node):
            for name in node.output:
                if name in self.maker or name in self.inputs:
                    self.remade.add(name)
                self.maker[name] = place
        self.reasons: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """The reasons of all pairs that are unsafe."""
        lives: dict[str, _Life] = {}
        for out, given in self.pairs.items():
            reason = self.mismatch(out, given)
            if reason:
                self.reasons[out] = reason
            else:
                lives[given] = _Life(out, self.maker[out])
        self._follow(lives)
        for given, life in lives.items():
            reason = self._judge(given, life)
            if reason:
                self.reasons[life.output] = reason
        return {out: self.reasons[out] for out in self.pairs if out in self.reasons}

    def mismatch(self, out: str, given: str) -> str:
        """Rule 1."""
        if self.listed[out] != 1:
            how_often = "no" if not self.listed[out] else "more than one"
            return f"the graph has {how_often} output '{out}'"
        if given not in self.inputs:
            return f"'{given}' is not an input of the graph"
        claims = self.claims[given]
        if len(claims) > 1:
            other = claims[claims[0] == out]
            return f"'{other}' would be written over '{given}' as well"
        if out not in self.maker:
            return f"no node makes '{out}'"
        if out in self.remade or given in self.remade:
            return f"'{out}' or '{given}' is made more than once"
        if given in self.listed:
            return f"'{given}' is an output of the graph as well"
        made, taken = self.outputs[out], self.inputs[given]
        if _element(made) != _element(taken):
            return f"'{out}' and '{given}' have different types"
        if _element(made) in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            return f"'{given}' is not a tensor of numbers"
        shapes = _shape(made), _shape(taken)
        if None in shapes:
            return f"the shape of '{given}' or '{out}' is not stated"
        return "" if shapes[0] == shapes[1] else f"'{out}' and '{given}' have different shapes"

    def _follow(self, lives: Mapping[str, _Life]) -> None:
        """Find the readers of every old value, and the outputs that share with old or new."""
        old = dict(zip(lives, lives, strict=True))
        new = {life.output: given for given, life in lives.items()}
        for place, node in enumerate(self.graph.node):
            if operator_key(node) in SHAPE_READERS:  # never what is in the buffer, at any time
                continue
            reads: list[tuple[str, int | None]] = [(name, k) for k, name in enumerate(node.input)]
            reads += [(name, None) for name in sorted(_read_inside(node))]
            for name, slot in reads:
                if name in old:
                    self._read(lives[old[name]], place, name, slot)
                elif name in new and slot is not None:
                    self._pass_on(lives[new[name]], place, name)
            if any(name in old or name in new for name, _ in reads):
                self._share(node, old, new, lives)

    def _read(self, life: _Life, place: int, name: str, slot: int | None) -> None:
        """A node reads the old value, or a view of it, or (slot None) its body does."""
        node = self.graph.node[place]
        words = _describe(node, place)
        life.last = place
        life.last_reader = f"{words if slot is not None else f'a body of {words}'} reads '{name}'"
        if place != life.maker:
            self._pass_on(life, place, name)
        elif slot is None:
            life.inside = True
        else:
            life.slots.append(slot)

    def _pass_on(self, life: _Life, place: int, name: str) -> None:
        """A node that may give what it reads to others, nobody knows how."""
        node = self.graph.node[place]
        words = f"{_describe(node, place)} may hand '{name}' on"
        if operator(operator_key(node)).into_sequence:
            life.handed_on = life.handed_on or f"{words} in a sequence"
        elif node.domain not in _KNOWN_DOMAINS:
            life.handed_on = life.handed_on or f"{words}: its domain, '{node.domain}', is unknown"

    def _share(
        self,
        node: onnx.NodeProto,
        old: dict[str, str],
        new: dict[str, str],
        lives: Mapping[str, _Life],
    ) -> None:
        """Note which outputs of a node share a buffer that is followed."""
        if node.domain not in _KNOWN_DOMAINS:
            return
        for made, read in shared_buffers(operator_key(node)):
            if made >= len(node.output) or read >= len(node.input):
                continue
            out, name = node.output[made], node.input[read]
            for followed, words in ((old, "old"), (new, "new")):
                given = followed.get(name)
                if not out or given is None or out == lives[given].output:
                    continue  # the maker of the new value copies where it is
                followed[out] = given
                if out in self.listed and not lives[given].shared_out:
                    lives[given].shared_out = f"output '{out}' may share the {words} value's buffer"

    def _judge(self, given: str, life: _Life) -> str:
        """Rules 2 to 4."""
        maker = self.graph.node[life.maker]
        words = _describe(maker, life.maker)
        if life.last > life.maker:
            return f"{life.last_reader} after {words} has made '{life.output}'"
        if life.shared_out or life.handed_on:
            return life.shared_out or life.handed_on
        if maker.domain not in _KNOWN_DOMAINS:
            return f"{words} is of an unknown domain, '{maker.domain}'"
        if _bodies(maker):
            return f"{words} has a body, which may write before it has read"
        if is_constant(maker):
            return f"'{life.output}' is a constant"
        if life.inside or not life.slots:
            return f"a body of {words} reads '{given}'" if life.inside else ""
        return _not_by_index(maker, life.slots, given, words)


def _not_by_index(maker: onnx.NodeProto, slots: Sequence[int], given: str, words: str) -> str:
    """Why the maker may overwrite what it has yet to read; rule 3. Types and shapes are equal."""
    entry = operator(operator_key(maker))
    allowed = entry.overwrites
    if not allowed:
        return f"{words} may read '{given}' after it has overwritten it"
    if entry.in_passes and len(maker.input) > len(allowed):
        return f"{words} has more than {len(allowed)} inputs, '{given}' among them"
    if any(slot not in allowed for slot in slots):
        return f"{words} reads '{given}' for something other than its own elements"
    return ""


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def _read_inside(node: onnx.NodeProto) -> set[str]:
    """Names of the graph around that the bodies of a node read."""
    found: set[str] = set()
    for body in _bodies(node):
        read = {value.name for value in body.output}
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            read.update(inner.input)
            read |= _read_inside(inner)
            own.update(inner.output)
        found |= read - own
    return found


def _domain(name: str) -> str:
    """A domain; that of ONNX's own operators has two names."""
    return "" if name in _OWN_DOMAINS else name


def _describe(node: onnx.NodeProto, place: int) -> str:
    return f"{node.name or f'node {place}'} ({node.op_type})"


def _element(value: onnx.ValueInfoProto) -> int:
    """The element type of a tensor; 0 of anything else."""
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0


def _shape(value: onnx.ValueInfoProto) -> _Shape | None:
    """Sizes, and names of sizes that are not stated; None where neither is."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    found: list[int | str] = []
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            found.append(dim.dim_value)
        elif dim.dim_param:
            found.append(dim.dim_param)
        else:
            return None
    return tuple(found)
