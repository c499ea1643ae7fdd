"""The other pieces: gradients of one's own, quantization, losses, parametrizations, sequences.

See ``benchmarks/nets/code.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memplan
from benchmarks.nets.code import mlp, parts, piece, step


class Reversed(torch.autograd.Function):
    """The identity, with the gradient turned round (Ganin and Lempitsky 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """``x``."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Against it, at half its size."""
        return -0.5 * grad


class Signed(torch.autograd.Function):
    """The sign, with the gradient of a hard tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """-1, 0 or 1."""
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Straight through, up to 1."""
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


@piece
def gradient_reversal() -> memplan.TorchStep:
    """A ``torch.autograd.Function`` between the features and the domain's classifier."""
    model = parts(body=mlp(12, 16, 8), label=nn.Linear(8, 5), domain=nn.Linear(8, 2))

    def loss(model: Any, x: Tensor, label: Tensor, domain: Tensor) -> Tensor:
        hidden = model["body"](x)
        other = model["domain"](Reversed.apply(hidden))
        found = functional.cross_entropy(model["label"](hidden), label)
        return found + functional.cross_entropy(other, domain)

    return step(
        model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)), torch.randint(0, 2, (6,))
    )


@piece
def binarized() -> memplan.TorchStep:
    """Signs of weights and activations by a ``torch.autograd.Function``."""
    model = parts(first=nn.Linear(12, 16), second=nn.Linear(16, 5))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        hidden = Signed.apply(functional.linear(x, Signed.apply(model["first"].weight)) / 4)
        return functional.cross_entropy(model["second"](hidden), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


class LearntQuantizer(nn.Module):
    """Rounding passed straight through, with a step that is learnt (Esser et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` in 16 levels."""
        part = (x / self.scale).clamp(-8.0, 7.0)
        return (part + (part.round() - part).detach()) * self.scale


@piece
def quantization_aware() -> memplan.TorchStep:
    """Fake quantization of weights and activations, scales learnt."""
    model = parts(first=nn.Linear(12, 16), second=nn.Linear(16, 5))
    model["weight"], model["activation"] = LearntQuantizer(), LearntQuantizer()

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        first = model["first"]
        hidden = functional.linear(x, model["weight"](first.weight), first.bias).relu()
        return functional.cross_entropy(model["second"](model["activation"](hidden)), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def fake_quantize_operator() -> memplan.TorchStep:
    """PyTorch's own operator of fake quantization."""
    model = mlp(12, 16, 5)

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        weight = torch.fake_quantize_per_tensor_affine(model[0].weight, 0.05, 0, -8, 7)
        hidden = functional.linear(x, weight, model[0].bias).relu()
        return functional.cross_entropy(model[2](hidden), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def ctc() -> memplan.TorchStep:
    """Connectionist temporal classification: to be right, or refused in words."""
    model = parts(rnn=nn.GRU(6, 8), head=nn.Linear(8, 5))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        found = model["head"](model["rnn"](x)[0]).log_softmax(-1)
        return functional.ctc_loss(found, label, torch.tensor([10, 10]), torch.tensor([3, 2]))

    return step(model, loss, torch.randn(10, 2, 6), torch.randint(1, 5, (2, 3)))


@piece
def label_smoothing_and_weights() -> memplan.TorchStep:
    """Smoothing, class weights and ignored labels at once."""
    weights = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.1])

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(
            model(x), label, weights.to(x.dtype), label_smoothing=0.1, ignore_index=-100
        )

    label = torch.tensor([0, 1, -100, 3, 4, 2])
    return step(mlp(12, 16, 5), loss, torch.randn(6, 12), label)


@piece
def mixup() -> memplan.TorchStep:
    """Soft labels of two samples in one, smoothed."""

    def loss(model: Any, x: Tensor, label: Tensor, share: Tensor) -> Tensor:
        mixed = share * x + (1 - share) * x.flip(0)
        soft = functional.one_hot(label, 5).to(x.dtype)
        goal = share * soft + (1 - share) * soft.flip(0)
        return functional.cross_entropy(model(mixed), goal, label_smoothing=0.1)

    batch = torch.randn(6, 12), torch.randint(0, 5, (6,)), torch.rand(6, 1)
    return step(mlp(12, 16, 5), loss, *batch)


@piece
def focal() -> memplan.TorchStep:
    """The weight of the focal loss is a constant."""

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(
            model(x).squeeze(-1), label, reduction="none", pos_weight=torch.tensor(3.0)
        )
        return ((1 - (-each).exp()).square().detach() * each).mean()

    return step(mlp(12, 16, 1), loss, 20 * torch.randn(6, 12), torch.randint(0, 2, (6,)).float())


class Translator(nn.Module):
    """An encoder, a decoder and attention, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.encode = nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True)
        self.decode = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(16, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss of the next words."""
        memory, _ = self.encode(self.words(source))
        hidden, _ = self.decode(self.words(target[:, :-1]))
        scores = (hidden @ memory.transpose(1, 2)).masked_fill((source == 0)[:, None], -torch.inf)
        found = self.out(torch.cat([hidden, scores.softmax(-1) @ memory], -1))
        return functional.cross_entropy(
            found.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
        )


@piece
def translation() -> memplan.TorchStep:
    """Padding that is not trained, LSTM layers with dropout between them, attention."""
    source = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [3, 3, 4, 4, 0]])
    target = torch.tensor([[1, 5, 6, 7, 2], [1, 9, 2, 0, 0], [1, 4, 4, 2, 0]])
    return step(Translator(), lambda model, source, target: model(source, target), source, target)


@piece
def spectral_norm() -> memplan.TorchStep:
    """The older form: one step of the power iteration in every forward pass, in buffers."""
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(12, 16)), nn.Tanh(), nn.Linear(16, 5))
    return step(model, _classify, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def weight_norm() -> memplan.TorchStep:
    """Length and direction apart."""
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(norm(nn.Linear(12, 16)), nn.Tanh(), norm(nn.Linear(16, 5)))
    return step(model, _classify, torch.randn(6, 12), torch.randint(0, 5, (6,)))


def _classify(model: Any, x: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), label)


@piece
def gradient_checkpointing() -> memplan.TorchStep:
    """``torch.utils.checkpoint`` around two blocks."""
    model = parts(first=mlp(12, 16, 16), second=mlp(16, 16, 5))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        hidden = checkpoint(model["first"], x, use_reentrant=False)
        found = checkpoint(model["second"], hidden, use_reentrant=False)
        return functional.cross_entropy(found, label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def gumbel_softmax() -> memplan.TorchStep:
    """A hard choice that is drawn; the gradient is that of the soft one."""
    model = parts(choose=mlp(12, 16, 4), table=nn.Linear(4, 5, bias=False))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        choice = functional.gumbel_softmax(model["choose"](x), tau=0.7, hard=True)
        return functional.cross_entropy(model["table"](choice), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def stochastic_depth() -> memplan.TorchStep:
    """A mask per sample by ``bernoulli``, and dropout."""
    model = parts(body=mlp(12, 16, 12), head=nn.Sequential(nn.Dropout(0.3), nn.Linear(12, 5)))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        kept = torch.bernoulli(torch.full((x.shape[0], 1), 0.7)) / 0.7
        return functional.cross_entropy(model["head"](x + kept * model["body"](x)), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


class LowRank(nn.Module):
    """A layer that is frozen, and a change of low rank beside it (Hu et al. 2021)."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.base = nn.Linear(wide, narrow).requires_grad_(False)
        self.down, self.up = nn.Linear(wide, 2, bias=False), nn.Linear(2, narrow, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Both together."""
        found: Tensor = self.base(x) + 2 * self.up(self.down(self.drop(x)))
        return found


@piece
def lora() -> memplan.TorchStep:
    """Frozen layers through which gradients pass."""
    model = nn.Sequential(LowRank(12, 16), nn.GELU(), LowRank(16, 5))
    return step(model, _classify, torch.randn(6, 12), torch.randint(0, 5, (6,)))


class Experts(nn.Module):
    """The two best of four, and what keeps their load even (Fedus et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 4, bias=False)
        self.experts = nn.ModuleList(mlp(12, 16, 5) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The answer, and the auxiliary loss."""
        share = self.gate(x).softmax(-1)
        best, which = share.topk(2, -1)
        kept = torch.zeros_like(share).scatter(-1, which, best / best.sum(-1, keepdim=True))
        found = torch.stack([expert(x) for expert in self.experts], -1)
        load = functional.one_hot(which[:, 0], 4).float().mean(0)
        return (found * kept[:, None]).sum(-1), 4 * (load * share.mean(0)).sum()


@piece
def mixture_of_experts() -> memplan.TorchStep:
    """A choice without a gradient beside weights with one."""

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        found, extra = model(x)
        return functional.cross_entropy(found, label) + 0.1 * extra

    return step(Experts(), loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def tensor_hook() -> memplan.TorchStep:
    """A hook that scales a gradient on its way."""
    model = parts(body=mlp(12, 16, 8), head=nn.Linear(8, 5))

    def loss(model: Any, x: Tensor, label: Tensor) -> Tensor:
        hidden = model["body"](x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: 10 * grad)
        return functional.cross_entropy(model["head"](hidden), label)

    return step(model, loss, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def parameter_hook() -> memplan.TorchStep:
    """Rows of a gradient that a hook sets to 0."""
    model = mlp(12, 16, 5)
    model[0].weight.register_hook(lambda grad: grad * (torch.arange(16) % 2)[:, None])
    return step(model, _classify, torch.randn(6, 12), torch.randint(0, 5, (6,)))


@piece
def truncated_recurrence() -> memplan.TorchStep:
    """A state that is carried on, cut off from the gradient halfway."""
    model = parts(cell=nn.GRUCell(6, 8), head=nn.Linear(8, 1))

    def loss(model: Any, x: Tensor, goal: Tensor) -> Tensor:
        state, total = x.new_zeros(x.shape[1], 8), x.new_zeros(())
        for k, each in enumerate(x):
            state = model["cell"](each, state.detach() if k == 3 else state)
            total = total + functional.mse_loss(model["head"](state).squeeze(-1), goal[k])
        return total

    return step(model, loss, torch.randn(6, 4, 6), torch.randn(6, 4))
