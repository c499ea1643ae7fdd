"""Graph → :class:`Labels`: names, marks and kinds, for the strategies that go by them."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from memplan.ir.graph import Graph
from memplan.solver.problem import Flags, Labels

# In memory_saving_gradients.py tensors with these words in their names are no checkpoints:
# L2Loss, entropy, FusedBatchNorm, Switch, dropout, Cast. The same as operators of ONNX; what
# TensorFlow's names say of whole scopes, operators say of single nodes.
_UNFIT = ("Loss", "CrossEntropy", "BatchNorm", "Dropout")
_UNFIT_EXACTLY = frozenset({"Cast", "CastLike", "If"})
# Operators whose outputs from the second on are statistics of the first input.
_NORMS = "Normalization"


def labels_of(graph: Graph, differentiated: Set[int], kept: Set[int] = frozenset()) -> Labels:
    """The labels of a graph whose gradients flow through the nodes ``differentiated``.

    Tensors that the user keeps (``kept``) count as marked, like those that the file marks.
    """
    unfit = np.zeros(len(graph.tensors), np.bool_)
    for node in graph.nodes:
        whole = node.op in _UNFIT_EXACTLY or any(word in node.op for word in _UNFIT)
        for slot, tensor in enumerate(node.outputs):
            if tensor >= 0 and (whole or (slot > 0 and _NORMS in node.op)):
                unfit[tensor] = True
    return Labels(
        names=tuple(tensor.name for tensor in graph.tensors),
        marked=flags(len(graph.tensors), graph.checkpoints | kept),
        elements=np.asarray([math.prod(t.shape) for t in graph.tensors], dtype=np.int64),
        unfit=unfit,
        differentiated=flags(len(graph.nodes), differentiated),
    )


def flags(count: int, chosen: Set[int]) -> Flags:
    """True at the numbers in ``chosen``, of 0 to ``count`` - 1."""
    return np.isin(np.arange(count), list(chosen))
