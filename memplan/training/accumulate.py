"""Gradients of several batches, summed where they are, and one update with the sums.

Takes what ``memplan grad --update-output`` writes: a step that gives gradients, and the optimizer's
own graph. Both are changed as they are loaded, never in their files: each gradient is added to its
sum as soon as it is made, in place, and the update leaves zeros in the sums when it has read them.
Weights and sums are shared by both sessions; nothing is copied between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from memplan.api.source import Model
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.ir.contract import Contract
from memplan.ir.roles import LOSS_SCALE, Role
from memplan.proto.edit import renamed
from memplan.proto.graph_edit import GraphEdit, node_protos
from memplan.proto.metadata import set_metadata
from memplan.proto.names import NameAuthority, defined_names
from memplan.training.batches import Batch
from memplan.training.checkpoint import Progress, Wanted
from memplan.training.initial import Init
from memplan.training.kept import Kept
from memplan.training.knobs import Rate
from memplan.training.step_file import StepFile, read_step
from memplan.training.trained_weights import Weights
from memplan.training.trainer import Trainer

Array = npt.NDArray[Any]

_SCALE = "gradient_scale"
_FROM_PYTORCH = (
    "a step that was captured from PyTorch accumulates by a loop over parts of the batch in its "
    "loss function, and Trainer runs it"
)


class AccumulatingTrainer(Kept[int]):
    """Trains with sums of gradients: :class:`memplan.training.trainer.Trainer` over two files.

        trainer = memplan.AccumulatingTrainer("step.onnx", "update.onnx", lr=1e-3)
        loss = trainer.step([first, second, third, fourth])

    Args:
        step: a graph whose outputs are the loss and gradients.
        update: the optimizer's graph, which takes these gradients.
        weights: first values by name, of either file; see ``Trainer``.
        init: see ``Trainer``.
        lr: see ``Trainer``.
        provider: see ``Trainer``.
        threads: see ``Trainer``.
        dims: sizes of symbolic dimensions of the step.

    Raises:
        ModelError: a file cannot be read, or the two do not belong together.
        UsageError: a value is missing, or does not fit.
        RuntimeUnavailableError: ONNX Runtime refuses a file or the provider.
    """

    def __init__(
        self,
        step: Model,
        update: Model,
        weights: Weights | None = None,
        *,
        init: Init = None,
        lr: Rate | None = None,
        provider: str | None = None,
        threads: int = 0,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        first, second = read_step(step, dims), read_step(update)
        self._sums = _sums(first, second)
        self.notes = tuple(dict.fromkeys((*first.contract.notes, *second.contract.notes)))
        shared: dict[str, Any] = {"provider": provider, "threads": threads}
        self._gradients = Trainer(
            _summing(first, self._sums), weights, init=init, dims=dims, **shared
        )
        values = self._gradients.state_dict()
        known = dict.fromkeys(slot.name for slot in second.state)
        mine = {name: value for name, value in values.items() if name in known}
        self._update = Trainer(_emptying(second, self._sums), mine, init=init, lr=lr, **shared)
        self._parameters = tuple(mine)
        self._share()
        # What both have, the update renews; the sums are zeros between steps.
        self._parts = {"step": self._gradients.memory, "update": self._update.memory}
        self._keys = {
            "step": {name: name for name in values if name not in (*self._sums.values(), *known)},
            "update": {name: name for name in known if name not in self._sums},
        }
        taken = {slot.name: slot.default for slot in second.named(Role.HYPERPARAMETER)}
        self._scales, self._fixed = _SCALE in taken, taken.get(LOSS_SCALE)
        self._model_files = (*first.files, *second.files)

    def _share(self) -> None:
        """Let both sessions have the same weights and sums."""
        for name in self._parameters:
            self._gradients.session.share(name, self._update.session.buffers[name])
        for gradient, held in self._sums.items():
            self._update.session.share(gradient, self._gradients.session.buffers[held])

    @property
    def steps(self) -> int:
        """How many updates were made."""
        return self._update.steps

    @property
    def lr(self) -> Rate | None:
        """The learning rate, as of ``Trainer``."""
        return self._update.lr

    @lr.setter
    def lr(self, value: Rate) -> None:
        self._update.lr = value

    @property
    def trainers(self) -> tuple[Trainer, Trainer]:
        """The two trainers: that of the gradients and that of the update."""
        return self._gradients, self._update

    def step(self, batches: Sequence[Batch], **hyperparameters: float) -> float:
        """Sum the gradients of some batches, and make one update with their mean.

        Args:
            batches: each as the step takes it.
            hyperparameters: of the update (``lr=...``), for this step.

        Of a loss that is scaled, all batches have the same scale, and one batch whose gradients are
        not finite skips the update of all; :attr:`skipped` says so.

        Returns:
            The mean of the losses.

        Raises:
            UsageError: there is no batch, or one does not fit.
            TrainingError: a loss is not a finite number; no update was made. Running statistics are
                those after the batches before.
        """
        if isinstance(batches, Mapping) or not len(batches):
            raise UsageError("batches are a list of mappings", "step([batch])")
        if len(batches) > 1 and not self._scales:
            raise UsageError(f"the update has no input '{_SCALE}' to take a mean with")
        scale = self._fixed_scale(hyperparameters)
        try:
            losses = [self._gradients.step({**batch, **scale}) for batch in batches]
        except MemplanError:
            for held in self._sums.values():
                self._gradients.session.set(held, np.zeros_like(self._gradients.session.get(held)))
            raise
        self._share()
        given = {_SCALE: 1 / len(batches)} if self._scales else {}
        self._update.step({**given, **hyperparameters})
        for gradient, held in self._sums.items():
            self._gradients.session.share(held, self._update.session.buffers[gradient])
        self._share()
        return math.fsum(losses) / len(losses)

    def _fixed_scale(self, given: Mapping[str, float]) -> dict[str, Any]:
        """The loss scale that the update takes, where it is not state that both sessions share."""
        if self._fixed is None:
            return {}
        own = self._update.numbers.get(LOSS_SCALE, float(self._fixed))
        return {LOSS_SCALE: given.get(LOSS_SCALE, own)}

    @property
    def skipped(self) -> bool:
        """Whether the last update was skipped, as of ``Trainer``."""
        return self._update.skipped

    @property
    def loss_scale(self) -> float | None:
        """What the gradients of the last update began with, as of ``Trainer``."""
        return self._update.loss_scale

    @property
    def _files(self) -> tuple[Path, ...]:
        return self._model_files

    @property
    def _step_files(self) -> list[StepFile]:
        return [each.file for each in self.trainers]

    @property
    def _wanted(self) -> Wanted:
        """What a checkpoint must be of: the state of both, without the sums."""
        slots = {
            key: each.file.slots[name]
            for part, each in zip(self._parts, self.trainers, strict=True)
            for key, name in self._keys[part].items()
        }
        return Wanted(self._fingerprint, slots, self._update.file.knobs)

    @property
    def _fingerprint(self) -> str:
        return "".join(file.fingerprint[:16] for file in self._step_files)

    def _progress(self) -> Progress:
        return Progress(self._fingerprint, self.steps, self._update.numbers)

    def adopt(self, about: Progress) -> None:
        self._update.adopt(about)


def _sums(step: StepFile, update: StepFile) -> dict[str, str]:
    """Gradient → the input of the changed step that holds its sum.

    Raises:
        ModelError: the update takes a gradient that the step does not give, or the other way round.
    """
    if Role.PARAMETER not in {update.slots[x].role for x in update.contract.new_values.values()}:
        raise ModelError(
            f"{update.path} is no graph of updates: it renews no parameter",
            f"memplan grad --update-output writes one; {_FROM_PYTORCH}",
        )
    made, taken = step.contract.gradients, update.contract.gradients
    for name in made.keys() & taken.keys():
        apart = made[name] if step.slots[made[name]].role is not Role.PARAMETER else ""
        if made[name] != taken[name] or apart:
            raise ModelError(
                f"{step.path} and {update.path} do not belong together: '{name}' is the gradient "
                f"of '{made[name]}'"
                + (", which the step does not train" if apart else f" here, '{taken[name]}' there"),
                f"memplan grad --update-output writes two that do; {_FROM_PYTORCH}",
            )
    missing = sorted(made.keys() ^ taken.keys())
    alone = [LOSS_SCALE] if step.scales_loss != update.scales_loss else []
    if missing or alone or not made:
        only = [*missing, *alone]
        what = f"'{only[0]}' is in one of them only" if only else "no gradients"
        raise ModelError(
            f"{step.path} and {update.path} do not belong together: {what}",
            f"memplan grad --update-output writes two that do; {_FROM_PYTORCH}",
        )
    names = NameAuthority(defined_names(step.whole.graph))
    return {gradient: names.fresh(f"{gradient}.sum") for gradient in made}


def _summing(step: StepFile, sums: Mapping[str, str]) -> onnx.ModelProto:
    """The step with every gradient added to its sum as soon as it is made."""
    edit = GraphEdit(step.whole)
    edit.names.taken.update(sums.values())
    types = {value.name: value for value in step.whole.graph.output}
    edit.drop_outputs(sums)
    pairs: dict[str, str] = {}
    for number, node in enumerate(node_protos(step.whole)):
        for name in node.output:
            if name in sums:
                held, new = sums[name], edit.fresh(f"{sums[name]}_new")
                edit.put_behind(
                    number, helper.make_node("Add", [held, name], [new], edit.fresh(new))
                )
                edit.graph.input.append(renamed(types[name], held))
                edit.graph.output.append(renamed(types[name], new))
                pairs[new] = held
    return _said(edit.finished(), step.contract, pairs)


def _emptying(update: StepFile, sums: Mapping[str, str]) -> onnx.ModelProto:
    """The update with zeros as the next value of every sum, made when all is done."""
    edit = GraphEdit(update.whole)
    last = len(node_protos(update.whole)) - 1
    pairs: dict[str, str] = {}
    for value in update.whole.graph.input:
        if value.name not in sums:
            continue
        slot = update.slots[value.name]
        shape = edit.constant(np.asarray(slot.static_shape, np.int64), f"{value.name}.shape")
        new = edit.fresh(f"{value.name}_new")
        zero = helper.make_tensor("zero", slot.element, [1], [0])
        edit.put_behind(
            last, helper.make_node("ConstantOfShape", [shape], [new], edit.fresh(new), value=zero)
        )
        edit.graph.output.append(renamed(value, new))
        pairs[new] = value.name
    return _said(edit.finished(), update.contract, pairs)


def _said(model: onnx.ModelProto, contract: Contract, pairs: Mapping[str, str]) -> onnx.ModelProto:
    """The model with the pairs in its contract; no gradient is an output any more."""
    roles = {name: role for name, role in contract.roles.items() if role is not Role.GRADIENT}
    roles |= dict.fromkeys(pairs.values(), Role.OPTIMIZER_STATE)
    roles |= dict.fromkeys(pairs, Role.NEW_VALUE)
    said = Contract(roles, {**contract.new_values, **pairs}, {}, stated=True)
    set_metadata(model, said.as_metadata())
    return model
