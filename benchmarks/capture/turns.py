"""Steps of one model in turns, by PyTorch and by ``memplan.AlternatingTrainer``, side by side.

    python -m benchmarks.capture.turns --json benchmarks/results/turns.json

A GAN (discriminator and generator, with spectral and batch normalization, Adam) and a student whose
teacher is the average of its weights, by both roads: 30 turns of PyTorch's own loop in float32, and
of the captured steps.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import memplan
from benchmarks.record import write_record

TURNS = 30
SHOWN = (1, 2, 5, 10, 20, 30)
Row = dict[str, object]


class Gan(nn.Module):
    """A generator and a discriminator of two layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
        self.d = nn.Sequential(spectral_norm(nn.Linear(8, 32)), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def judged(model: Any, x: Tensor, z: Tensor) -> Tensor:
    """The discriminator's loss; the generator is detached."""
    false = model.d(model.g(z).detach())
    return functional.softplus(false).mean() + functional.softplus(-model.d(x)).mean()


def made(model: Any, z: Tensor) -> Tensor:
    """The generator's loss, through the discriminator."""
    return functional.softplus(-model.d(model.g(z))).mean()


def gan(via: str) -> Iterator[tuple[float, float, str]]:
    """Losses of both steps: PyTorch's, memplan's, and whose."""
    torch.manual_seed(0)
    model = Gan().train()
    pair = {
        name: torch.optim.Adam(part.parameters(), 1e-3)
        for name, part in (("d", model.d), ("g", model.g))
    }
    batches = [(torch.randn(16, 8) + 1, torch.randn(16, 4)) for _ in range(TURNS)]
    x, z = batches[0]
    steps = {
        "d": memplan.TorchStep(model, judged, (x, z), pair["d"], frozen="inputs"),
        "g": memplan.TorchStep(model, made, (z,), pair["g"], frozen="inputs"),
    }
    trainer = memplan.AlternatingTrainer(
        {name: memplan.capture(step, via=via).model for name, step in steps.items()}
    )
    for x, z in batches:
        wanted = taken(partial(judged, model, x, z), pair["d"])
        yield wanted, trainer.step("d", x=x.numpy(), z=z.numpy()), "d"
        wanted = taken(partial(made, model, z), pair["g"])
        yield wanted, trainer.step("g", z=z.numpy()), "g"


class Pair(nn.Module):
    """A student, and a teacher that begins as its copy."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)


def taught(model: Any, x: Tensor, noise: Tensor, label: Tensor) -> Tensor:
    """Cross entropy, and the distance from what the teacher says of another view."""
    found = model.student(x)
    with torch.no_grad():
        goal = model.teacher(x + noise).softmax(-1)
    same = functional.mse_loss(found.softmax(-1), goal)
    return functional.cross_entropy(found, label) + 3 * same


def mean_teacher(via: str) -> Iterator[tuple[float, float, str]]:
    """The same of a student and its teacher."""
    torch.manual_seed(0)
    model, decay = Pair(), 0.9
    optimizer = torch.optim.AdamW(model.student.parameters(), 1e-2)
    batches = [
        (torch.randn(16, 12), 0.1 * torch.randn(16, 12), torch.randint(0, 5, (16,)))
        for _ in range(TURNS)
    ]
    ema = memplan.Ema(decay, {"teacher": "student"})
    step = memplan.TorchStep(model, taught, batches[0], optimizer, ema=ema)
    trainer = memplan.Trainer(memplan.capture(step, via=via).model)
    for batch in batches:
        wanted = taken(partial(taught, model, *batch), optimizer)
        with torch.no_grad():
            for old, new in zip(
                model.teacher.parameters(), model.student.parameters(), strict=True
            ):
                old.lerp_(new, 1 - decay)
        x, noise, label = (each.numpy() for each in batch)
        yield wanted, trainer.step({"x": x, "noise": noise, "label": label}), "student"


def taken(loss: Callable[[], Tensor], optimizer: Any) -> float:
    """One step of PyTorch; its loss."""
    optimizer.zero_grad()
    found = loss()
    found.backward()
    optimizer.step()
    return float(found.detach())


def rows() -> Iterator[Row]:
    """A row per pair, road and step."""
    for pair in (gan, mean_teacher):
        for via in ("grad", "joint"):
            losses: dict[str, list[tuple[float, float]]] = {}
            for wanted, found, whose in pair(via):
                losses.setdefault(whose, []).append((wanted, found))
            for whose, curve in losses.items():
                apart = max(abs(one - other) / abs(one) for one, other in curve)
                row: Row = {"pair": pair.__name__, "road": via, "step": whose, "turns": len(curve)}
                shown = {k: curve[k - 1] for k in SHOWN}
                yield {**row, "largest_relative_difference": apart, "losses": shown}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    found = []
    arguments = parser.parse_args()
    for row in rows():
        print(row)
        found.append(row)
    write_record(
        arguments.json, f"python -m benchmarks.capture.turns --json {arguments.json}", found
    )


if __name__ == "__main__":
    main()
