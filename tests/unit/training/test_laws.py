"""What holds for every trainer: of one step, with a loss that is scaled, of several batches, of
steps in turns."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.networks import FAMILIES, batches, training_step
from helpers.two_steps import two_batches, two_steps
from memplan import AccumulatingTrainer, AlternatingTrainer, GradOptions, Trainer, grad
from memplan.errors import TrainingError, UsageError

DATA = batches(FAMILIES["mlp"](), 8)
LARGE = [{**batch, "x": batch["x"] * (1 + 49 * (k % 2 == 0))} for k, batch in enumerate(DATA)]
BAD = {**DATA[0], "x": np.full_like(DATA[0]["x"], np.nan)}
TURNS = two_batches(4)


@dataclass(frozen=True)
class Kind:
    """How a trainer is made, steps that it takes, one whose loss is not a number, and a trainer
    in it. The fingerprint is that which earlier versions wrote into checkpoints."""

    make: Callable[[], Any]
    step: Callable[[Any, int], object] = lambda trainer, k: trainer.step(DATA[k])
    fails: Callable[[Any], object] = lambda trainer: trainer.step(BAD)
    part: Callable[[Any], Trainer] = lambda trainer: trainer
    fingerprint: str = ""

    def rated(self, trainer: Any) -> Any:
        """What has the rate."""
        return self.part(trainer) if isinstance(trainer, AlternatingTrainer) else trainer


@cache
def plain() -> Any:
    return training_step("mlp")


@cache
def scaled() -> Any:
    scale = "dynamic{init_scale=3e38,growth_interval=3}"
    return grad(FAMILIES["mlp"](), GradOptions("loss", optimizer="adamw", loss_scale=scale)).model


@cache
def summed() -> Any:
    made = grad(FAMILIES["mlp"](), GradOptions("loss", optimizer="adamw", own_update=True))
    return made.model, made.update.model


def in_turns(trainer: Any, k: int) -> tuple[float, ...]:
    """Both steps, and the second time one of them."""
    first = trainer.step("d", TURNS[k])
    return (first,) if k == 1 else (first, trainer.step("g", z=TURNS[k]["z"]))


KINDS = {
    "plain": Kind(
        lambda: Trainer(plain(), threads=1),
        fingerprint="25fdb53b1f61a1914061be3933ef8f3c",
    ),
    "two buffers": Kind(
        lambda: Trainer(plain(), in_place=False, threads=1),
        fingerprint="25fdb53b1f61a1914061be3933ef8f3c",
    ),
    "scaled": Kind(
        lambda: Trainer(scaled(), threads=1),
        lambda trainer, k: trainer.step(LARGE[k]),
    ),
    "accumulating": Kind(
        lambda: AccumulatingTrainer(*summed(), threads=1),
        lambda trainer, k: trainer.step(DATA[2 * k : 2 * k + 2]),
        lambda trainer: trainer.step([DATA[0], BAD]),
        lambda trainer: trainer.trainers[0],
        "53eaabe8e6e3cd18cf34c130b855dded",
    ),
    "alternating": Kind(
        lambda: AlternatingTrainer(two_steps(), threads=1),
        in_turns,
        lambda trainer: trainer.step("g", z=np.full((4, 2), np.inf, np.float32)),
        lambda trainer: trainer["d"],
        "81a459e9824a5f79c7ac7965c1ffdaff37685c603a490a7fa6b5a960c8816bea",
    ),
}
each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def bits(trainer: Any) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in trainer.state_dict().items()}


@each
def test_a_run_goes_on_to_the_bit_behind_a_checkpoint(kind: Kind, tmp_path: Path) -> None:
    whole, first = kind.make(), kind.make()
    for trainer in (whole, first):
        kind.rated(trainer).lr = 0.01
    losses = [kind.step(whole, k) for k in range(4)]
    for k in range(2):
        kind.step(first, k)
    first.save(tmp_path / "run.npz")
    second = kind.make()
    assert second.resume(tmp_path / "run.npz") == second.steps == first.steps
    assert kind.rated(second).lr == pytest.approx(0.01)
    assert [kind.step(second, k) for k in (2, 3)] == losses[2:]
    assert bits(second) == bits(whole)


@each
def test_a_loss_that_is_not_a_number_leaves_the_state_as_it_was(kind: Kind) -> None:
    """The scale of a loss, too: GradScaler would halve it."""
    trainer, other = kind.make(), kind.make()
    assert kind.step(trainer, 0) == kind.step(other, 0)
    before = bits(trainer)
    with pytest.raises(TrainingError, match="as it was before"):
        kind.fails(trainer)
    assert bits(trainer) == before
    assert kind.step(trainer, 1) == kind.step(other, 1)


@each
def test_a_step_that_failed_while_it_wrote_goes_on_from_a_checkpoint(
    kind: Kind, tmp_path: Path
) -> None:
    trainer = kind.make()
    trainer.save(tmp_path / "run.npz")
    part = kind.part(trainer)
    part.memory.broken = "a step failed while it wrote in place: the state is partly new"
    with pytest.raises(UsageError, match="partly new"):
        trainer.save(tmp_path / "run.npz")
    trainer.resume(tmp_path / "run.npz")
    assert trainer.is_whole
    kind.step(trainer, 0)


@each
def test_checkpoints_are_known_and_those_of_others_are_refused(kind: Kind, tmp_path: Path) -> None:
    """A fingerprint of another kind than before would refuse what earlier versions wrote."""
    trainer, path = kind.make(), tmp_path / "run.npz"
    with pytest.raises(UsageError, match="does not exist"):
        trainer.resume(path)
    trainer.save(path)
    with np.load(path) as archive:
        told = json.loads(str(archive["memplan.checkpoint"]))["fingerprint"]
    assert kind.fingerprint in told
    for other in KINDS.values():
        if other.fingerprint != kind.fingerprint:
            with pytest.raises(UsageError, match="is a checkpoint of another model"):
                other.make().resume(path)
