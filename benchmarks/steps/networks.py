"""Five networks with their losses, for steps of a fraction of a second on two cores.

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

LENGTH, WORDS, CLASSES = 256, 4096, 10
RATE, DECAY = 3e-4, 0.01

Step = tuple[nn.Module, tuple[Tensor, ...]]


class Network(nn.Module):
    """What the five share: how a block is called."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints

    def through(self, block: nn.Module, *x: Any) -> Any:
        """What a block gives, from a checkpoint in front of it where that is asked for."""
        return checkpoint(block, *x, use_reentrant=False) if self.checkpoints else block(*x)


# --- Transformers -------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and two linear layers, each behind a layer norm."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(Network):
    """A decoder with learned places."""

    def __init__(self, checkpoints: bool, width: int = 320, depth: int = 5) -> None:
        super().__init__(checkpoints)
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, 5, True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Vit(Network):
    """Patches of 8, an encoder, a class."""

    def __init__(self, checkpoints: bool, width: int = 256, depth: int = 5) -> None:
        super().__init__(checkpoints)
        self.patches, self.places = nn.Conv2d(3, width, 8, 8), nn.Embedding(144, width)
        self.blocks = nn.ModuleList(Block(width, 4, False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x).mean(1)), labels)


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


class ResNet(Network):
    """Two residual blocks at each of three widths."""

    def __init__(self, checkpoints: bool, width: int = 32) -> None:
        super().__init__(checkpoints)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList()
        for before, after in pairwise((width, width, 2 * width, 4 * width)):
            self.blocks.append(Residual(before, after, 1 + (before != after)))
            self.blocks.append(Residual(after, after, 1))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class UNet(Network):
    """Three levels down, two up, with their bridges; a logit for every pixel."""

    def __init__(self, checkpoints: bool, width: int = 16) -> None:
        super().__init__(checkpoints)
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


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states


class Lstm(Network):
    """A language model of two LSTM layers."""

    def __init__(self, checkpoints: bool, width: int = 256) -> None:
        super().__init__(checkpoints)
        self.words = nn.Embedding(WORDS // 2, width)
        self.blocks = nn.ModuleList(_Layer(width) for _ in range(2))
        self.head = nn.Linear(width, WORDS // 2)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


# --- All five -----------------------------------------------------------------------------------


def _text(count: int, length: int, words: int) -> tuple[Tensor, ...]:
    return tuple(torch.randint(0, words, (count, length)) for _ in range(2))


def _images(count: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, size, size), torch.randint(0, CLASSES, (count,))


def _masks(count: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, size, size), torch.rand(count, 1, size, size).round()


NETWORKS: dict[str, tuple[Callable[[bool], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt": (Gpt, lambda: _text(8, LENGTH, WORDS)),
    "vit": (Vit, lambda: _images(16, 96)),
    "unet": (UNet, lambda: _masks(8, 96)),
    "resnet": (ResNet, lambda: _images(32, 32)),
    "lstm": (Lstm, lambda: _text(16, 64, WORDS // 2)),
}


def make(name: str, checkpoints: bool = False) -> Step:
    """A network and its batch, the same in every process."""
    torch.manual_seed(0)
    network, batch = NETWORKS[name]
    made = network(checkpoints)
    torch.manual_seed(1)
    return made, batch()


def training_step(name: str) -> Any:
    """What is captured: the network gives the loss itself; AdamW."""
    model, batch = make(name)
    return model, None, batch, torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
