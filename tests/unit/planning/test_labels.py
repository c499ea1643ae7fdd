"""What is known of tensors by kind, and where gradients flow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.checkpoints import STEP
from helpers.graphs import graph_of, open_text
from memplan.ir.phases import differentiated, find_phases
from memplan.planning.labels import labels_of


def test_kinds_of_a_graph() -> None:
    graph = graph_of(STEP)
    labels = labels_of(graph, frozenset({1, 2}))
    unfit = {labels.names[t] for t in np.flatnonzero(labels.unfit)}
    assert unfit == {"d", "keep", "mean", "dev", "c"}
    assert labels.elements[labels.names.index("a")] == 1600
    assert labels.elements[labels.names.index("loss")] == 1
    assert np.flatnonzero(labels.differentiated).tolist() == [1, 2]


def test_gradients_flow_from_the_parameters_to_the_loss() -> None:
    model = open_text(STEP)
    found = {model.graph.nodes[k].name for k in differentiated(model.graph, model.phases)}
    assert found == {"mul", "drop", "norm", "cast", "masked", "sum"}  # not the mask
    without = replace(find_phases(model.graph), parameters=frozenset(), loss=None)
    assert differentiated(model.graph, without) == without.forward
