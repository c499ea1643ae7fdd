"""Which tensors of a forward graph are trained."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx

from memplan.autodiff.activity import find_activity
from memplan.errors import ModelError, UsageError
from memplan.proto.nodes import subgraphs
from memplan.shapes.tensor_type import UNKNOWN, TensorType

# Operators and the input slots where weights stand.
_PLACES: dict[str, frozenset[int]] = {
    "MatMul": frozenset({1}),
    "Gemm": frozenset({1, 2}),
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "BatchNormalization": frozenset({1, 2}),
    "LayerNormalization": frozenset({1, 2}),
    "InstanceNormalization": frozenset({1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "RMSNormalization": frozenset({1}),
    "PRelu": frozenset({1}),
    "Gather": frozenset({0}),
    "RNN": frozenset({1, 2, 3}),
    "GRU": frozenset({1, 2, 3}),
    "LSTM": frozenset({1, 2, 3, 7}),
}
# Constants are weights on either side; graph inputs on the left are rather data.
_EITHER_SIDE = frozenset({"MatMul", "Gemm"})
# Shape and type only: what is behind them is still the weight.
_VIEWS = frozenset({"Transpose", "Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze", "Split"})
# How frameworks name parameters: by a path of modules, or by what they are.
_NAMED = re.compile(r"[./]|weight|bias|kernel|embed|gamma|beta|scale", re.IGNORECASE)
_OFFERED = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """Float tensors that the loss depends on, in the file's order.

    ``trained`` are initializers that are parameters by place or name, ``constants`` the others;
    ``inputs`` are graph inputs that could be parameters by place or name, ``data`` the others.
    ``unreached`` are floats that the loss does not depend on.
    """

    trained: tuple[str, ...]
    constants: tuple[str, ...]
    inputs: tuple[str, ...]
    data: tuple[str, ...]
    unreached: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that has a gradient."""
        return self.trained + self.constants + self.inputs + self.data


def find_candidates(
    graph: onnx.GraphProto, types: dict[str, TensorType], ys: Collection[str]
) -> Candidates:
    """What could be trained."""
    initializers = [tensor.name for tensor in graph.initializer]
    inputs = [value.name for value in graph.input if value.name not in set(initializers)]
    floats = {n for n in (*initializers, *inputs) if types.get(n, UNKNOWN).is_float}
    active = find_activity(list(graph.node), types, ys, floats).tensors
    placed = _placed(graph)
    left = {node.input[0] for node in _nodes(graph) if node.op_type in _EITHER_SIDE}
    trained = {
        name
        for name in initializers
        if types[name].elements != 1 and (name in placed | left or _NAMED.search(name))
    }
    given = {name for name in inputs if name in placed or _NAMED.search(name)}
    return Candidates(
        trained=tuple(n for n in initializers if n in active and n in trained),
        constants=tuple(n for n in initializers if n in active and n not in trained),
        inputs=tuple(n for n in inputs if n in active and n in given),
        data=tuple(n for n in inputs if n in active and n not in given),
        unreached=tuple(n for n in (*initializers, *inputs) if n in floats and n not in active),
    )


def _placed(graph: onnx.GraphProto) -> set[str]:
    """Tensors that stand in a weight's place, directly or as a view."""
    found = {
        name
        for node in _nodes(graph)
        for slot, name in enumerate(node.input)
        if slot in _PLACES.get(node.op_type, ())
    }
    for node in reversed(graph.node):
        if node.op_type in _VIEWS and any(name in found for name in node.output):
            found.add(node.input[0])
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the bodies in it, which read tensors of the graph."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)


def choose(candidates: Candidates, patterns: Sequence[str]) -> tuple[str, ...]:
    """The tensors to differentiate by: those that the globs match, else what is trained.

    Raises:
        UsageError: a pattern matches nothing.
        ModelError: a pattern matches nothing that leads to the loss; without any, nothing looks
            trained, and the message offers what could be.
    """
    if patterns:
        for pattern in patterns:
            if any(fnmatchcase(name, pattern) for name in candidates.all):
                continue
            hint = "float inputs and initializers that do: " + _offered(candidates.all)
            for name in candidates.unreached:
                if fnmatchcase(name, pattern):
                    raise ModelError(f"--wrt {pattern}: '{name}' does not lead to the loss", hint)
            raise UsageError(f"--wrt {pattern}: no float input or initializer of that name", hint)
        return tuple(n for n in candidates.all if any(fnmatchcase(n, p) for p in patterns))
    if not candidates.trained:
        offer = candidates.inputs + candidates.constants or candidates.data
        raise ModelError(
            "no initializer that looks trained leads to the loss",
            f"name what to differentiate by, for example --wrt '{offer[0]}'; what could be "
            f"parameters: {_offered(offer)}"
            if offer
            else "check --loss",
        )
    return candidates.trained


def _offered(names: Sequence[str]) -> str:
    more = f" and {len(names) - _OFFERED} more" if len(names) > _OFFERED else ""
    return ", ".join(names[:_OFFERED]) + more
