"""The networks behind the sample training graphs, and the training steps that are captured.

Every network is an ordinary ``nn.Module`` whose ``forward(*batch)`` returns the scalar loss, the
last item of the batch being the labels (int64 class indices).  They are small in parameters and
wide in activations, as training at a useful batch size is.

The functions at the end are what ``memplan capture sample_models/nets.py:NAME`` calls.  Of the
batch, only shapes and types matter.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from memplan import TorchStep


class GeluLayer(nn.Module):
    """Linear + GELU."""

    def __init__(self, features_in: int, features_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.linear(x))


class Mlp(nn.Module):
    """Linear + GELU layers of one width, a layer norm and a classifier."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        sizes = [features] + [width] * depth
        self.layers = nn.Sequential(*(GeluLayer(i, o) for i, o in pairwise(sizes)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.head(self.norm(self.layers(features))), labels)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a (projected) shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A CIFAR-style residual network; batch norm runs in training mode."""

    def __init__(self, widths: tuple[int, ...], blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.stages = nn.ModuleList()
        channels = widths[0]
        for index, width in enumerate(widths):
            stage = nn.Sequential()
            for block in range(blocks):
                stride = 2 if index > 0 and block == 0 else 1
                stage.append(ResidualBlock(channels, width, stride))
                channels = width
            self.stages.append(stage)
        self.head = nn.Linear(channels, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.loss(self.head(x.mean((2, 3))), labels)


def _double_conv(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GroupNorm(4, channels_out),
        nn.SiLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.GroupNorm(4, channels_out),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Max-pool down, transposed convolution up, a skip connection at every level."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.stem = _double_conv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double_conv(fine, coarse) for fine, coarse in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in reversed(pairs)
        )
        self.merge = nn.ModuleList(_double_conv(2 * fine, fine) for fine, _ in reversed(pairs))
        self.head = nn.Conv2d(width, classes, 1)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        skips = [self.stem(images)]
        for down in self.down:
            skips.append(down(self.pool(skips[-1])))
        y = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            y = merge(torch.cat([skips.pop(), up(y)], dim=1))
        return self.loss(self.head(y), labels)


class Attention(nn.Module):
    """Causal self-attention, with dropout on the attention weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        weights = self.dropout(scores.masked_fill(future, float("-inf")).softmax(-1))
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two linear layers with GELU (tanh approximation) between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class GptBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.dropout1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        x = x + self.dropout1(self.attn(self.norm1(x), future))
        return x + self.dropout2(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """Decoder-only language model; the output projection is tied to the token embedding."""

    def __init__(
        self, vocab: int, length: int, width: int, heads: int, depth: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.token.weight, std=0.05)
        self.head.weight = self.token.weight
        self.loss = nn.CrossEntropyLoss()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.dropout(self.token(tokens) + self.position.weight)
        position = torch.arange(tokens.shape[1])
        future = position[None, :] > position[:, None]
        for block in self.blocks:
            x = block(x, future)
        return self.loss(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class LstmLm(nn.Module):
    """Language model on ``nn.LSTM``; the sequence is the first dimension."""

    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, vocab)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        y, _ = self.lstm(self.token(tokens))
        return self.loss(self.head(y).flatten(0, 1), labels.flatten())


def _classes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def mlp_adamw() -> TorchStep:
    model = Mlp(256, width=512, depth=6, classes=10)
    batch = {"features": torch.zeros(8192, 256), "labels": _classes(8192)}
    return TorchStep(model, None, batch, torch.optim.AdamW(model.parameters(), lr=1e-3))


def cnn_bn() -> TorchStep:
    batch = {"images": torch.zeros(128, 3, 32, 32), "labels": _classes(128)}
    return TorchStep(ResNet(widths=(24, 48, 96), blocks=2, classes=10), None, batch)


def unet() -> TorchStep:
    batch = {"images": torch.zeros(4, 3, 128, 128), "labels": _classes(4, 128, 128)}
    return TorchStep(UNet(width=32, depth=3, classes=4), None, batch)


def gpt_dropout() -> TorchStep:
    batch = {"tokens": _classes(8, 256), "labels": _classes(8, 256)}
    return TorchStep(Gpt(512, 256, width=256, heads=4, depth=6, dropout=0.1), None, batch)


def gpt_dynamic() -> TorchStep:
    batch = {"tokens": _classes(24, 128), "labels": _classes(24, 128)}
    return TorchStep(Gpt(512, 128, width=96, heads=3, depth=4), None, batch, dynamic="N")


def lstm() -> TorchStep:
    batch = {"tokens": _classes(12, 512), "labels": _classes(12, 512)}
    return TorchStep(LstmLm(512, width=512, layers=2), None, batch)
