"""A sequence → the two graphs that AOTAutograd compiles.

The joint graph is written out in the order of the sequence, every recomputation a node of its own,
and PyTorch's own extraction cuts it in two: it knows which conventions saved tensors, symbols and
tangents follow. What stands before the boundary may only be in the forward graph, what stands
behind it only in the backward graph.

:func:`check_split` compares both with the joint graph, node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.node import map_arg

from memplan.errors import MemplanError
from memplan.pytorch.solver_joint import Joint, is_size, value_of
from memplan.pytorch.torch_internals import internal

_TAG = "partitioner_tag"
ORIGIN = "memplan_origin"
"""In a node's ``meta``: the name of the joint graph's node that it computes."""


@dataclass(frozen=True, slots=True)
class Split:
    """Both graphs, and what crosses from one to the other: names of the joint graph's nodes."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[str, ...]


def split(
    module: fx.GraphModule, joint: Joint, sequence: Iterable[int], forward_outputs: int
) -> Split:
    """The forward and the backward graph of a sequence of operators.

    ``sequence``: operators by index; ``len(joint.operators)`` is where the backward pass begins.
    """
    graph, crossing = _write_out(joint, sequence)
    expanded = fx.GraphModule(module, graph)
    saved = [node for node in crossing if not is_size(value_of(node))]
    sizes = [node for node in crossing if is_size(value_of(node))]
    extract = internal("torch._functorch.partitioners._extract_fwd_bwd_modules")
    forward, backward = extract(expanded, saved, sizes, num_fwd_outputs=forward_outputs)
    for half in (forward, backward):
        _restore_tags(half.graph, joint)
        half.recompile()
    found = Split(forward, backward, tuple(_origin(node) for node in (*saved, *sizes)))
    check_split(joint, found)
    return found


def _write_out(joint: Joint, sequence: Iterable[int]) -> tuple[fx.Graph, list[fx.Node]]:
    """A sequence as one graph, and what crosses from its forward part to the other."""
    graph = fx.Graph()
    latest: dict[fx.Node, fx.Node] = {}
    first: dict[fx.Node, fx.Node] = {}
    before: set[fx.Node] = set()
    saved: dict[fx.Node, None] = {}
    behind = False

    def copied(node: fx.Node, tag: str | None) -> None:
        made = graph.node_copy(node, lambda each: latest[each])
        made.meta[ORIGIN] = node.name
        if tag is not None:
            made.meta[_TAG] = tag
        latest[node] = made
        first.setdefault(node, made)

    for node in joint.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            copied(node, None)
    tangents = set(joint.tangents)
    before.update(latest[n] for n in latest if n.op == "placeholder" and n not in tangents)
    for index in sequence:
        if index == len(joint.operators):
            behind = True
            continue
        op = joint.operators[index]
        if behind:
            saved.update((latest[each], None) for each in op.reads if latest[each] in before)
        for member in op.members():
            copied(member, "must_be_in_backward" if behind else "must_be_in_forward")
            if not behind:
                before.add(latest[member])
    (end,) = joint.graph.find_nodes(op="output")
    # Gradients that the forward pass makes are handed to the backward pass, which returns them.
    saved.update((first[each], None) for each in joint.backward_outputs if first[each] in before)
    results = map_arg(end.args[0], lambda each: first[each])
    graph.output(results).meta = dict(end.meta)
    order = {node: place for place, node in enumerate(graph.nodes)}
    return graph, sorted(saved, key=order.__getitem__)


def _restore_tags(graph: fx.Graph, joint: Joint) -> None:
    """Give nodes the tag that PyTorch had given them: those of the cut are ours alone."""
    tags = {node.name: node.meta.get(_TAG) for node in joint.graph.nodes}
    for node in graph.nodes:
        tag = tags.get(_origin(node))
        if tag is None:
            node.meta.pop(_TAG, None)
        else:
            node.meta[_TAG] = tag


def _origin(node: fx.Node) -> str:
    return str(node.meta.get(ORIGIN, node.name))


def check_split(joint: Joint, found: Split) -> None:
    """Check that both graphs together compute what the joint graph does: node by node, what a node
    reads are copies of what its origin reads, and random operators and writes run exactly once.

    Raises:
        MemplanError: they do not.
    """
    origins = {node.name: node for node in joint.graph.nodes}
    runs: dict[str, int] = {}
    for module in (found.forward, found.backward):
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            origin = origins.get(_origin(node))
            if origin is None or not _same_call(node, origin):
                raise _wrong(f"'{node.name}' is not a node of the joint graph")
            runs[origin.name] = runs.get(origin.name, 0) + 1
    for op in joint.operators:
        count = runs.get(op.name, 0)
        if op.refusal and count != 1 and not is_size(value_of(op.node)):
            raise _wrong(f"'{op.name}' runs {count} times, and {op.refusal}")
    _check_results(joint, found)


def _same_call(node: fx.Node, origin: fx.Node) -> bool:
    mine = map_arg((node.args, dict(node.kwargs)), _origin)
    theirs = map_arg((origin.args, dict(origin.kwargs)), lambda each: each.name)
    return (node.op, node.target) == (origin.op, origin.target) and _plain(mine) == _plain(theirs)


def _plain(value: Any) -> Any:
    """Lists and mappings as PyTorch keeps them, as values that can be compared."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _check_results(joint: Joint, found: Split) -> None:
    (end,) = joint.graph.find_nodes(op="output")
    wanted = [_name(each, lambda node: node.name) for each in end.args[0]]
    returned = [
        _name(each, _origin)
        for module in (found.forward, found.backward)
        for each in next(iter(module.graph.find_nodes(op="output"))).args[0]
    ]
    backward = len(next(iter(found.backward.graph.find_nodes(op="output"))).args[0])
    forward = len(wanted) - backward
    if returned[:forward] + returned[len(returned) - backward :] != wanted:
        raise _wrong("the graphs do not return what the joint graph returns")


def _name(each: Any, of: Any) -> Any:
    return of(each) if isinstance(each, fx.Node) else each


def _wrong(what: str) -> MemplanError:
    return MemplanError(
        f"the two graphs are not the joint graph: {what}", "this is a bug in memplan"
    )
