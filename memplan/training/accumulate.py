"""Gradients of several batches, summed where they are, and one update with the sums.

Takes what ``memplan grad --update-output`` writes: a step that gives gradients, and the optimizer's
own graph. The step is changed as it is loaded, never in its file: each gradient is added to its sum
as soon as it is made, in place. The sums are what the update takes for gradients: weights and sums
are shared by both sessions, and nothing is copied between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from memplan.api.source import Model
from memplan.errors import ModelError, UsageError
from memplan.ir.contract import Contract
from memplan.ir.roles import LOSS_SCALE, Role
from memplan.proto.edit import renamed
from memplan.proto.graph_edit import GraphEdit, node_protos
from memplan.training.alternating import Group
from memplan.training.batches import Batch
from memplan.training.checkpoint import Progress, Wanted
from memplan.training.initial import Init, first_state
from memplan.training.knobs import Rate
from memplan.training.step_file import StepFile, read_step
from memplan.training.trained_weights import Weights
from memplan.training.trainer import Trainer

_STEP, _UPDATE = "step", "update"
_SCALE = "gradient_scale"
_HINT = (
    "memplan grad --update-output writes {}; a step that was captured from PyTorch accumulates by "
    "a loop over parts of the batch in its loss function, and Trainer runs it"
)


class AccumulatingTrainer(Group[int]):
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
        _require_pair(first, second)
        files, sums = _summing(first, second)
        self._sums = list(sums)
        inside = {_STEP: files[_STEP].state, _UPDATE: files[_UPDATE].state}
        self._keys = {
            name: {sums.get(slot.name, slot.name): slot.name for slot in state}
            for name, state in inside.items()
        }
        # What both have, the update renews; the sums are zeros between steps.
        ours = self._keys[_STEP].keys() - self._keys[_UPDATE].keys()
        state = [slot for slot in inside[_STEP] if slot.name in ours]
        state += [slot for slot in inside[_UPDATE] if slot.name not in sums.values()]
        self._wanted = Wanted(
            "".join(file.fingerprint[:16] for file in files.values()),
            {slot.name: replace(slot, default=None) for slot in state},
            second.knobs,
        )
        begin = first_state(files.values(), self._wanted, weights, None)
        self._open(files, begin, {_UPDATE: lr}, init=init, provider=provider, threads=threads)
        self.notes = tuple(dict.fromkeys((*first.contract.notes, *second.contract.notes)))
        self._gradients, self._update = self._own.values()
        taken = {slot.name: slot.default for slot in second.named(Role.HYPERPARAMETER)}
        self._scales, self._fixed = _SCALE in taken, taken.get(LOSS_SCALE)

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
        self._require_whole()
        scale = self._fixed_scale(hyperparameters)
        given = {_SCALE: 1 / len(batches)} if self._scales else {}
        session = self._gradients.session
        try:
            losses = [self._gradients.step({**batch, **scale}) for batch in batches]
            self._update.step({**given, **hyperparameters})
        finally:  # whatever ended it, the next gradients are added to nothing
            for name in self._sums:
                held = session.buffers[name]
                session.set(name, np.zeros(held.shape, held.dtype))
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

    def _progress(self) -> Progress:
        return Progress(self._wanted.fingerprint, self.steps, self._update.numbers)

    def _part_of(self, name: str, about: Progress) -> Progress:
        return about

    def adopt(self, about: Progress) -> None:
        self._update.adopt(about)


def _require_pair(step: StepFile, update: StepFile) -> None:
    """Refuse two files that do not belong together.

    Raises:
        ModelError: the update takes a gradient that the step does not give, or the other way round.
    """
    if Role.PARAMETER not in {update.slots[x].role for x in update.contract.new_values.values()}:
        raise ModelError(
            f"{update.path} is no graph of updates: it renews no parameter", _HINT.format("one")
        )
    made, taken = step.contract.gradients, update.contract.gradients
    why = ""
    for name in made.keys() & taken.keys():
        if step.slots[made[name]].role is not Role.PARAMETER:
            why = f"'{name}' is the gradient of '{made[name]}', which the step does not train"
        elif made[name] != taken[name]:
            why = f"'{name}' is the gradient of '{made[name]}' here, '{taken[name]}' there"
    missing = sorted(made.keys() ^ taken.keys())
    missing += [LOSS_SCALE] if step.scales_loss != update.scales_loss else []
    if missing and not why:
        why = f"'{missing[0]}' is in one of them only"
    if why or not made:
        raise ModelError(
            f"{step.path} and {update.path} do not belong together: {why or 'no gradients'}",
            _HINT.format("two that do"),
        )


def _summing(step: StepFile, update: StepFile) -> tuple[dict[str, StepFile], dict[str, str]]:
    """The step with every gradient added to its sum as soon as it is made, and the update, to which
    the sums are state; and the input of the step that is a sum → the gradient."""
    edit = GraphEdit(step.model)
    gradients = step.contract.gradients
    types = {value.name: value for value in step.model.graph.output}
    edit.drop_outputs(gradients)
    sums = {edit.fresh(f"{name}.sum"): name for name in gradients}
    held_in = {name: held for held, name in sums.items()}
    pairs: dict[str, str] = {}
    for number, node in enumerate(node_protos(step.model)):
        for name in node.output:
            if name in held_in:
                held, new = held_in[name], edit.fresh(f"{held_in[name]}_new")
                edit.put_behind(
                    number, helper.make_node("Add", [held, name], [new], edit.fresh(new))
                )
                edit.graph.input.append(renamed(types[name], held))
                edit.graph.output.append(renamed(types[name], new))
                pairs[new] = held
    changed = {
        _STEP: step.changed(edit.finished(), _with_sums(step, pairs.values(), pairs)),
        _UPDATE: update.changed(update.model, _with_sums(update, sums.values(), {})),
    }
    return changed, sums


def _with_sums(file: StepFile, sums: Iterable[str], pairs: Mapping[str, str]) -> Contract:
    """The contract of a file with sums among its state; no gradient is an input or output."""
    contract = file.contract
    roles = {name: role for name, role in contract.roles.items() if name not in contract.gradients}
    roles |= dict.fromkeys(pairs, Role.NEW_VALUE) | dict.fromkeys(sums, Role.OPTIMIZER_STATE)
    new_values = {**contract.new_values, **pairs}
    return replace(contract, roles=roles, new_values=new_values, gradients={})
