"""Which node of a forward graph has a wrong gradient, where a tensor's is wrong.

Gradients of tensors between it and the end are built and measured: the last wrong one is read by
the node whose rule is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from memplan.api.grad.check_graphs import (
    Bound,
    BrokenGraphError,
    Differentiated,
    NoKernelError,
    NotComparableError,
)
from memplan.errors import MemplanError
from memplan.proto.nodes import reads_of
from memplan.units import listed

IsWrong = Callable[[onnx.ModelProto, dict[str, str], str], bool]
_NAMED = 3


def find_wrong_node(problem: Differentiated, at: Bound, x: str, is_wrong: IsWrong) -> str:
    """The node that probably has the wrong gradient, in words; empty if nothing tells.

    Args:
        problem: the graphs.
        at: the sizes.
        x: its gradient is wrong.
        is_wrong: measures the gradient of a tensor in a graph that was made for it.
    """
    search = _Search(problem, at, is_wrong)
    tensor = search.last_wrong(x)
    nodes = search.readers(tensor)
    if not nodes:
        return ""
    names = listed([f"{node.op_type} '{node.name}'" for node in nodes], _NAMED)
    return f"probably the gradient of {names} by '{tensor}'"


class _Search:
    """``path``: nodes between the tensor and the end, in order."""

    def __init__(self, problem: Differentiated, at: Bound, is_wrong: IsWrong) -> None:
        self.problem, self.is_wrong, self.types = problem, is_wrong, at.prepared.types
        self.nodes = list(problem.forward.graph.node)
        self.needed: set[str] = set(problem.ys)
        for node in reversed(self.nodes):
            if self.needed.intersection(node.output):
                self.needed.update(reads_of(node))
        self.known: dict[str, bool] = {}

    def last_wrong(self, x: str) -> str:
        """A tensor whose gradient is wrong, while those of all that is made of it are right."""
        tensors = [x, *self._made_of(x)]
        low, high = 0, len(tensors)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._wrong(tensors[middle]) else (low, middle)
        last = tensors[low]
        while True:  # the list has branches: what is next to it need not be made of it
            made = (name for node in self.readers(last) for name in node.output)
            wrong = [name for name in made if self._wrong(name)]
            if not wrong:
                return last
            last = wrong[0]

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        """Nodes that read a tensor on the way to the end."""
        return [
            node
            for node in self.nodes
            if tensor in reads_of(node) and self.needed.intersection(node.output)
        ]

    def _made_of(self, x: str) -> Iterator[str]:
        made = {x}
        for node in self.nodes:
            if made.intersection(reads_of(node)):
                made.update(node.output)
                yield from (name for name in node.output if self._counts(name))

    def _counts(self, name: str) -> bool:
        return name in self.needed and name in self.types and self.types[name].is_float

    def _wrong(self, name: str) -> bool:
        if name not in self.known:
            self.known[name] = self._counts(name) and self._measured(name)
        return self.known[name]

    def _measured(self, name: str) -> bool:
        if name in self.problem.ys:
            return False
        try:
            return self.is_wrong(*self.problem.differentiate(name), name)
        except (MemplanError, NoKernelError, BrokenGraphError, NotComparableError):
            return False
