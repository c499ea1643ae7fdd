"""``lower``: a training graph of onnxruntime-training → the same in standard operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from memplan.api.grad.check_outcome import GradientCheck
from memplan.api.lower.lowering import lower_model
from memplan.api.source import Model, as_file, shown_path
from memplan.api.summary import Summary, attributes_json, phase_counts
from memplan.autodiff.lowering.optimizer_model import optimizer_text, read_optimizer
from memplan.autodiff.lowering.ort_checkpoint import read_checkpoint
from memplan.ir.contract import Contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.options import LowerOptions
from memplan.proto.paths import as_output, as_path
from memplan.proto.read import read_model
from memplan.proto.weights import NO_WEIGHTS, Placement, plan_weights, write_with_weights
from memplan.proto.write import check_target

SCHEMA = "memplan.lower/1"


@dataclass(frozen=True, slots=True, repr=False)
class LoweredGraph(Summary):
    """The answer of ``lower``; ``output`` is None if nothing was written.

    ``replaced`` counts the operators that ONNX does not define, by name. ``fed`` are gradients that
    whoever runs the file brings, as inputs; ``seeded`` is the output whose gradient is 1 instead.
    ``check`` is None if it was not asked for.
    """

    path: Path
    output: Path | None
    options: LowerOptions
    model: onnx.ModelProto
    contract: Contract
    replaced: Mapping[str, int]
    optimizer: str = "none"
    fed: tuple[str, ...] = ()
    seeded: str | None = None
    notes: tuple[str, ...] = ()
    placement: Placement = field(default=NO_WEIGHTS)
    check: GradientCheck | None = None

    @property
    def loss(self) -> str | None:
        """The loss output."""
        return self.contract.loss

    @property
    def nodes(self) -> Mapping[Phase, int]:
        """How many nodes each part has; the loss counts as forward."""
        return phase_counts(self.model.graph)

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameters that have a gradient, or a new value."""
        renewed = {*self.contract.gradients.values(), *self.contract.new_values.values()}
        return tuple(n for n in self.contract.named(Role.PARAMETER) if n in renewed)

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            **attributes_json(self, "loss", "optimizer", "replaced", "nodes"),
            **attributes_json(self.contract, "roles", "gradients", "new_values"),
            "fed_gradients": list(self.fed),
            **attributes_json(self, "seeded", "notes"),
            "weights": self.placement.how,
            **attributes_json(self, "check", "output"),
        }


def lower(
    path: Model,
    output: Path | str | None = None,
    options: LowerOptions | None = None,
    *,
    force: bool = False,
    check: bool = True,
) -> LoweredGraph:
    """Lower the training graph in ``path``, one of onnxruntime-training, to standard operators.

    Args:
        path: a training model of its artifacts, or a graph that ORTModule saved: a path or a
            ``ModelProto``.
        output: where to write; None: nowhere.
        options: the loss, the optimizer model, the checkpoint, what becomes of weights.
        force: overwrite ``output``.
        check: hold the gradients against central differences of the graph's own forward part.

    Raises:
        GradientsDifferError: they are not its gradients; nothing is written.
        ModelError: a model cannot be read, or has operators that are not known; all are named.
        UsageError: bad option or output path.
    """
    target = as_output(output)
    with as_file(path) as file:
        found = _lower(file, options or LowerOptions(), target, force, check)
    return replace(found, path=shown_path(path))


def _lower(
    path: Path, options: LowerOptions, output: Path | None, force: bool, check: bool
) -> LoweredGraph:
    """The same for a file."""
    further = (options.optimizer_model, options.checkpoint)
    update, saved = (as_path(file) if file is not None else None for file in further)
    if output is not None:
        check_target(output, force, path, update, saved)
    optimizer = read_optimizer(read_model(update), str(update)) if update is not None else None
    checkpoint = read_checkpoint(saved) if saved is not None else None
    if optimizer is not None and checkpoint is not None and checkpoint.rate is not None:
        optimizer = replace(optimizer, lr=checkpoint.rate)
    model = read_model(path)
    placement = NO_WEIGHTS
    if output is not None:
        placement = plan_weights(model, path, output, options.weights, force, update, saved)
    found = lower_model(model, path, options.loss, optimizer, checkpoint, check=check)
    if output is not None:
        placement = write_with_weights(found.model, path, output, placement, force=force)
    return LoweredGraph(
        path=path,
        output=output,
        options=options,
        model=found.model,
        contract=found.contract,
        replaced=found.replaced,
        optimizer=optimizer_text(optimizer) if optimizer is not None else "none",
        fed=found.fed,
        seeded=found.seeded,
        notes=found.notes,
        placement=placement,
        check=found.check,
    )
