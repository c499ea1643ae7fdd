"""What people train beside a plain step, thirty steps beside PyTorch: a GAN whose two steps share
one model, a student with a teacher that follows it, averages of the weights, and metrics."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.torch_steps import captured
from helpers.with_torch import functional, nn, torch
from memplan.errors import UsageError
from memplan.ir.roles import Role

STEPS = 30
NOISE = 2e-5
"""Of a loss in float32 after 30 steps. Eager PyTorch is off its own float64 by up to 2e-6 here."""


class Adversaries(nn.Module):  # type: ignore[name-defined,misc]
    """A generator with a batch normalization; a discriminator with one and with spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(
            nn.Linear(3, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 6)
        )
        norm = nn.utils.parametrizations.spectral_norm
        self.d = nn.Sequential(
            norm(nn.Linear(6, 16)), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 1)
        )


def d_loss(model: Any, x: Any, z: Any) -> Any:
    real, fake = model.d(x), model.d(model.g(z).detach())
    judge = functional.binary_cross_entropy_with_logits
    loss = judge(real, torch.ones_like(real)) + judge(fake, torch.zeros_like(fake))
    return loss, {"accuracy": (real > 0).float().mean(), "caught": (fake < 0).sum()}


def g_loss(model: Any, z: Any) -> Any:
    fake = model.d(model.g(z))
    return functional.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


class Pair:
    """A GAN in PyTorch, and the batches of a training."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Adversaries().train()
        self.d = torch.optim.Adam(self.model.d.parameters(), 1e-3, betas=(0.5, 0.999))
        self.g = torch.optim.Adam(self.model.g.parameters(), 1e-3, betas=(0.5, 0.999))
        self.batches = [(torch.randn(8, 6) + 1, torch.randn(8, 3)) for _ in range(STEPS)]

    def steps(self, frozen: str = "inputs") -> dict[str, Any]:
        """The captured steps."""
        x, z = self.batches[0]
        made = {
            "d": memplan.TorchStep(self.model, d_loss, (x, z), self.d, frozen=frozen),
            "g": memplan.TorchStep(self.model, g_loss, (z,), self.g, frozen=frozen),
        }
        return {name: captured(step).model for name, step in made.items()}

    def train(self) -> Iterator[tuple[float, dict[str, Any], float]]:
        """Losses and metrics of PyTorch's own loop."""
        for x, z in self.batches:
            self.d.zero_grad()
            loss, metrics = d_loss(self.model, x, z)
            loss.backward()
            self.d.step()
            self.g.zero_grad()
            second = g_loss(self.model, z)
            second.backward()
            self.g.step()
            yield loss.item(), {k: v.item() for k, v in metrics.items()}, second.item()


def both(trainer: memplan.AlternatingTrainer, batch: Any) -> tuple[float, float]:
    x, z = (each.numpy() for each in batch)
    return trainer.step("d", x=x, z=z), trainer.step("g", z=z)


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    return Pair().steps()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_gan_in_turns_trains_as_in_pytorch(files: dict[str, Any], in_place: bool) -> None:
    """``in_place=False``: every buffer changes places with a second one, in both sessions."""
    pair = Pair()
    trainer = memplan.AlternatingTrainer(files, in_place=in_place, threads=1)
    for batch, (first, metrics, second) in zip(pair.batches, pair.train(), strict=True):
        found = both(trainer, batch)
        np.testing.assert_allclose(found, (first, second), rtol=NOISE)
        assert trainer["d"].metrics == pytest.approx(metrics)
    assert trainer.steps == {"d": STEPS, "g": STEPS}
    state = trainer.state_dict()
    for name, value in pair.model.state_dict().items():
        if name in state:
            np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-3, atol=1e-4)
    assert {"d/step", "g/step"} <= state.keys()


def test_what_one_step_trains_is_no_constant_of_another(files: dict[str, Any]) -> None:
    constants = Pair().steps("constants")
    with pytest.raises(UsageError, match="a constant of step 'g'") as caught:
        memplan.AlternatingTrainer({"d": files["d"], "g": constants["g"]})
    assert "--frozen inputs" in caught.value.hint
    with pytest.raises(UsageError, match="not state of this step") as caught:
        memplan.Trainer(constants["g"]).load_state_dict({"d.3.bias": np.zeros(1, np.float32)})
    assert "--frozen inputs" in caught.value.hint


class Taught(nn.Module):  # type: ignore[name-defined,misc]
    """A student with a head, and a teacher that is an average of the student."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(
            nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 5)
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.head = nn.Linear(5, 5)


def agreement(model: Any, x: Any, y: Any) -> Any:
    """BYOL's: a prediction of one view against the teacher's projection of another."""
    with torch.no_grad():
        target = functional.normalize(model.teacher(y), dim=-1)
    found = functional.normalize(model.head(model.student(x)), dim=-1)
    return 2 - 2 * (found * target).sum(-1).mean()


def copying(model: Any, x: Any, y: Any) -> Any:
    """The same where the teacher has its student's running statistics."""
    loss = agreement(model, x, y)
    with torch.no_grad():
        for to, of in zip(model.teacher.buffers(), model.student.buffers(), strict=True):
            to.copy_(of)
    return loss


@pytest.mark.parametrize("step_loss", [agreement, copying])
def test_a_teacher_follows_its_student_as_in_pytorch(step_loss: Any) -> None:
    torch.manual_seed(0)
    model = Taught().train()
    with torch.no_grad():
        for parameter in model.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if step_loss is copying:
        model.teacher.eval()
    optimizer = torch.optim.SGD([*model.student.parameters(), *model.head.parameters()], 0.05, 0.9)
    batches = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(STEPS)]
    ema = memplan.Ema(0.9, {"teacher": "student"})
    step = memplan.TorchStep(model, step_loss, batches[0], optimizer, ema=ema)
    capture = captured(step)
    assert "teacher.3.weight" in capture.contract.named(Role.AVERAGE)
    trainer = memplan.Trainer(capture.model, threads=1)
    for x, y in batches:
        optimizer.zero_grad()
        loss = step_loss(model, x, y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for to, of in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                to.mul_(0.9).add_(of, alpha=0.1)
        assert trainer.step(x=x.numpy(), y=y.numpy()) == pytest.approx(loss.item(), rel=NOISE)
    state = trainer.state_dict()
    for name, value in model.state_dict().items():
        if name in state:
            np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-3, atol=1e-5)


def test_averages_are_those_of_swa_utils(tmp_path: Path) -> None:
    """``AveragedModel`` copies at its first update, which is a decay of 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    swa = torch.optim.swa_utils
    averaged = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(STEPS)]
    loss = functional.cross_entropy
    capture = captured(memplan.TorchStep(model, loss, batches[0], optimizer, ema=0.9))
    trainer = memplan.Trainer(capture.model, threads=1)
    assert (trainer.state_dict()["0.weight.ema"] == trainer.state_dict()["0.weight"]).all()
    trainer.set("ema_decay", lambda step: 0.0 if step == 1 else 0.9)
    names = dict(zip(capture.batch, range(2), strict=True))
    for batch in batches:
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        averaged.update_parameters(model)
        found = trainer.step({name: batch[k].numpy() for name, k in names.items()})
        assert found == pytest.approx(value.item(), rel=NOISE)
    state = trainer.state_dict()
    for name, value in averaged.module.named_parameters():
        np.testing.assert_allclose(state[f"{name}.ema"], value.detach(), rtol=1e-4, atol=1e-5)
    torch.onnx.export(model.eval(), (batches[0][0],), tmp_path / "forward.onnx", dynamo=True)
    assert trainer.export_forward(tmp_path / "net.onnx", tmp_path / "forward.onnx", ema=True) == ()
    assert _answers(tmp_path / "net.onnx", batches[0][0]) == pytest.approx(
        averaged(batches[0][0]).detach().numpy(), abs=1e-5
    )


def _answers(path: Path, x: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    (given,) = session.get_inputs()
    return session.run(None, {given.name: x.numpy()})[0]


@pytest.mark.parametrize(
    ("ema", "says"),
    [
        (2.0, "a number from 0 to 1"),
        (memplan.Ema(0.9, {"tutor": "student"}), "no module 'tutor'"),
        (memplan.Ema(0.9, {"teacher": "head"}), "no counterpart"),
        (memplan.Ema(0.9, {"student": "teacher"}), "the optimizer trains it"),
    ],
)
def test_averages_that_cannot_be_are_refused(ema: Any, says: str) -> None:
    model = Taught().train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    batch = (torch.randn(8, 6), torch.randn(8, 6))
    step = memplan.TorchStep(model, agreement, batch, torch.optim.SGD(parameters, 0.1), ema=ema)
    with pytest.raises(UsageError, match=says):
        captured(step)
