"""Which call of PyTorch makes a tensor: what a policy for eager PyTorch goes by (``memplan
plan-as torch``).

A call is known by the modules that it is made in, from the outside in, by its operator, and by how
many calls of its family that module made before: ``blocks.0/attn/qkv linear 0``. A view belongs
to the call whose memory it shares. A call that cannot be kept has no name: it draws random numbers,
or it writes over a tensor, or its result is written over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from memplan.pytorch.call_families import family_of
from memplan.pytorch.operators import draws, writes, written_to

_STACK = "nn_module_stack"
_ROOT = "model"
_LAYOUT = frozenset({"contiguous", "flatten", "reshape", "_unsafe_view"})
"""Views of what lies one element behind the other; else copies, which are cheap to make again."""
_COPIES = frozenset({"to"})
"""Views only of what needs no conversion."""
_INPLACE = ("torch.nn.modules.activation.", "torch.nn.modules.dropout.")
"""Modules that have an option ``inplace``."""


def calls_of(traced: Any, written: Any) -> dict[str, str]:
    """The calls of a traced program by the names of tensors in ``written``, which is what its
    operators were decomposed into."""
    own, views = _calls(traced.graph)
    found: dict[str, str] = {}
    results: dict[str, str] = {}
    for node in written.graph.nodes:
        several = isinstance(node.meta.get("val"), tuple | list)  # and their parts follow
        if node.op != "call_function" or several:
            continue
        sources = node.meta.get("from_node") or ()
        origin = sources[-1].name if sources else node.name
        if origin in views:
            found[node.name] = views[origin]
        elif origin in own and _part(node) == 0:
            results[origin] = node.name  # the last of those that an operator was decomposed into
    return found | {name: own[origin] for origin, name in results.items()}


def _calls(graph: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The calls that may be kept, by the names of the nodes that give their results, and by those
    of views of these."""
    calls: dict[Node, _Call] = {}
    views: dict[Node, _Call] = {}
    count = Counter[str]()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        source = _source(node)
        if source is not None:
            if source in calls or source in views:
                views[node] = calls.get(source) or views[source]
            continue
        modules, kind = _modules(node), _kind(node.target)
        kind = kind.rstrip("_") if _switched_off(node) else kind
        place = f"{modules} {family_of(kind)}"
        calls[node] = _Call(f"{modules} {kind} {count[place]}", _cannot_be_kept(node))
        count[place] += 1
        for written in () if _switched_off(node) else written_to(node):
            target = calls.get(written) or views.get(written)
            if target is not None:
                target.closed = True
    return _open(calls), _open(views)


@dataclass(slots=True)
class _Call:
    """A call while the graph is read: its name, and whether it cannot be kept."""

    name: str
    closed: bool


def _open(calls: dict[Node, _Call]) -> dict[str, str]:
    return {node.name: call.name for node, call in calls.items() if not call.closed}


def _kind(target: Any) -> str:
    """The operator's name without its overload: ``linear`` of ``aten.linear.default``."""
    packet = getattr(target, "overloadpacket", None)
    name = str(getattr(packet, "__name__", None) or getattr(target, "__name__", target))
    return name.replace(" ", "_")


def _switched_off(node: Node) -> bool:
    """Whether an operator writes over its input only because its module is told to: policies tell
    such modules not to."""
    classes = [str(kind) for _, kind in (node.meta.get(_STACK) or {}).values()]
    return bool(classes) and classes[-1].startswith(_INPLACE)


def _modules(node: Node) -> str:
    """The modules that a node was made in, from the outside in, each by its path in the one around
    it; a module's second call is ``path@1``."""
    around = ""
    told: list[str] = []
    for key, (path, _) in (node.meta.get(_STACK) or {}).items():
        name = str(path)
        if name in ("", _ROOT):
            continue
        name = name.removeprefix(f"{_ROOT}.")
        inner = name.removeprefix(f"{around}.") if around else name
        told = told if inner != name else []  # what is called from elsewhere begins anew
        around = name
        _, again, number = str(key).rpartition("@")
        told.append(f"{inner}@{number}" if again and number.isdecimal() else inner)
    return "/".join(told)


def _source(node: Node) -> Node | None:
    """The tensor whose memory a view shares; None of what has memory of its own."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if node.target.__class__ is type(min):  # operator.getitem
        return source if _part(node) == 0 or _source(source) is not None else None
    if _kind(node.target) in _LAYOUT:
        return source
    if _kind(node.target) in _COPIES:
        return None
    returned = [r.alias_info for r in getattr(getattr(node.target, "_schema", None), "returns", ())]
    view = bool(returned) and all(info is not None and not info.is_write for info in returned)
    return source if view else None


def _part(node: Node) -> int:
    """Which part of a result an element of it is; 0 of a whole one."""
    taken = node.target.__class__ is type(min) and len(node.args) > 1
    return node.args[1] if taken and isinstance(node.args[1], int) else 0


def _cannot_be_kept(node: Node) -> bool:
    """Whether an operator draws random numbers or writes over a tensor."""
    return draws(node) or (writes(node) and not _switched_off(node))
