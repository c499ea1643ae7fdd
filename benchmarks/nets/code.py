"""Pieces of training code that are easy to get wrong: what stops a gradient, replaces one, changes
a buffer or draws. Self-supervised and adversarial training, distillation, reinforcement.

Each makes a small :class:`memplan.TorchStep` with an optimizer. ``benchmarks/nets/tricks.py``
has the others; ``benchmarks/capture/check.py`` holds all of them against PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import memplan

Make = Callable[[], memplan.TorchStep]
PIECES: dict[str, Make] = {}


def piece(make: Make) -> Make:
    """Enter a piece under the name of its function."""
    PIECES[make.__name__] = make
    return make


def step(model: nn.Module, loss: Callable[..., Tensor], *batch: Tensor) -> memplan.TorchStep:
    """With SGD, whose updates show a wrong gradient as it is."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return memplan.TorchStep(model, loss, batch, torch.optim.SGD(trainable, 0.05, momentum=0.9))


def mlp(*sizes: int, norm: bool = False) -> nn.Sequential:
    """Linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers.append(nn.Linear(wide, narrow))
        layers += [nn.BatchNorm1d(narrow)] if norm else []
        layers.append(nn.GELU())
    return nn.Sequential(*layers[:-1])


def parts(**modules: nn.Module) -> nn.ModuleDict:
    """Several modules as one model."""
    return nn.ModuleDict(modules)


def frozen(module: nn.Module) -> nn.Module:
    """A copy that is not trained, as teachers and targets are."""
    return copy.deepcopy(module).requires_grad_(False)


class VectorQuantizer(nn.Module):
    """The nearest code of each row, passed straight through (van den Oord et al. 2017)."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(count, size)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The codes, and the losses of codebook and commitment."""
        nearest = torch.cdist(z.detach(), self.codes.weight.detach()).argmin(-1)
        code = self.codes(nearest)
        loss = functional.mse_loss(code, z.detach()) + 0.25 * functional.mse_loss(z, code.detach())
        return z + (code - z).detach(), loss


@piece
def vq_vae() -> memplan.TorchStep:
    """Straight-through, commitment and codebook."""
    model = parts(encode=mlp(12, 16, 6), quantize=VectorQuantizer(8, 6), decode=mlp(6, 16, 12))

    def loss(model: Any, x: Tensor) -> Tensor:
        code, extra = model["quantize"](model["encode"](x))
        return functional.mse_loss(model["decode"](code), x) + extra

    return step(model, loss, torch.randn(10, 12))


def _gan() -> nn.ModuleDict:
    judge = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(12, 16)),
        nn.LeakyReLU(0.2),
        nn.Linear(16, 1),
    )
    return parts(make=mlp(4, 16, 12, norm=True), judge=judge)


@piece
def gan_discriminator() -> memplan.TorchStep:
    """What the generator made is detached; its running statistics change all the same."""
    model = _gan()
    model["make"].requires_grad_(False)

    def loss(model: Any, z: Tensor, real: Tensor) -> Tensor:
        false = model["judge"](model["make"](z).detach())
        return functional.softplus(false).mean() + functional.softplus(-model["judge"](real)).mean()

    return step(model, loss, torch.randn(6, 4), torch.randn(6, 12))


@piece
def gan_generator() -> memplan.TorchStep:
    """The judge is not trained, and the gradient goes through it."""
    model = _gan()
    model["judge"].requires_grad_(False)

    def loss(model: Any, z: Tensor) -> Tensor:
        return functional.softplus(-model["judge"](model["make"](z))).mean()

    return step(model, loss, torch.randn(6, 4))


@piece
def wgan_gradient_penalty() -> memplan.TorchStep:
    """A gradient of a gradient (Gulrajani et al. 2017): to be right, or refused in words."""
    model = mlp(12, 16, 1)

    def loss(model: Any, real: Tensor, false: Tensor, share: Tensor) -> Tensor:
        between = (share * real + (1 - share) * false).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return model(false).mean() - model(real).mean() + 10 * penalty

    return step(model, loss, torch.randn(5, 12), torch.randn(5, 12), torch.rand(5, 1))


@piece
def byol() -> memplan.TorchStep:
    """A target network that follows as a mean, under no_grad and in train mode."""
    online = mlp(12, 16, 8, norm=True)
    model = parts(online=online, predict=mlp(8, 16, 8), target=frozen(online))

    def loss(model: Any, one: Tensor, two: Tensor) -> Tensor:
        with torch.no_grad():
            goal = functional.normalize(model["target"](two), dim=-1)
        found = functional.normalize(model["predict"](model["online"](one)), dim=-1)
        return (2 - 2 * (found * goal).sum(-1)).mean()

    return step(model, loss, torch.randn(6, 12), torch.randn(6, 12))


@piece
def simsiam() -> memplan.TorchStep:
    """Each view is the other's target, behind a stop of the gradient (Chen and He 2021)."""
    model = parts(encode=mlp(12, 16, 8, norm=True), predict=mlp(8, 16, 8))

    def loss(model: Any, one: Tensor, two: Tensor) -> Tensor:
        a, b = model["encode"](one), model["encode"](two)
        first = functional.cosine_similarity(model["predict"](a), b.detach())
        second = functional.cosine_similarity(model["predict"](b), a.detach())
        return -(first.mean() + second.mean()) / 2

    return step(model, loss, torch.randn(6, 12), torch.randn(6, 12))


class Dino(nn.Module):
    """Student and teacher with temperatures, and a center that follows (Caron et al. 2021)."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp(12, 16, 8)
        self.teacher = frozen(self.student)
        self.register_buffer("center", 0.1 * torch.ones(8))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        """The cross entropy of the two."""
        with torch.no_grad():
            raw = self.teacher(two)
            goal = ((raw - self.center) / 0.04).softmax(-1)
            self.center.mul_(0.9).add_(raw.mean(0), alpha=0.1)
        return -(goal * (self.student(one) / 0.1).log_softmax(-1)).sum(-1).mean()


@piece
def dino() -> memplan.TorchStep:
    """The center is a buffer that changes in place under no_grad."""
    return step(
        Dino(), lambda model, one, two: model(one, two), torch.randn(6, 12), torch.randn(6, 12)
    )


class Moco(nn.Module):
    """Contrast with a queue of earlier keys (He et al. 2020)."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = mlp(12, 16, 8)
        self.key = frozen(self.query)
        self.register_buffer("queue", functional.normalize(torch.randn(16, 8), dim=-1))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        """The loss; the queue moves on."""
        q = functional.normalize(self.query(one), dim=-1)
        with torch.no_grad():
            k = functional.normalize(self.key(two), dim=-1)
        scores = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.queue.clone().detach().T], 1)
        with torch.no_grad():
            self.queue.copy_(torch.cat([k, self.queue[: -k.shape[0]]]))
        first = torch.zeros(one.shape[0], dtype=torch.long)
        return functional.cross_entropy(scores / 0.2, first)


@piece
def moco() -> memplan.TorchStep:
    """A queue in a buffer, read before it changes."""
    return step(
        Moco(), lambda model, one, two: model(one, two), torch.randn(4, 12), torch.randn(4, 12)
    )


@piece
def distillation() -> memplan.TorchStep:
    """A teacher under no_grad, KL at a temperature."""
    teacher = mlp(12, 32, 5).eval().requires_grad_(False)
    model = parts(student=mlp(12, 16, 5), teacher=teacher)

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        with torch.no_grad():
            goal = functional.log_softmax(model["teacher"](x) / 4, -1)
        found = model["student"](x)
        soft = functional.kl_div(
            functional.log_softmax(found / 4, -1), goal, reduction="batchmean", log_target=True
        )
        return 16 * soft + functional.cross_entropy(found, label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def mean_teacher() -> memplan.TorchStep:
    """A trainable teacher that requires gradients, and gets none for its detached answer."""
    student = mlp(12, 16, 5)
    model = parts(student=student, teacher=copy.deepcopy(student))

    def loss(model: Any, x: Tensor, noise: Tensor, label: Tensor) -> Tensor:
        found = model["student"](x)
        goal = model["teacher"](x + noise).detach()
        same = functional.mse_loss(found.softmax(-1), goal.softmax(-1))
        return functional.cross_entropy(found, label) + 3 * same

    return step(
        model, loss, torch.randn(6, 12), 0.1 * torch.randn(6, 12), torch.randint(0, 5, (6,))
    )


@piece
def actor_critic() -> memplan.TorchStep:
    """The advantage is a constant to the actor."""
    model = parts(body=mlp(8, 16, 16), actor=nn.Linear(16, 4), critic=nn.Linear(16, 1))

    def loss(model: Any, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        hidden = model["body"](state).relu()
        value = model["critic"](hidden).squeeze(-1)
        likely = model["actor"](hidden).log_softmax(-1)
        advantage = (reward - value).detach()
        chosen = likely.gather(1, action[:, None]).squeeze(1)
        entropy = -(likely.exp() * likely).sum(-1).mean()
        return (
            -(chosen * advantage).mean() + 0.5 * functional.mse_loss(value, reward) - 0.01 * entropy
        )

    return step(model, loss, torch.randn(10, 8), torch.randint(0, 4, (10,)), torch.randn(10))


@piece
def ppo() -> memplan.TorchStep:
    """A ratio that is clipped, from the smaller side; some are at 1 exactly."""
    model = parts(actor=mlp(8, 16, 4), critic=mlp(8, 16, 1))
    state, action = torch.randn(10, 8), torch.randint(0, 4, (10,))
    with torch.no_grad():
        before = model["actor"](state).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
    before[5:] += 0.5

    def loss(model: Any, state: Tensor, action: Tensor, before: Tensor, goal: Tensor) -> Tensor:
        likely = model["actor"](state).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
        value = model["critic"](state).squeeze(-1)
        advantage = goal - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (likely - before).exp()
        clipped = ratio.clamp(0.8, 1.2) * advantage
        return -torch.min(ratio * advantage, clipped).mean() + functional.mse_loss(value, goal)

    return step(model, loss, state, action, before, torch.randn(10))


@piece
def double_dqn() -> memplan.TorchStep:
    """A target network, an argmax of the online one, and Huber's loss."""
    online = mlp(8, 16, 4)
    model = parts(online=online, target=frozen(mlp(8, 16, 4)))

    def loss(model: Any, state: Tensor, action: Tensor, reward: Tensor, later: Tensor) -> Tensor:
        found = model["online"](state).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = model["online"](later).argmax(-1, keepdim=True)
            goal = reward + 0.9 * model["target"](later).gather(1, best).squeeze(1)
        return functional.smooth_l1_loss(found, goal)

    batch = torch.randn(10, 8), torch.randint(0, 4, (10,)), torch.randn(10), torch.randn(10, 8)
    return step(model, loss, *batch)


@piece
def clip_contrastive() -> memplan.TorchStep:
    """A temperature that is learnt, and lies at the bound that it is clamped to."""

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = mlp(12, 16, 8), nn.EmbeddingBag(20, 8)
            self.temperature = nn.Parameter(torch.tensor(4.6052))

        def forward(self, image: Tensor, text: Tensor) -> Tensor:
            a = functional.normalize(self.image(image), dim=-1)
            b = functional.normalize(self.text(text), dim=-1)
            scores = self.temperature.clamp(max=4.6052).exp() * a @ b.T
            label = torch.arange(image.shape[0])
            one, other = (functional.cross_entropy(s, label) for s in (scores, scores.T))
            return (one + other) / 2

    batch = torch.randn(6, 12), torch.randint(0, 20, (6, 5))
    return step(Contrast(), lambda model, image, text: model(image, text), *batch)


@piece
def diffusion_with_ema() -> memplan.TorchStep:
    """Noise at a level of each sample; the mean of the weights is a buffer of the model."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(13, 32, 12)
            self.register_buffer("mean", self.body[0].weight.detach().clone())

        def forward(self, x: Tensor, level: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.lerp_(self.body[0].weight, 0.01)
            found: Tensor = self.body(torch.cat([x, level], -1))
            return found

    def loss(model: Any, x: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        share = torch.cos(level * torch.pi / 2) ** 2
        seen = share.sqrt() * x + (1 - share).sqrt() * noise
        weight = (share / (1 - share)).clamp(max=5.0)
        return (weight * (model(seen, level) - noise).square()).mean()

    return step(
        Denoiser(), loss, torch.randn(6, 12), torch.randn(6, 12), 0.05 + 0.9 * torch.rand(6, 1)
    )
