"""Small networks with their losses, for steps of a fraction of a second on two cores.

``forward(*batch)`` of each gives the scalar loss. With ``checkpoints`` every block runs under
``torch.utils.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 10
Step = tuple[nn.Module, tuple[Tensor, ...]]


class Network(nn.Module):
    """What most share: how a block is called."""

    checkpoints = False

    def through(self, block: nn.Module, *x: Any) -> Any:
        """What a block gives, from a checkpoint in front of it where that is asked for."""
        return checkpoint(block, *x, use_reentrant=False) if self.checkpoints else block(*x)


# --- Transformers -------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and two linear layers, each behind a layer norm.

    With ``drop``, a share, there is dropout, and attention is spelled out.
    """

    def __init__(self, width: int, heads: int, causal: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop) if drop else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm_2(x)))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """By PyTorch's function, or with dropout of the weights."""
        if isinstance(self.drop, nn.Identity):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores, length = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, q.shape[2]
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return self.drop(scores.softmax(-1)) @ v


class Gpt(Network):
    """A decoder with learned places."""

    def __init__(
        self, words: int, length: int, width: int, heads: int, depth: int, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, True, drop) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Vit(Network):
    """Patches of 8, an encoder, a class; with as many learned places as are asked for."""

    def __init__(self, width: int, depth: int, places: int = 0, drop: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Embedding(places, width) if places else None
        self.blocks = nn.ModuleList(Block(width, 4, False, drop) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.places is not None:
            x = x + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x).mean(1)), labels)


class GatedBlock(nn.Module):
    """A block of Llama: no biases, a gated MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(Network):
    """As many layers as in pytorch#197838, whose peaks rise where the budget falls."""

    def __init__(self, words: int, width: int, depth: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(GatedBlock(width, 4, 352) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


# --- Convolutions -------------------------------------------------------------------------------


def convolved(channels: int, outer: int, stride: int = 1) -> nn.Sequential:
    """Two convolutions with batch norm; the last ReLU is the caller's."""
    return nn.Sequential(
        *(nn.Conv2d(channels, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()),
        *(nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)),
    )


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body, same = convolved(channels, outer, stride), channels == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class Twice(Residual):
    """With a ReLU before the sum, too, and no shortcut of its own."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 1)
        self.body.append(nn.ReLU())


class ResNet(Network):
    """A stem and blocks of some width in the end."""

    def __init__(self, stem: int, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, stem, 3, padding=1), nn.ModuleList(blocks)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def resnet(width: int = 32) -> ResNet:
    """Two residual blocks at each of three widths."""
    blocks: list[nn.Module] = []
    for before, after in pairwise((width, width, 2 * width, 4 * width)):
        blocks += [Residual(before, after, 1 + (before != after)), Residual(after, after, 1)]
    return ResNet(width, blocks, 4 * width)


class UNet(Network):
    """Three levels down, two up, with their bridges; a logit for every pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(convolved, [3, *sizes[:-1]], sizes))
        self.up = nn.ModuleList(convolved(3 * size, size) for size in sizes[-2::-1])
        self.end = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        bridges = []
        for level in self.down:
            if bridges:
                x = functional.max_pool2d(x, 2)
            x = functional.relu(self.through(level, x))
            bridges.append(x)
        bridges.pop()
        for level in self.up:
            x = torch.cat([functional.interpolate(x, scale_factor=2.0), bridges.pop()], 1)
            x = functional.relu(self.through(level, x))
        return functional.binary_cross_entropy_with_logits(self.end(x), labels)


# --- Recurrent ----------------------------------------------------------------------------------


class Recurrence(nn.Module):
    """The states of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states


class Lstm(Network):
    """A language model of two LSTM layers."""

    def __init__(self, words: int, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Recurrence(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


# --- With batches -------------------------------------------------------------------------------


def _text(count: int, length: int, words: int) -> tuple[Tensor, ...]:
    return tuple(torch.randint(0, words, (count, length)) for _ in range(2))


def _images(count: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, size, size), torch.randint(0, CLASSES, (count,))


def _masks(count: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, size, size), torch.rand(count, 1, size, size).round()


Made = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]
BESIDE_EAGER: dict[str, Made] = {
    "gpt": (lambda: Gpt(4096, 256, 320, 5, 5), lambda: _text(8, 256, 4096)),
    "vit": (lambda: Vit(256, 5, places=144), lambda: _images(16, 96)),
    "unet": (UNet, lambda: _masks(8, 96)),
    "resnet": (resnet, lambda: _images(32, 32)),
    "lstm": (lambda: Lstm(2048), lambda: _text(16, 64, 2048)),
}
"""Of ``benchmarks/steps``."""
BESIDE_SOLVERS: dict[str, Made] = {
    "GPT": (lambda: Gpt(1000, 128, 128, 4, 4, drop=0.1), lambda: _text(8, 128, 1000)),
    "Llama": (lambda: Llama(1000, 128), lambda: _text(4, 128, 1000)),
    "ViT": (lambda: Vit(128, 4, drop=0.1), lambda: _images(8, 96)),
    "U-Net": (UNet, lambda: _masks(4, 64)),
    "CNN": (lambda: ResNet(32, [Twice(32) for _ in range(4)], 32), lambda: _images(8, 32)),
}
"""Of ``benchmarks/torch_solver``."""


def make(name: str, checkpoints: bool = False) -> Step:
    """A network and its batch, the same in every process."""
    network, batch = (BESIDE_EAGER | BESIDE_SOLVERS)[name]
    torch.manual_seed(0)
    made = network()
    made.checkpoints = checkpoints  # type: ignore[assignment]
    torch.manual_seed(1)
    return made, batch()
