"""A joint graph of AOTAutograd, read: operators, the tensors they make, and who shares memory.

What counts as one operator: a call, with the ``getitem`` calls that take its results apart. Its
results are there while the call runs, and afterwards those that something reads.

Memory is that of *storages*, not of tensors: a view lies in the storage of what it looks at. Which
results are views, the fake tensors tell that AOTAutograd traced with, and operators' schemas.

Random operators are never recomputed: a second draw is not the first. Neither is what writes to its
inputs, what PyTorch cannot see into, and what a checkpoint policy wants saved.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.utils.checkpoint import CheckpointPolicy

from memplan.errors import ModelError
from memplan.pytorch.operators import draws, writes
from memplan.pytorch.torch_internals import OPERATOR, internal

_UNKNOWN_SIZE = 4096  # PyTorch's own guess for a size that depends on data
_IN_LIBRARIES = ("aten", "prims", "prim")
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)

RANDOM = "draws random numbers"
WRITES = "writes to its inputs"
OPAQUE = "higher-order operator"
CUSTOM = "custom operator"
SIZE = "computes a size"
WANTED = "saved by a checkpoint policy"
EFFECT = "has effects beyond its results"


@dataclass(frozen=True, slots=True)
class Operator:
    """One call and the ``getitem`` calls on its results.

    ``results``: the fx nodes that others read, by the place of the result; None: unread.
    ``nbytes``: of the storages that the call makes, by place; 0 for a view. ``shares``: by place,
    the argument in whose storage the result lies. ``refusal``: why it is never recomputed, or
    empty.
    """

    node: fx.Node
    results: tuple[fx.Node | None, ...]
    nbytes: tuple[int, ...]
    shares: tuple[fx.Node | None, ...]
    reads: tuple[fx.Node, ...]
    refusal: str

    @property
    def name(self) -> str:
        """Of the call, as in the graph."""
        return self.node.name

    @property
    def is_view(self) -> bool:
        """Whether it makes no memory, only names."""
        return bool(self.shares) and all(each is not None for each in self.shares)

    def members(self) -> Iterator[fx.Node]:
        """The call, and the ``getitem`` calls on its results."""
        yield self.node
        yield from (each for each in self.results if each is not None and each is not self.node)


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph. ``forward`` operators stand first in ``operators``: what forward outputs need.

    ``held`` are inputs and constants, in memory throughout; ``tangents`` come with the backward
    pass. Outputs are graph nodes; those that are None or numbers are left out.
    """

    graph: fx.Graph
    operators: tuple[Operator, ...]
    forward: int
    held: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    forward_outputs: tuple[fx.Node, ...]
    backward_outputs: tuple[fx.Node, ...]

    @property
    def refusals(self) -> dict[str, str]:
        """Why operators are never recomputed, by name."""
        return {op.name: op.refusal for op in self.operators if op.refusal}

    @property
    def resident_bytes(self) -> int:
        """Bytes of inputs and constants, every storage once."""
        values = map(value_of, self.held)
        return sum({key: storage_bytes(t) for t in values if (key := storage_key(t))}.values())

    def roots(self) -> dict[fx.Node, fx.Node]:
        """What made the storage in which each tensor lies."""
        found = {each: each for each in (*self.held, *self.tangents)}
        for op in self.operators:
            for node, shared in zip(op.results, op.shares, strict=True):
                if node is not None:
                    found[node] = node if shared is None else found[shared]
        return found


def value_of(node: fx.Node) -> Any:
    """What tracing says a node gives."""
    return node.meta.get("val")


def size_of(number: Any) -> int:
    """A size, or the hint for a symbolic one."""
    return int(optimization_hint(number, fallback=_UNKNOWN_SIZE))


def storage_key(value: Any) -> int | None:
    """What is equal for tensors in one storage; None: no tensor with storage."""
    if not isinstance(value, torch.Tensor) or not internal("torch._C._has_storage")(value):
        return None
    return int(value.untyped_storage()._cdata)


def storage_bytes(value: Any) -> int:
    """Bytes of a tensor's storage; 0 for what is not a tensor."""
    if storage_key(value) is None:
        return 0
    nbytes = value.untyped_storage().nbytes()
    return size_of(nbytes)


def is_root(value: Any) -> bool:
    """Whether a tangent is the number that ``loss.backward()`` begins with and holds."""
    return isinstance(value, torch.Tensor) and value.ndim == 0


def is_size(value: Any) -> bool:
    """Whether a value is a number, as sizes are."""
    return isinstance(value, _SIZES)


def shared_argument(node: fx.Node, value: Any) -> fx.Node | None:
    """The argument of a call in whose storage its result ``value`` lies, if there is one."""
    key = storage_key(value)
    if key is None:
        return None
    for argument in node.all_input_nodes:
        given = value_of(argument)
        if any(storage_key(each) == key for each in (given if _is_many(given) else (given,))):
            return argument
    schema = getattr(node.target, "_schema", None)
    if schema is not None and any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    ):
        for argument, described in zip(node.args, schema.arguments, strict=False):
            if described.alias_info is not None and isinstance(argument, fx.Node):
                return argument
    return None


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple)


def refusal_of(node: fx.Node) -> str:
    """Why a call is never recomputed; empty: it may be."""
    if is_size(value_of(node)):
        return SIZE
    if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
        return WANTED
    if not isinstance(node.target, OPERATOR):
        return "" if node.target is operator.getitem else OPAQUE
    if draws(node):
        return RANDOM
    if writes(node):
        return WRITES
    if node.is_impure(impure_random=False):
        return EFFECT
    return "" if node.target.namespace in _IN_LIBRARIES else CUSTOM


def read_joint(graph: fx.Graph, forward_outputs: int) -> Joint:
    """Read a joint graph whose first ``forward_outputs`` outputs are those of the forward pass.

    Raises:
        ModelError: it holds what cannot be planned: collectives, effect tokens, opaque objects.
    """
    (end,) = graph.find_nodes(op="output")
    outputs = list(end.args[0])
    given = [each for each in outputs[:forward_outputs] if isinstance(each, fx.Node)]
    gradients = [each for each in outputs[forward_outputs:] if isinstance(each, fx.Node)]
    inputs = graph.find_nodes(op="placeholder")
    tangents = tuple(each for each in inputs if "tangents" in str(each.target))
    constants = graph.find_nodes(op="get_attr")
    held = tuple(each for each in (*inputs, *constants) if each not in set(tangents))
    for each in inputs:
        _check_value(each)
    found = {each.name: _read(each) for each in graph.nodes if _is_operator(each)}
    first = _forward_part(graph, given)
    ordered = [
        *(op for name, op in found.items() if name in first),
        *(op for name, op in found.items() if name not in first),
    ]
    return Joint(
        graph,
        tuple(ordered),
        sum(op.name in first for op in ordered),
        held,
        tangents,
        tuple(given),
        tuple(gradients),
    )


def _is_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and not _is_part(node)


def _is_part(node: fx.Node) -> bool:
    """Whether a node takes one result of a call that has several."""
    if node.target is not operator.getitem:
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and source.op == "call_function"


def _forward_part(graph: fx.Graph, outputs: Sequence[fx.Node]) -> set[str]:
    """Names of the calls that forward outputs need, and of those that must run before backward."""
    waiting = [*outputs, *(each for each in graph.nodes if in_forward(each))]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(node.name)
            waiting.extend(node.all_input_nodes)
    return found


_FORWARD, _BACKWARD = "must_be_in_forward", "must_be_in_backward"


def in_forward(node: fx.Node) -> bool:
    """Whether a call must stand in the forward graph: PyTorch says so, or it has effects."""
    tag = node.meta.get("partitioner_tag")
    return tag == _FORWARD or (_has_effect(node) and not in_backward(node))


def in_backward(node: fx.Node) -> bool:
    """Whether a call must stand in the backward graph."""
    tag = node.meta.get("partitioner_tag")
    return tag == _BACKWARD or (tag == "is_backward" and _has_effect(node))


def _has_effect(node: fx.Node) -> bool:
    return node.op == "call_function" and (writes(node) or node.is_impure(impure_random=False))


def _read(node: fx.Node) -> Operator:
    _check_call(node)
    value = value_of(node)
    reads = tuple(node.all_input_nodes)
    if not _is_many(value):
        _check_value(node)
        shared = shared_argument(node, value)
        nbytes = 0 if shared is not None else storage_bytes(value)
        return Operator(node, (node,), (nbytes,), (shared,), reads, refusal_of(node))
    parts: dict[int, fx.Node] = {}
    for user in node.users:
        if not _is_part(user) or not isinstance(user.args[1], int):
            raise ModelError(
                f"'{node.name}' hands several results to '{user.name}' at once",
                "leave this call out of the compiled function (torch.compiler.disable)",
            )
        parts[user.args[1]] = user
    shares = tuple(shared_argument(node, each) for each in value)
    sizes = tuple(
        0 if shared is not None else storage_bytes(each)
        for each, shared in zip(value, shares, strict=True)
    )
    results = tuple(parts.get(place) for place in range(len(value)))
    return Operator(node, results, sizes, shares, reads, refusal_of(node))


def _check_call(node: fx.Node) -> None:
    """Refuse what a plan must not touch."""
    namespace = getattr(node.target, "namespace", "")
    name = str(node.target)
    if namespace.startswith("_c10d_functional") or "c10d" in namespace:
        raise ModelError(
            f"'{node.name}' communicates with other processes, which plans cannot hold yet",
            "compile the model before it is wrapped for distributed training",
        )
    if "with_effects" in name or "run_with_rng_state" in name or "run_and_save_rng" in name:
        raise ModelError(
            f"'{node.name}' has effects beyond its results ({name})",
            "leave this call out of the compiled function (torch.compiler.disable)",
        )


def _check_value(node: fx.Node) -> None:
    value = value_of(node)
    if value is None or is_size(value) or isinstance(value, torch.Tensor):
        return
    raise ModelError(
        f"'{node.name}' is a {type(value).__name__}, whose memory PyTorch does not tell",
        "leave it out of the compiled function (torch.compiler.disable)",
    )
