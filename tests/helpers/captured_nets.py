"""Small networks that ``capture`` is tried on: each has the layers of its family and runs in
milliseconds.

``forward(*batch)`` of each gives the scalar loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helpers.models import load_benchmark
from helpers.with_torch import Tensor, functional, nn, torch

TINY = load_benchmark("nets").TINY
"""Six families, compared in float32; here is what they lack."""


class Classified(nn.Module):
    """A body, a mean over pixels, a linear layer."""

    def __init__(self, body: nn.Module, channels: int, classes: int = 5) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(x).mean((2, 3))), labels)


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


class Patterns(nn.Module):
    """Of image networks: depthwise convolutions, norms over channels and a scale (ConvNeXt), gates
    of squeezed channels (EfficientNet), windows of a rolled image with a bias for every distance
    (Swin), features that are joined (DenseNet)."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(8), nn.SiLU())
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.scale = nn.LayerNorm(8, eps=1e-6), nn.Parameter(torch.ones(8, 1, 1))
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.qkv, self.bias = nn.Linear(8, 24), nn.Parameter(torch.zeros(9, 2))
        away = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
        self.distances = ((away[:, None] - away + 1) * torch.tensor([3, 1])).sum(-1).flatten()
        more = nn.Conv2d(8, 4, 3, padding=1, bias=False)
        self.more = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), more)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x + y * self.scale
        squeezed = functional.silu(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))
        x = x * self.excite(squeezed).sigmoid()
        x = x + self.within_windows(x)
        x = functional.avg_pool2d(torch.cat([x, self.more(x)], 1), 2)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)

    def within_windows(self, x: Tensor) -> Tensor:
        """Attention within windows of 2 × 2 pixels."""
        count, channels, size, _ = x.shape
        side = size // 2
        rolled = torch.roll(x, (-1, -1), (2, 3)).view(count, channels, side, 2, side, 2)
        rows = rolled.permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, channels)
        query, key, value = self.qkv(rows).view(-1, 4, 3, 2, channels // 2).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.distances].view(4, 4, 2).permute(2, 0, 1)
        mixed = (query @ key.transpose(-2, -1) + bias).softmax(-1) @ value
        y = mixed.transpose(1, 2).reshape(count, side, side, 2, 2, channels)
        y = y.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)
        return torch.roll(y, (1, 1), (2, 3))


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


def images(count: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    """Images and one of five classes for each."""
    return lambda: (torch.randn(count, 3, size, size), torch.randint(0, 5, (count,)))


def text() -> tuple[Tensor, ...]:
    """Two sequences of tokens, and the tokens that follow them."""
    return torch.randint(0, 13, (2, 7)), torch.randint(0, 13, (2, 7))


FAMILIES: dict[str, Any] = {**TINY, "patterns": Net(Patterns, images(4, 8))}
"""With what four more families have."""
NETS: dict[str, Any] = {
    "gpt2": TINY["gpt2_tiny"],
    "unet": TINY["unet3_tiny"],
    "lstm_both_ways": Net(lambda: Recurrent(nn.LSTM, True), text),
    "gru": Net(lambda: Recurrent(nn.GRU), text),
    "transformer_encoder": Net(Encoder, text),
    "sdpa": Net(Sdpa, text),
    "convolutions": Net(Convolutions, lambda: (torch.randn(3, 4, 10, 10), torch.randn(3))),
    "group_norm": Net(group_norms, images(2, 8)),
    "embedding_bag": Net(Bags, lambda: (torch.randint(0, 13, (4, 3)), torch.randint(0, 5, (4,)))),
}
