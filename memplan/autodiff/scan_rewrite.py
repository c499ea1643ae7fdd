"""An existing pair of a forward and a backward ``Scan``: what the one stores is made again in the
other.

The backward Scan reads outputs of the forward one step by step, last step first. Those that are
dropped are computed in its body by clones of the forward body's nodes, from states and sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import onnx

from memplan.autodiff.bodies import body_model, names_read, rename_reads
from memplan.autodiff.emitter import FORWARD_KEY, Emitter, Scope
from memplan.autodiff.expansions import emitter_for
from memplan.autodiff.projections import find_projection
from memplan.autodiff.recompute import Cell, Kept, ScanRecompute, decide
from memplan.autodiff.scan_call import ScanCall, input_types, read_scan, scan_attributes, slice_type
from memplan.autodiff.scan_call import Sequence as Scanned
from memplan.autodiff.scan_stash import ScanStash, run_again
from memplan.autodiff.types import TensorType, write_type
from memplan.graph.phases import KEY as PHASE_KEY
from memplan.graph.types import Phase


@dataclass(frozen=True, slots=True)
class Link:
    """A slice that the backward body reads as ``formal``: tensor ``inner`` of the forward body at
    the same step."""

    formal: str
    inner: str


def recompute_in_scans(model: onnx.ModelProto, wish: ScanRecompute) -> onnx.ModelProto:
    """``model`` with tensors of recurrent cells made again instead of stored.

    Args:
        model: a training graph whose nodes are named; it is not changed.
        wish: which tensors, by their names in the forward bodies.

    Raises:
        UsageError: a name is in no pair, or only some outputs of an operator are named.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in list(result.graph.node):
        if node.op_type == "Scan":
            _rewrite_backward(result, node.name, wish)
    wish.require_matches()
    return result


def links_between(forward: ScanCall, backward: ScanCall) -> list[Link]:
    """Slices that the backward Scan reads of the forward one, at the step that made them."""
    found = []
    known: set[str] = set()
    notes = {item.key: item.value for item in backward.node.metadata_props}
    if notes.get(FORWARD_KEY) == forward.node.name:  # then equal names are equal tensors
        known = {value.name for value in forward.body.input}
        known |= {name for node in forward.body.node for name in node.output}
    for item, formal in zip(backward.sequences, backward.slice_inputs, strict=True):
        for other, inner in _sequences_of(forward):
            place = (other.name, other.axis, 1 - other.direction)
            if place == (item.name, item.axis, item.direction):
                found.append(Link(formal, inner))
                break
        else:
            if formal in known:  # memplan's own, behind a shift or a product
                found.append(Link(formal, formal))
    return found


def _sequences_of(call: ScanCall) -> Iterable[tuple[Scanned, str]]:
    yield from zip(call.stacked, map(call.root, call.slice_outputs), strict=False)
    yield from zip(call.sequences, call.slice_inputs, strict=True)


def _rewrite_backward(model: onnx.ModelProto, name: str, wish: ScanRecompute) -> None:
    """Change the Scan of that name and its forward one, if it is the backward of one."""
    emitter = emitter_for(model, ())
    nodes = {node.name: node for node in model.graph.node}
    backward = read_scan(nodes[name], emitter)
    if _is_forward(nodes[name]):
        return
    for node in model.graph.node:
        if node.name == name:
            return
        if node.op_type != "Scan":
            continue
        forward = read_scan(node, emitter)
        links = links_between(forward, backward)
        made = {out for item in forward.body.node for out in item.output}
        if any(link.inner in made for link in links):
            _Pair(model, emitter, forward, backward, links, wish).rewrite()
            return


def _is_forward(node: onnx.NodeProto) -> bool:
    """Whether the node says so; a second layer may read the first one's steps backwards, too."""
    notes = {item.key: item.value for item in node.metadata_props}
    return bool(notes.get(PHASE_KEY, Phase.BACKWARD) != Phase.BACKWARD)


class _Pair:
    """A forward and a backward Scan of the main graph."""

    def __init__(
        self,
        model: onnx.ModelProto,
        emitter: Emitter,
        forward: ScanCall,
        backward: ScanCall,
        links: Sequence[Link],
        wish: ScanRecompute,
    ) -> None:
        self.model = model
        self.outer = emitter
        self.forward = forward
        self.backward = backward
        self.links = {link.inner: link.formal for link in reversed(links)}
        self.wish = wish
        types = input_types(forward, emitter)
        inner = emitter_for(body_model(emitter, forward.body, types), (), None, forward.node.name)
        self.types = inner.types
        self.stash = ScanStash(emitter, forward, self.types)

    def rewrite(self) -> None:
        """Drop what is not wanted, and make it again."""
        kept = self._kept()
        before = {formal: inner for inner, formal in self.links.items()}
        items = dict(zip(self.backward.slice_inputs, self.backward.sequences, strict=True))
        stays = {formal: item for formal, item in items.items() if formal not in before}
        renamed: dict[str, str] = {}
        inputs = {value.name: value for value in self.backward.body.input}
        clones: list[onnx.NodeProto] = []
        with self.outer.scope(Scope(f"{self.forward.node.name}/grad", {PHASE_KEY: Phase.BACKWARD})):
            used = sorted(kept.used)
            if not (stays or used or kept.stored):  # a Scan must read something to count its steps
                used = [self.forward.slice_inputs[0]]
            for inner in (*used, *kept.stored):
                formal = self.links.get(inner)
                if formal is not None:
                    stays[formal] = items[formal]
                    renamed[inner] = formal
                    continue
                formal = self._new_formal(inner)
                renamed[inner] = formal
                source = self._projection(inner)
                if source is not None:
                    clones.append(source.node)
                    rename_outputs(source.node, {inner: formal})
                    inputs[source.formal] = _value(source.formal, self._slice(source.source))
                    stays[source.formal] = _backwards(source.source)
                    continue
                inputs[formal] = _value(formal, self.types[inner])
                stays[formal] = self.stash.sequence(inner)
        clones += self._clones(kept, renamed)
        self._replace_backward(stays, inputs, clones)
        self._drop_unread()

    def _kept(self) -> Kept:
        """What of the forward step stays, and what runs again."""
        readers: Counter[str] = Counter(value.name for value in self.model.graph.output)
        for node in self.model.graph.node:
            if node.name != self.backward.node.name:
                readers.update(names_read([node]))
        shared = replace(
            self.forward,
            stacked=tuple(
                item if readers[item.name] else replace(item, name="")
                for item in self.forward.stacked
            ),
        )
        read = names_read(self.backward.body.node)
        read |= {value.name for value in self.backward.body.output}
        nodes = list(self.forward.body.node)
        cell = Cell(
            nodes=nodes,
            inputs=self.forward.state_inputs + self.forward.slice_inputs,
            needed=frozenset(inner for inner, formal in self.links.items() if formal in read),
            stacked=frozenset(
                name for node in nodes for name in node.output if shared.stacked_as(name)
            ),
            types=self.types,
        )
        return decide(cell, self.wish)

    def _new_formal(self, inner: str) -> str:
        """A name for a tensor of the forward body in the backward body."""
        body = self.backward.body
        taken = {value.name for value in body.input} | {t.name for t in body.initializer}
        taken |= {name for node in body.node for name in node.output}
        return self.outer.fresh(f"{inner}/again") if inner in taken else inner

    def _projection(self, inner: str):  # type: ignore[no-untyped-def]
        if self.wish.text != "all" or inner not in self.forward.slice_inputs:
            return None
        return find_projection(self.outer, self.forward.kept_as(inner), inner)

    def _slice(self, item: Scanned) -> TensorType:
        return slice_type(self.outer.tensor(item.name).type, item.axis)

    def _clones(self, kept: Kept, renamed: dict[str, str]) -> list[onnx.NodeProto]:
        """The nodes that run again, reading and writing what the backward body calls them."""
        names = dict(renamed)
        clones = run_again(kept, self.outer)
        for clone in clones:
            for name in filter(None, clone.output):
                names[name] = self.links.get(name) or self._new_formal(name)
        constants = {tensor.name: tensor for tensor in self.forward.body.initializer}
        for name in sorted(names_read(clones) & constants.keys()):
            names[name] = self._new_formal(name)
            self.backward.body.initializer.append(constants[name])
            self.backward.body.initializer[-1].name = names[name]
        for clone in clones:
            rename_reads(clone, names)
            rename_outputs(clone, names)
        return clones

    def _replace_backward(
        self,
        stays: dict[str, Scanned],
        inputs: dict[str, onnx.ValueInfoProto],
        clones: list[onnx.NodeProto],
    ) -> None:
        """Write the backward Scan anew, behind the nodes that were made for it."""
        call = self.backward
        node, body = call.node, call.body
        states = [inputs[name] for name in call.state_inputs]
        wanted = [*states, *(inputs[formal] for formal in stays)]
        values = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in wanted]
        nodes = [*clones, *body.node]
        copies = [onnx.NodeProto.FromString(item.SerializeToString()) for item in nodes]
        del body.input[:], body.node[:]
        body.input.extend(values)
        body.node.extend(copies)
        graph = onnx.GraphProto()
        graph.CopyFrom(body)
        node.input[:] = [*call.initials, *(item.name for item in stays.values())]
        attributes = scan_attributes(graph, list(stays.values()), list(call.stacked))
        del node.attribute[:]
        node.attribute.extend(
            onnx.helper.make_attribute(name, value) for name, value in attributes.items()
        )
        order: list[onnx.NodeProto] = []
        for item in self.model.graph.node:
            order += [*self.outer.nodes, item] if item.name == node.name else [item]
        kept = [onnx.NodeProto.FromString(item.SerializeToString()) for item in order]
        del self.model.graph.node[:]
        self.model.graph.node.extend(kept)
        self.model.graph.initializer.extend(self.outer.initializers.values())
        self._merge()

    def _merge(self) -> None:
        """Let those who shift the states behind the new nodes read what these made."""
        new = {item.name for item in self.outer.nodes}
        names: dict[str, str] = {}
        seen: dict[tuple[object, ...], str] = {}
        kept: list[onnx.NodeProto] = []
        outputs = {value.name for value in self.model.graph.output}
        for item in self.model.graph.node:
            rename_reads(item, names)
            key = self._key(item)
            if item.name in new:
                seen.setdefault(key, item.output[0])
            elif key in seen and item.output[0] not in outputs:
                names[item.output[0]] = seen[key]
                continue
            kept.append(item)
        copies = [onnx.NodeProto.FromString(item.SerializeToString()) for item in kept]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)

    def _key(self, node: onnx.NodeProto) -> tuple[object, ...]:
        """Equal for nodes that compute the same."""
        known = self.outer.constants
        reads = (known[n].tobytes() if n in known else n for n in node.input)
        attributes = sorted(item.SerializeToString() for item in node.attribute)
        return (node.domain, node.op_type, *reads, *attributes)

    def _drop_unread(self) -> None:
        """Take outputs that nobody reads any more off the forward Scan."""
        graph = self.model.graph
        node = next(item for item in graph.node if item.name == self.forward.node.name)
        read = names_read(graph.node) | {value.name for value in graph.output}
        call = read_scan(node, self.outer)
        states = len(call.initials)
        kept = [k for k, item in enumerate(call.stacked) if item.name in read]
        outputs = [call.body.output[k] for k in (*range(states), *(states + k for k in kept))]
        body = onnx.GraphProto()
        body.CopyFrom(call.body)
        del body.output[:]
        body.output.extend(outputs)
        _drop_dead(body)
        attributes = scan_attributes(body, list(call.sequences), [call.stacked[k] for k in kept])
        node.output[:] = [*call.finals, *(call.stacked[k].name for k in kept)]
        del node.attribute[:]
        node.attribute.extend(
            onnx.helper.make_attribute(name, value) for name, value in attributes.items()
        )
        for name in (*node.output, *(out for item in self.outer.nodes for out in item.output)):
            if name and not any(value.name == name for value in (*graph.value_info, *graph.output)):
                graph.value_info.append(_value(name, self.outer.tensor(name).type))
        made = {name for item in graph.node for name in item.output}
        stale = [value for value in graph.value_info if value.name not in made | read]
        for value in stale:
            graph.value_info.remove(value)


def _drop_dead(body: onnx.GraphProto) -> None:
    """Remove copies in a body that were made for outputs it no longer has."""
    while True:
        read = names_read(body.node) | {value.name for value in body.output}
        dead = [
            node
            for node in body.node
            if node.op_type == "Identity" and not read.intersection(node.output)
        ]
        if not dead:
            return
        for node in dead:
            body.node.remove(node)


def rename_outputs(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Let a node write other tensors."""
    node.output[:] = [names.get(name, name) for name in node.output]


def _value(name: str, found: TensorType) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=write_type(found, final=True))


def _backwards(item: Scanned) -> Scanned:
    return Scanned(item.name, item.axis, 1 - item.direction)
