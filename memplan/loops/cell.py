"""Which tensors of a recurrent cell are stored at every step, and which are made again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import onnx

from memplan.errors import UsageError
from memplan.ir.build import tensor_bytes
from memplan.ops.cost import is_contraction
from memplan.ops.memory import EFFECT_OPS, RANDOM_OPS
from memplan.proto.nodes import captured_names
from memplan.shapes.tensor_type import TensorType
from memplan.solver.maxflow import Network

_LISTED = 12


@dataclass(frozen=True, slots=True)
class ScanRecompute:
    """``--scan-recompute``: ``none``, ``all``, ``auto``, or names of cell tensors, in which ``*``
    stands for any letters, with ``+`` between them.

    ``seen`` grows: the patterns that have matched; ``offered`` the cell tensors there are.
    """

    text: str = "none"
    seen: set[str] = field(default_factory=set)
    offered: dict[str, None] = field(default_factory=dict)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names, if names were given."""
        if self.text in ("none", "all", "auto"):
            return ()
        return tuple(part.strip() for part in self.text.split("+"))

    def require_matches(self) -> None:
        """Check that every name has matched.

        Raises:
            UsageError: one has not.
        """
        for pattern in self.patterns:
            if pattern not in self.seen:
                names = list(self.offered)
                more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
                raise UsageError(
                    f"--scan-recompute {pattern}: no Scan that is differentiated computes such a "
                    "tensor in its body",
                    f"there are: {', '.join(names[:_LISTED])}{more}"
                    if names
                    else "there is no such Scan",
                )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, as one step computes it.

    ``nodes`` are in order; ``inputs`` are the states and slices that a step starts with, ``needed``
    all that the backward reads of the step; ``stacked`` are computed tensors that the loop gives
    out at every step anyway. Every other tensor that ``nodes`` read comes from outside the loop.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: tuple[str, ...]
    needed: frozenset[str]
    stacked: frozenset[str]
    types: Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class Kept:
    """``stored``: computed tensors of the cell that are kept at every step; ``used``: its inputs
    that the backward reads, ``needed`` those that it would read if nothing ran again; ``again``:
    the nodes to run again, in order."""

    stored: tuple[str, ...]
    used: frozenset[str]
    needed: frozenset[str]
    again: tuple[onnx.NodeProto, ...]


def decide(cell: Cell, wish: ScanRecompute) -> Kept:
    """What is kept of a cell.

    What depends on nothing within the loop is always made again.

    Raises:
        UsageError: an operator could not run again because only some of its outputs are named, or
            because it draws random numbers.
    """
    constant = constant_tensors(cell)
    computed = [name for node in cell.nodes for name in node.output if name]
    wish.offered.update(dict.fromkeys(name for name in computed if name not in constant))
    if wish.text == "all":
        safe = (node for node in cell.nodes if not _unsafe(node))
        chosen = {name for node in safe for name in node.output if name} - cell.stacked
    elif wish.text == "auto":
        chosen = _cheap(cell, constant)
    else:
        chosen = _named(cell, wish)
    return trace(cell, chosen | constant)


def trace(cell: Cell, chosen: Collection[str]) -> Kept:
    """Walk back from what is needed to what is kept."""
    maker = {name: k for k, node in enumerate(cell.nodes) for name in node.output if name}
    inputs = set(cell.inputs)
    stored: set[str] = set()
    used: set[str] = set()
    again: set[int] = set()
    waiting = sorted(cell.needed)
    while waiting:
        name = waiting.pop()
        if name in inputs:
            used.add(name)
        elif name in maker and name not in chosen:
            stored.add(name)
        elif name in maker and maker[name] not in again:
            node = cell.nodes[maker[name]]
            again.add(maker[name])
            waiting += [*node.input, *captured_names(node)]
    made = {name for k in again for name in cell.nodes[k].output}
    order = [name for node in cell.nodes for name in node.output]
    return Kept(
        tuple(name for name in order if name in stored - made),
        frozenset(used),
        cell.needed & inputs,
        tuple(cell.nodes[k] for k in sorted(again)),
    )


def constant_tensors(cell: Cell) -> set[str]:
    """Tensors that are the same at every step."""
    varying = set(cell.inputs)
    found: set[str] = set()
    for node in cell.nodes:
        reads = (*node.input, *captured_names(node))
        if _unsafe(node) or any(name in varying for name in reads):
            varying.update(node.output)
        else:
            found.update(name for name in node.output if name)
    return found


def _key(node: onnx.NodeProto) -> str:
    return f"{'' if node.domain == 'ai.onnx' else node.domain}:{node.op_type}"


def _unsafe(node: onnx.NodeProto) -> bool:
    """Whether a second run would give other values."""
    return _key(node) in RANDOM_OPS | EFFECT_OPS


def _named(cell: Cell, wish: ScanRecompute) -> set[str]:
    """The tensors that were named; caffe2's rule: all outputs of an operator, or none."""
    chosen: set[str] = set()
    for node in cell.nodes:
        outputs = [str(name) for name in node.output if name]
        matched = {n: p for n in outputs for p in wish.patterns if fnmatchcase(n, p)}
        if not matched:
            continue
        wish.seen.update(p for p in wish.patterns if any(fnmatchcase(n, p) for n in outputs))
        missing = [name for name in outputs if name not in matched]
        if missing:
            raise UsageError(
                f"--scan-recompute: {node.op_type} '{node.name}' can run again only for all its "
                f"outputs; not named: {', '.join(missing)}",
                f"add them: --scan-recompute '{'+'.join((*wish.patterns, *missing))}'",
            )
        if _unsafe(node):
            raise UsageError(
                f"--scan-recompute: {node.op_type} '{node.name}' gives other values when it runs "
                "again",
                "leave it out",
            )
        chosen.update(outputs)
    return chosen - cell.stacked  # what is there anyway needs no second run


def _cheap(cell: Cell, constant: Collection[str]) -> set[str]:
    """What to make again so that the fewest bytes are kept, and no contraction runs twice.

    A minimum cut between what the step is given and what its backward reads, as PyTorch's
    partitioner has it (``torch/_functorch/partitioners.py``), over one step.
    """
    names = [*cell.inputs, *(o for node in cell.nodes for o in node.output if o)]
    number = {name: 2 + 2 * k for k, name in enumerate(names) if name not in constant}
    # What is kept in any case costs nothing more. Of cuts of equal bytes the latest is taken, which
    # leaves the least to make again.
    scale = len(names) ** 2 + 1
    weight = {
        name: (0 if free else scale * _bytes(cell.types[name])) + len(names) - place
        for place, name in enumerate(names)
        if name in number
        for free in [name in cell.stacked or (name in cell.needed and name in cell.inputs)]
    }
    network = Network(2 + 2 * len(names))
    endless = sum(weight.values()) + 1
    for name, vertex in number.items():
        network.connect(vertex, vertex + 1, weight[name])
        if name in cell.needed:
            network.connect(vertex + 1, 1, endless)
    for name in cell.inputs:
        network.connect(0, number[name], endless)
    for node in cell.nodes:
        outputs = [number[name] for name in node.output if name in number]
        if _unsafe(node) or is_contraction(node.op_type):
            for vertex in outputs:
                network.connect(0, vertex, endless)
        for name in (*node.input, *captured_names(node)):
            for vertex in outputs if name in number else ():
                network.connect(number[name] + 1, vertex, endless)
    network.saturate()
    side = network.source_side()
    kept = {name for name, v in number.items() if v in side and v + 1 not in side}
    return {
        name
        for node in cell.nodes
        if not (_unsafe(node) or is_contraction(node.op_type))
        for name in node.output
        if name and name not in kept
    }


def _bytes(found: TensorType) -> int:
    """Bytes, with symbolic dimensions (the batch, mostly) taken as 1."""
    shape = (dim if isinstance(dim, int) else 1 for dim in found.shape or ())
    return tensor_bytes(found.dtype, shape) or 1
