"""Small networks that ``capture`` is tried on: each has the layers of its family and runs in
milliseconds.

``forward(*batch)`` of each gives the scalar loss. Imported only where torch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(
    channels: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution without bias and a batch norm."""
    conv = nn.Conv2d(channels, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outer)]


class Classified(nn.Module):
    """A body, a mean over pixels, a linear layer."""

    def __init__(self, body: nn.Module, channels: int, classes: int = 5) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(x).mean((2, 3))), labels)


class Mlp(nn.Module):
    """Linear layers with ReLU and GELU; mean squares."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)
        )

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(self.layers(x), targets)


# --- Convolutions -------------------------------------------------------------------------------


class UNet(nn.Module):
    """One level down by a max pool, up by a transposed convolution, one by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = (
            nn.Sequential(*conv_norm(3, 4, 3)),
            nn.Sequential(*conv_norm(4, 8, 3)),
        )
        self.deep, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        outer = functional.relu(self.outer(x))
        inner = functional.relu(self.inner(functional.max_pool2d(outer, 2)))
        deep = functional.avg_pool2d(inner, 2)
        deep = functional.interpolate(self.deep(deep), scale_factor=2, mode="nearest")
        up = self.up(functional.relu(inner + deep))
        return functional.cross_entropy(self.head(torch.cat([outer, up], 1)), labels)


class GatedResidual(nn.Module):
    """MobileNetV3: hard swish, and a gate by hard sigmoid."""

    def __init__(self, channels: int, inner: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(*conv_norm(channels, inner), nn.Hardswish())
        self.depthwise = nn.Sequential(*conv_norm(inner, inner, kernel, stride, inner))
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)
        self.project = nn.Sequential(*conv_norm(inner, channels))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        y = functional.hardswish(self.depthwise(self.expand(x)))
        gate = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(y, 1))))
        y = self.project(y * functional.hardsigmoid(gate))
        return x + y if self.stride == 1 else y


def mobilenet_v3() -> nn.Module:
    """A stem and three gated residuals."""
    body = nn.Sequential(
        *conv_norm(3, 8, 3, 2),
        nn.Hardswish(),
        GatedResidual(8, 16, 3, 1),
        GatedResidual(8, 24, 5, 2),
        GatedResidual(8, 16, 3, 1),
    )
    return Classified(body, 8)


class Convolutions(nn.Module):
    """Grouped, dilated, strided without dividing, transposed with output padding, 1-D and 3-D."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 8, 3, 2, 1, groups=2)
        self.dilated = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.transposed = nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1, groups=2)
        self.line, self.space = nn.Conv1d(6, 4, 3, 2), nn.Conv3d(2, 3, 2)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        y = functional.silu(self.transposed(functional.elu(self.dilated(self.grouped(x)))))
        line = self.line(y.flatten(2)).tanh().mean((1, 2))
        space = self.space(y.unflatten(1, (2, 3))).sigmoid().mean((1, 2, 3, 4))
        return functional.smooth_l1_loss(line + space, targets)


def group_norms() -> nn.Module:
    """Group and instance normalization."""
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.1),
    )
    return Classified(body, 8)


# --- Attention ----------------------------------------------------------------------------------


class Attention(nn.Module):
    """PyTorch's scaled dot product attention: causal, with fewer key heads, or with a mask."""

    def __init__(self, width: int, heads: int, groups: int | None = None) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups or heads
        size = width // heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, self.groups * size) for _ in range(2))

    def forward(self, x: Tensor, **settings: Any) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.key(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        value = self.value(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        grouped = self.groups != self.heads
        mixed = functional.scaled_dot_product_attention(
            query, key, value, enable_gqa=grouped, **settings
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, **settings: Any) -> Tensor:
        x = x + self.attention(self.norm_1(x), **settings)
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Learned places, causal attention, a head tied to the embedding."""

    def __init__(self, vocabulary: int = 13, width: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, 3) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1])
        x = self.tokens(tokens) + self.places(place)
        for block in self.blocks:
            x = block(x, is_causal=True)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Bert(nn.Module):
    """Three embeddings, padding masked out, labels of -100 ignored."""

    def __init__(self, vocabulary: int = 13, width: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places, self.kinds = nn.Embedding(16, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        seen = (tokens != 0)[:, None, None, :]
        place = torch.arange(tokens.shape[1])
        kind = torch.zeros_like(tokens)
        x = self.norm(self.tokens(tokens) + self.places(place) + self.kinds(kind))
        for block in self.blocks:
            x = block(x, attn_mask=seen)
        wanted = torch.where(tokens != 0, labels, -100)
        return functional.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


class Encoder(nn.Module):
    """``nn.TransformerEncoder`` with a causal mask."""

    def __init__(self, vocabulary: int = 13, width: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 3, 24, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], dtype=self.tokens.weight.dtype
        )
        x = self.layers(self.tokens(tokens), mask=mask, is_causal=True)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Sdpa(nn.Module):
    """Grouped heads, causal; then a Boolean mask with a row that sees nothing."""

    def __init__(self, vocabulary: int = 13, width: int = 12) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.grouped, self.masked = Attention(width, 6, 2), Attention(width, 2)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = x + self.grouped(x, is_causal=True)
        place = torch.arange(tokens.shape[1])
        seen = place[:, None] > place  # the first row sees nothing
        x = x + self.masked(x, attn_mask=seen)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


# --- Sequences and bags -------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An LSTM or GRU of two layers, in one direction or both."""

    def __init__(self, kind: type[nn.RNNBase], both: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(13, 6)
        self.layers = kind(6, 5, num_layers=2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(10 if both else 5, 13)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        states, _ = self.layers(self.tokens(tokens))
        return functional.cross_entropy(self.head(states).flatten(0, 1), labels.flatten())


class Bags(nn.Module):
    """Embedding bags: sums and means of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = (nn.EmbeddingBag(13, 6, mode=mode) for mode in ("sum", "mean"))
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        both = torch.cat([self.sums(tokens), self.means(tokens)], -1)
        return functional.cross_entropy(self.head(both), labels)


@dataclass(frozen=True, slots=True)
class Net:
    """How to make a network, and a batch for it."""

    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]


def pixels(count: int, size: int, classes: int) -> Callable[[], tuple[Tensor, ...]]:
    """Images and a class for every pixel."""
    shape = (count, size, size)
    return lambda: (torch.randn(count, 3, size, size), torch.randint(0, classes, shape))


def images(count: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    """Images and one of five classes for each."""
    return lambda: (torch.randn(count, 3, size, size), torch.randint(0, 5, (count,)))


def text() -> tuple[Tensor, ...]:
    """Two sequences of tokens, and the tokens that follow them."""
    return torch.randint(0, 13, (2, 7)), torch.randint(0, 13, (2, 7))


NETS: dict[str, Net] = {
    "mlp": Net(Mlp, lambda: (torch.randn(8, 6), torch.randn(8, 3))),
    "unet": Net(UNet, pixels(2, 16, 2)),
    "mobilenet_v3": Net(mobilenet_v3, images(4, 32)),
    "gpt2": Net(Gpt2, text),
    "bert": Net(Bert, text),
    "lstm_both_ways": Net(lambda: Recurrent(nn.LSTM, True), text),
    "gru": Net(lambda: Recurrent(nn.GRU), text),
    "transformer_encoder": Net(Encoder, text),
    "sdpa": Net(Sdpa, text),
    "convolutions": Net(Convolutions, lambda: (torch.randn(3, 4, 10, 10), torch.randn(3))),
    "group_norm": Net(group_norms, images(2, 8)),
    "embedding_bag": Net(Bags, lambda: (torch.randint(0, 13, (4, 3)), torch.randint(0, 5, (4,)))),
}
