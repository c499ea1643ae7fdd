"""Which tensors of a recurrent cell are stored at every step, and which are recomputed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import onnx

from memplan.errors import UsageError
from memplan.ops.book import EFFECT_OPS, RANDOM_OPS, operator
from memplan.passes.loops.loop_pairs import sized_bytes
from memplan.proto.nodes import operator_key, reads_of
from memplan.shapes.tensor_type import TensorType
from memplan.solver.maxflow import Run, cut
from memplan.units import listed

_LISTED = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, as one step computes it.

    ``nodes`` are in order; ``inputs`` are the states and slices that a step starts with, ``needed``
    all that the backward reads of the step; ``stacked`` are computed tensors that the loop gives
    out at every step anyway. Every other tensor that ``nodes`` read comes from outside the loop.
    ``fixed`` are computed tensors that cannot be recomputed, whatever their operator; ``called``
    the names that a computed tensor can be asked for by, where that is not its own alone.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: tuple[str, ...]
    needed: frozenset[str]
    stacked: frozenset[str] = frozenset()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def computed(self) -> list[str]:
        """What the nodes make, in order."""
        return [name for node in self.nodes for name in node.output if name]

    def names_of(self, tensor: str) -> tuple[str, ...]:
        """The names that a computed tensor can be asked for by."""
        return self.called.get(tensor, (tensor,))

    def recomputes(self, node: onnx.NodeProto) -> bool:
        """Whether a node may run a second time."""
        return not _unsafe(node) and self.fixed.isdisjoint(node.output)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What a step of the backward gets, and what it recomputes.

    ``stored``: computed tensors of the cell that are stored at every step; ``used``: its inputs
    that the backward reads; ``recomputed``: the nodes to recompute, in order.
    """

    stored: tuple[str, ...]
    used: frozenset[str]
    recomputed: tuple[onnx.NodeProto, ...]


def decide(cell: Cell, text: str) -> CellPlan:
    """What is stored of a cell. What depends on nothing within the loop is always recomputed.

    ``text``: ``--scan-recompute``: ``all``, ``auto``, or names of cell tensors, in which ``*``
    stands for any letters, with ``+`` between them.

    Raises:
        UsageError: an operator cannot be recomputed because only some of its outputs are named, or
            because it draws random numbers.
    """
    constant = constant_tensors(cell)
    if text == "all":
        safe = (node for node in cell.nodes if cell.recomputes(node))
        chosen = {name for node in safe for name in node.output if name} - cell.stacked
    elif text == "auto":
        chosen = _cheap(cell, constant)
    else:
        chosen = _named(cell, _patterns(text))
    return plan_cell(cell, chosen | constant)


def require_matches(cells: Sequence[Cell], text: str) -> None:
    """Check that every name in ``text`` is one of a tensor of some cell.

    Raises:
        UsageError: one is not.
    """
    for pattern in _patterns(text):
        if any(_matching(cell, cell.computed, pattern) for cell in cells):
            continue
        names = [
            name
            for cell in cells
            for name in cell.computed
            if name not in constant_tensors(cell) and cell.names_of(name)
        ]
        raise UsageError(
            f"--scan-recompute {pattern}: no forward loop of a pair computes such a tensor in its "
            "body",
            f"there are: {listed(list(dict.fromkeys(names)), _LISTED)}"
            if names
            else "the graph has no forward loop of a pair",
        )


def _patterns(text: str) -> tuple[str, ...]:
    """The names in ``text``, if it has names."""
    return () if text in ("all", "auto") else tuple(part.strip() for part in text.split("+"))


def plan_cell(cell: Cell, chosen: Collection[str]) -> CellPlan:
    """The plan that recomputes what it needs of ``chosen``, and stores the rest.

    Args:
        cell: the cell.
        chosen: computed tensors that may be recomputed; an operator is if one of its outputs is.
    """
    maker = {name: k for k, node in enumerate(cell.nodes) for name in node.output if name}
    inputs = set(cell.inputs)
    stored: set[str] = set()
    used: set[str] = set()
    recomputed: set[int] = set()
    waiting = sorted(cell.needed)
    while waiting:
        name = waiting.pop()
        if name in inputs:
            used.add(name)
        elif name in maker and name not in chosen:
            stored.add(name)
        elif name in maker and maker[name] not in recomputed:
            node = cell.nodes[maker[name]]
            recomputed.add(maker[name])
            waiting += reads_of(node)
    made = {name for k in recomputed for name in cell.nodes[k].output}
    order = [name for node in cell.nodes for name in node.output]
    return CellPlan(
        tuple(name for name in order if name in stored - made),
        frozenset(used),
        tuple(cell.nodes[k] for k in sorted(recomputed)),
    )


def constant_tensors(cell: Cell) -> set[str]:
    """Tensors that are the same at every step."""
    varying = set(cell.inputs)
    found: set[str] = set()
    for node in cell.nodes:
        reads = reads_of(node)
        if _unsafe(node) or any(name in varying for name in reads):
            varying.update(node.output)
        else:
            found.update(name for name in node.output if name)
    return found


def _unsafe(node: onnx.NodeProto) -> bool:
    """Whether a second run would give other values."""
    return operator_key(node) in RANDOM_OPS | EFFECT_OPS


def _named(cell: Cell, patterns: Sequence[str]) -> set[str]:
    """The tensors that were named; caffe2's rule: all outputs of an operator, or none."""
    chosen: set[str] = set()
    for node in cell.nodes:
        outputs = [str(name) for name in node.output if name]
        matched = set[str]().union(*(_matching(cell, outputs, p) for p in patterns))
        if not matched:
            continue
        missing = [name for name in outputs if name not in matched]
        if missing:
            raise UsageError(
                f"--scan-recompute: {node.op_type} '{node.name}' can be recomputed only with "
                f"all its outputs; not named: {', '.join(missing)}",
                f"add them: --scan-recompute '{'+'.join((*patterns, *missing))}'",
            )
        if not cell.recomputes(node):
            raise UsageError(
                f"--scan-recompute: {node.op_type} '{node.name}' cannot be recomputed: it draws "
                "random numbers, has effects or holds a graph",
                "leave it out",
            )
        chosen.update(outputs)
    return chosen - cell.stacked  # what is stored anyway is not recomputed


def _matching(cell: Cell, outputs: Sequence[str], pattern: str) -> set[str]:
    return {n for n in outputs if any(fnmatchcase(name, pattern) for name in cell.names_of(n))}


def _cheap(cell: Cell, constant: Collection[str]) -> set[str]:
    """What to recompute so that the fewest bytes are stored, and no contraction runs twice.

    A minimum cut between what the step is given and what its backward reads, as PyTorch's
    partitioner has it (``torch/_functorch/partitioners.py``), over one step.
    """
    names = [*cell.inputs, *cell.computed]
    # What is kept in any case costs nothing more. Of cuts of equal bytes the latest is taken, which
    # leaves the least to recompute.
    scale = len(names) ** 2 + 1
    weights = {
        name: (0 if free else scale * (sized_bytes(cell.types[name]) or 1)) + len(names) - place
        for place, name in enumerate(names)
        if name not in constant
        for free in [name in cell.stacked or (name in cell.needed and name in cell.inputs)]
    }
    runs = (
        Run(
            reads_of(node),
            tuple(name for name in node.output if name),
            cell.recomputes(node) and not operator(operator_key(node)).work,
        )
        for node in cell.nodes
    )
    found = cut(weights, cell.inputs, cell.needed, runs)
    assert found is not None
    return set(found.below)
