"""What is known of a graph beyond its nodes: contents of small constants, and what holds always."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a graph. ``values``: contents of small constants by name. ``exact``: every
    shape is the one of each run (no symbolic dimension, no upper bound)."""

    graph: Graph
    values: Mapping[str, Array]
    exact: bool

    def shape_stays(self, node: Node) -> bool:
        """Whether input and output have the same shape in every run."""
        tensors = self.graph.tensors
        return self.exact and tensors[node.inputs[0]].shape == tensors[node.outputs[0]].shape

    def value(self, node: Node, slot: int) -> Array | None:
        """The constant in an input slot; None where there is none or it is not known."""
        return None if self.absent(node, slot) else self.content(node.inputs[slot])

    def content(self, tensor: int) -> Array | None:
        """The constant that a tensor is, if it is known."""
        return self.values.get(self.graph.tensors[tensor].name)

    def absent(self, node: Node, slot: int) -> bool:
        """Whether an optional input is left out."""
        return slot >= len(node.inputs) or node.inputs[slot] == ABSENT

    def maker(self, tensor: int) -> Node | None:
        """The node that makes a tensor."""
        producer = self.graph.tensors[tensor].producer
        return None if producer == ABSENT else self.graph.nodes[producer]
