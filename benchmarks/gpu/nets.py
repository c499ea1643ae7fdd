"""The networks of the GPU benchmark in PyTorch, at full size and small, and their batches.

Each ``forward(*batch)`` returns the scalar loss; ``blocks`` are the modules that activation
checkpointing wraps, the usual ones. GPT-2 and U-Net are those of ``sample_models/nets.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[2] / "sample_models"))
import nets


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with batch norm and a (projected) shortcut."""

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        out = 4 * middle
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU()),
            nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(middle), nn.ReLU()),
            *(nn.Conv2d(middle, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 with ``layers=(3, 4, 6, 3)`` and ``width=64``."""

    def __init__(self, layers: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.MaxPool2d(3, 2, padding=1),
        )
        self.blocks = nn.ModuleList()
        channels = width
        for stage, count in enumerate(layers):
            for index in range(count):
                middle = width << stage
                stride = 2 if index == 0 and stage > 0 else 1
                self.blocks.append(Bottleneck(channels, middle, stride))
                channels = 4 * middle
        self.head = nn.Linear(channels, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x.mean((2, 3))), labels)


class BertLayer(nn.Module):
    """Post-norm transformer layer with full self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.proj(mixed))
        return self.norm2(x + self.fc2(functional.gelu(self.fc1(x))))


class Bert(nn.Module):
    """BERT without dropout: masked-language-model loss over all positions, tied output weights."""

    def __init__(self, vocab: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))
        nn.init.normal_(self.token.weight, std=0.02)
        self.head = nn.Linear(width, vocab)
        self.head.weight = self.token.weight
        self.loss = nn.CrossEntropyLoss()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.token(tokens) + self.position.weight)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x).flatten(0, 1), labels.flatten())


class Gpt(nets.Gpt):
    """The sample GPT; its mask is made on the device of the tokens."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        position = torch.arange(tokens.shape[1], device=tokens.device)
        future = position[None, :] > position[:, None]
        for block in self.blocks:
            x = block(x, future)
        return self.loss(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class Net:
    """A network: its maker, its batch of a given size, and the modules to checkpoint."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    blocks: Callable[[nn.Module], list[tuple[nn.Module, str]]]


def _images(size: int, classes: int, dense: bool) -> Callable[[int], dict[str, Tensor]]:
    def batch(count: int) -> dict[str, Tensor]:
        shape = (count, size, size) if dense else (count,)
        return {
            "images": torch.randn(count, 3, size, size),
            "labels": torch.randint(0, classes, shape),
        }

    return batch


def _tokens(vocab: int, length: int) -> Callable[[int], dict[str, Tensor]]:
    def batch(count: int) -> dict[str, Tensor]:
        return {
            "tokens": torch.randint(0, vocab, (count, length)),
            "labels": torch.randint(0, vocab, (count, length)),
        }

    return batch


def _listed(model: nn.Module) -> list[tuple[nn.Module, str]]:
    return [(model.blocks, name) for name, _ in model.blocks.named_children()]  # type: ignore[union-attr]


def _unet_blocks(model: nn.Module) -> list[tuple[nn.Module, str]]:
    found: list[tuple[nn.Module, str]] = [(model, "stem")]
    for part in (model.down, model.merge):
        found += [(part, name) for name, _ in part.named_children()]  # type: ignore
    return found


NETS: dict[tuple[str, str], Net] = {
    ("resnet50", "full"): Net(
        lambda: ResNet((3, 4, 6, 3), 64, 1000), _images(224, 1000, False), _listed
    ),
    ("resnet50", "tiny"): Net(lambda: ResNet((1, 1), 8, 10), _images(32, 10, False), _listed),
    ("unet", "full"): Net(lambda: nets.UNet(64, 4, 2), _images(512, 2, True), _unet_blocks),
    ("unet", "tiny"): Net(lambda: nets.UNet(8, 2, 2), _images(32, 2, True), _unet_blocks),
    ("gpt2", "full"): Net(lambda: Gpt(50257, 1024, 768, 12, 12), _tokens(50257, 1024), _listed),
    ("gpt2", "tiny"): Net(lambda: Gpt(96, 48, 32, 2, 2), _tokens(96, 48), _listed),
    ("bert", "full"): Net(lambda: Bert(30522, 512, 768, 12, 12), _tokens(30522, 512), _listed),
    ("bert", "tiny"): Net(lambda: Bert(96, 48, 32, 2, 2), _tokens(96, 48), _listed),
}
