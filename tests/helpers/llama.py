"""A decoder of the Llama kind, on any device: rotary positions from a buffer, groups of heads that
share keys, RMSNorm and SwiGLU.
"""

from dataclasses import dataclass
from typing import Any

import memplan
from helpers.with_torch import Tensor, functional, nn, torch


@dataclass(frozen=True, slots=True)
class Sizes:
    """Those of Llama-3-8B but for ``depth``, which has 32 layers."""

    depth: int = 2
    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    groups: int = 8
    vocabulary: int = 128256
    tokens: int = 8192


SMALL = Sizes(width=64, hidden=128, heads=4, groups=2, vocabulary=128, tokens=32)


class Rotary(nn.Module):  # type: ignore[misc]
    """Angles of positions; their frequencies are a buffer that no file holds."""

    inv_freq: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        even = torch.arange(0, width, 2).float()
        self.register_buffer("inv_freq", 500_000.0 ** (-even / width), persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(place, self.inv_freq).repeat(1, 2)
        return angles.cos(), angles.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Vectors, turned by the angles of their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a gated feed-forward part, each with a residual."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads, self.groups = sizes.width, sizes.heads, sizes.groups
        self.size = width // sizes.heads
        few = self.groups * self.size
        self.before, self.after = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, few, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, sizes.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in self.parts())
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.after(x)
        found: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return found

    def parts(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """Queries, keys, values."""
        return self.q, self.k, self.v


class Llama(nn.Module):  # type: ignore[misc]
    """Tokens in, logits out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.rotary = Rotary(sizes.width // sizes.heads)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.depth))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, (cos, sin) = self.embed(tokens), self.rotary(tokens)
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        found: Tensor = self.head(self.norm(x))
        return found


def _loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def llama_step(sizes: Sizes, device: str = "meta", *, adamw: bool = True) -> Any:
    """A training step of it."""
    with torch.device(device):
        model = Llama(sizes)
        ids = torch.zeros(1, sizes.tokens, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4) if adamw else None
    return memplan.TorchStep(model, _loss, {"tokens": ids, "labels": ids.clone()}, optimizer)
