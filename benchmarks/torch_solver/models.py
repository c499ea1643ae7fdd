"""Five small networks, each with its loss, for steps of a fraction of a second on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Block(nn.Module):
    """A transformer block whose attention is spelled out, with Dropout."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        mixed = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    """A decoder with its cross-entropy."""

    def __init__(self, words: int = 1000, length: int = 128, width: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


class GatedBlock(nn.Module):
    """A block of Llama: no biases, no Dropout, a gated MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """As many layers as in pytorch#197838, whose peaks rise where the budget falls."""

    def __init__(self, words: int = 1000, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(GatedBlock(width, 4, 352) for _ in range(32))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


class Vit(nn.Module):
    """Patches, an encoder, a class."""

    def __init__(self, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.ModuleList(Block(width, 4, False) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x).mean(1)), wanted)


def convolved(width: int, out: int) -> nn.Sequential:
    """Two convolutions with normalisation."""
    return nn.Sequential(
        nn.Conv2d(width, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


class Unet(nn.Module):
    """Three levels down, three up, with their bridges."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(convolved, [3, *sizes[:-1]], sizes))
        self.up = nn.ModuleList(convolved(3 * each, each) for each in sizes[-2::-1])
        self.end = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        bridges = []
        for level in self.down[:-1]:
            x = level(x)
            bridges.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for level in self.up:
            x = level(torch.cat([functional.interpolate(x, scale_factor=2.0), bridges.pop()], 1))
        return functional.binary_cross_entropy_with_logits(self.end(x), wanted)


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = convolved(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.body(x))


class Cnn(nn.Module):
    """A residual network."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return functional.cross_entropy(self.head(x.mean((2, 3))), wanted)


def _tokens(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 1000, (batch, 128)), torch.randint(0, 1000, (batch, 128))


def _images(batch: int, size: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))


def _masks(batch: int, size: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.rand(batch, 1, size, size).round()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "GPT": (Gpt, lambda: _tokens(8)),
    "Llama": (Llama, lambda: _tokens(4)),
    "ViT": (Vit, lambda: _images(8, 96)),
    "U-Net": (Unet, lambda: _masks(4, 64)),
    "CNN": (Cnn, lambda: _images(8, 32)),
}


def make(name: str) -> Step:
    """A network and its batch, the same in every process."""
    torch.manual_seed(0)
    network, batch = MODELS[name]
    return network(), batch()
