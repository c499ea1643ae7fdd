"""Which tensors of a forward graph are trained."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx

from memplan.autodiff.activity import find_activity
from memplan.errors import ModelError, UsageError
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.nodes import all_nodes, operator_key
from memplan.shapes.tensor_type import UNKNOWN, TensorType
from memplan.units import listed

PLACES: dict[str, frozenset[int]] = {
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
"""Operators and the input slots where weights stand."""
# Constants are weights on either side; graph inputs on the left are rather data.
_EITHER_SIDE = frozenset({"MatMul", "Gemm"})
# Shape and type only: what is behind them is still the weight.
_VIEWS = SAME_ELEMENTS | {":Transpose", ":Cast", ":Split"}
# How frameworks name parameters: by a path of modules, or by what they are.
_NAMED = re.compile(r"[./]|weight|bias|kernel|embed|gamma|beta|scale", re.IGNORECASE)
_OFFERED = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """Float tensors that the loss depends on, in the file's order.

    ``trained`` are initializers that are parameters by place or name, ``constants`` the others;
    ``inputs`` are graph inputs that could be parameters by place or name, ``data`` the others.
    ``unreached`` are floats that the loss does not depend on. ``statistics`` are running
    statistics, which are in none of these: no gradient ever trains them.
    """

    trained: tuple[str, ...]
    constants: tuple[str, ...]
    inputs: tuple[str, ...]
    data: tuple[str, ...]
    unreached: tuple[str, ...]
    statistics: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that has a gradient."""
        return self.trained + self.constants + self.inputs + self.data


def find_candidates(
    graph: onnx.GraphProto,
    types: dict[str, TensorType],
    ys: Collection[str],
    statistics: Collection[str] = (),
) -> Candidates:
    """What could be trained; running ``statistics`` never are."""
    initializers = [tensor.name for tensor in graph.initializer]
    stored = set(initializers)
    inputs = [value.name for value in graph.input if value.name not in stored]
    known = (*initializers, *inputs)
    floats = {n for n in known if types.get(n, UNKNOWN).is_float and n not in statistics}
    active = find_activity(list(graph.node), types, ys, floats).tensors
    placed = _placed(graph)
    left = {node.input[0] for node in all_nodes(graph.node) if node.op_type in _EITHER_SIDE}
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
        unreached=tuple(n for n in known if n in floats and n not in active),
        statistics=tuple(n for n in known if n in statistics),
    )


def _placed(graph: onnx.GraphProto) -> set[str]:
    """Tensors that stand in a weight's place, directly or as a view."""
    found = {
        name
        for node in all_nodes(graph.node)
        for slot, name in enumerate(node.input)
        if slot in PLACES.get(node.op_type, ())
    }
    for node in reversed(graph.node):
        if operator_key(node) in _VIEWS and any(name in found for name in node.output):
            found.add(node.input[0])
    return found


def choose(candidates: Candidates, patterns: Sequence[str]) -> tuple[str, ...]:
    """The tensors to differentiate by: those that the globs match, else what is trained.

    A pattern that begins with ``!`` takes out what it matches.

    Raises:
        UsageError: a pattern matches nothing, or only running statistics, or all are taken out.
        ModelError: a pattern matches nothing that leads to the loss; without any, nothing looks
            trained, and the message offers what could be.
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    for pattern in wanted:
        _require_match(candidates, pattern)
    known = (*candidates.all, *candidates.statistics, *candidates.unreached)
    for pattern in unwanted:
        if not _matching(known, (pattern,)):
            raise UsageError(
                f"--wrt '!{pattern}': no float input or initializer of that name",
                "those that lead to the loss: " + _offered(candidates.all),
            )
    chosen = _matching(candidates.all, wanted) if wanted else _trained(candidates)
    dropped = set(_matching(chosen, unwanted))
    if len(dropped) == len(chosen):
        raise UsageError(
            "--wrt takes out everything that it leaves in", "without '!': " + _offered(chosen)
        )
    return tuple(name for name in chosen if name not in dropped)


def _matching(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns))


def _require_match(candidates: Candidates, pattern: str) -> None:
    """Check that a pattern matches something that can be trained.

    Raises:
        ModelError, UsageError: it does not; see :func:`choose`.
    """
    if _matching(candidates.all, (pattern,)):
        return
    hint = "float inputs and initializers that do: " + _offered(candidates.all)
    for name in _matching(candidates.statistics, (pattern,)):
        raise UsageError(
            f"--wrt {pattern}: '{name}' is a running statistic, which no gradient trains",
            "memplan.gradients differentiates by any tensor; those that could be trained: "
            + _offered(candidates.all),
        )
    for name in _matching(candidates.unreached, (pattern,)):
        raise ModelError(f"--wrt {pattern}: '{name}' does not lead to the loss", hint)
    raise UsageError(f"--wrt {pattern}: no float input or initializer of that name", hint)


def _trained(candidates: Candidates) -> tuple[str, ...]:
    """What looks trained.

    Raises:
        ModelError: nothing does.
    """
    if candidates.trained:
        return candidates.trained
    offer = candidates.inputs + candidates.constants
    if not offer and candidates.unreached:
        raise ModelError(
            f"no gradient reaches {_offered(candidates.unreached)}",
            "what lies between them and the loss has no derivative, or a zero one (ArgMax, "
            "integers, comparisons); check --loss",
        )
    offer = offer or candidates.data
    raise ModelError(
        "no initializer that looks trained leads to the loss",
        f"name what to differentiate by, for example --wrt '{offer[0]}'; what could be "
        f"parameters: {_offered(offer)}"
        if offer
        else "check --loss",
    )


def _offered(names: Sequence[str]) -> str:
    return listed(names, _OFFERED)
