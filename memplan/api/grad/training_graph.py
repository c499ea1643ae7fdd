"""What ``grad`` is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from memplan.api.grad.check_outcome import GradientCheck
from memplan.api.summary import Summary, attributes_json, phase_counts
from memplan.autodiff.parameters import Candidates
from memplan.autodiff.statistics import Statistics
from memplan.ir.contract import Contract
from memplan.ir.graph import Phase
from memplan.options import GradOptions
from memplan.proto.weights import NO_WEIGHTS, Placement

SCHEMA = "memplan.grad/1"
NOTHING_STATED = Contract({}, {}, {})
"""Of a forward graph."""


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """An optimizer as a graph of its own: gradients in, new values out.

    ``output`` is None if it was not written.
    """

    model: onnx.ModelProto
    output: Path | None
    contract: Contract
    hyperparameters: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """The part of the JSON object of ``grad``."""
        return {
            "nodes": len(self.model.graph.node),
            "inputs": [value.name for value in self.model.graph.input],
            "outputs": [value.name for value in self.model.graph.output],
            **attributes_json(self.contract, "new_values", "gradients", "roles"),
            **attributes_json(self, "hyperparameters", "output"),
        }


@dataclass(frozen=True, slots=True, repr=False)
class TrainingGraph(Summary):
    """The answer of ``grad``; ``output`` is None if nothing was written.

    ``new_values`` maps graph outputs to the graph inputs that they are the next value of, and
    ``contract`` says what every input and output is. ``hyperparameters`` are inputs with a default,
    ``not_decayed`` parameters that the optimizer's ``no_decay`` names. ``update`` is the graph that
    an optimizer of its own has. ``check`` is None if it was not asked for.
    """

    path: Path
    output: Path | None
    options: GradOptions
    loss: str
    wrt: tuple[str, ...]
    candidates: Candidates
    model: onnx.ModelProto
    new_inputs: tuple[str, ...]
    new_outputs: tuple[str, ...]
    class_axis: int | None
    contract: Contract = NOTHING_STATED
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    not_decayed: tuple[str, ...] = ()
    update: UpdateFile | None = None
    statistics: Statistics = field(default_factory=Statistics)
    notes: tuple[str, ...] = ()
    placement: Placement = NO_WEIGHTS
    counted_masks: int = 0
    check: GradientCheck | None = None

    @property
    def new_values(self) -> Mapping[str, str]:
        """Graph output → the graph input that it is the next value of."""
        return self.contract.new_values

    @property
    def nodes(self) -> Mapping[Phase, int]:
        """How many nodes each part has; the loss counts as forward."""
        return phase_counts(self.model.graph)

    @property
    def not_trained(self) -> tuple[str, ...]:
        """Floats that could have been differentiated by, and running statistics."""
        known = (*self.candidates.all, *self.candidates.statistics)
        return tuple(name for name in known if name not in set(self.wrt))

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            **attributes_json(self, "loss", "class_axis", "wrt"),
            **attributes_json(self.options, "optimizer", "loss_scale", "dropout"),
            **attributes_json(self, "counted_masks", "not_trained"),
            "running_statistics": dict(self.statistics.renewed),
            **attributes_json(self.contract, "new_values", "gradients", "roles"),
            **attributes_json(self, "hyperparameters", "not_decayed", "update", "notes", "nodes"),
            **attributes_json(self, "new_inputs", "new_outputs"),
            "weights": self.placement.how,
            **attributes_json(self, "check", "output"),
        }
