"""Gradients of whole networks against PyTorch's autograd (skipped where torch is not there)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gradients import reference, runtime

torch: Any = pytest.importorskip("torch")
nets: Any = pytest.importorskip("torch_nets")
nn: Any = torch.nn
pytestmark = pytest.mark.ort

FLOAT32 = (torch.float32, 1e-4, runtime)
FLOAT64 = (torch.float64, 1e-9, reference)


class Mlp(nn.Module):  # type: ignore[misc]
    """Linear layers with an activation each, and cross-entropy."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 5)
        )

    def forward(self, x: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(self.body(x), labels)


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention, by products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block."""

    def __init__(self, width: int, heads: int, approximate: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):  # type: ignore[misc]
    """Tokens → the loss of the next ones; the head's weight is the embedding's."""

    def __init__(self, approximate: str = "tanh") -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(7, 8)
        self.blocks = nn.Sequential(Block(8, 2, approximate), Block(8, 2, approximate))
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Any, labels: Any) -> Any:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits.view(-1, 11), labels.view(-1))


ACTIVATIONS = ["ReLU", "GELU", "SiLU", "Tanh", "ELU", "Softplus", "Hardswish", "Mish", "LeakyReLU"]


@pytest.mark.parametrize("kind", [FLOAT32, FLOAT64], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp(activation: str, kind: Any) -> None:
    dtype, tolerance, run = kind
    if activation == "Hardswish":  # it is exported with 1/6 as a float32 attribute
        tolerance = max(tolerance, 1e-7)
    torch.manual_seed(0)
    net = Mlp(getattr(nn, activation)()).to(dtype)
    x, labels = torch.randn(4, 6, dtype=dtype), torch.randint(0, 5, (4,))
    nets.compare(net, (x, labels), tolerance=tolerance, run=run)


@pytest.mark.parametrize("kind", [FLOAT32, FLOAT64], ids=["float32", "float64"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gpt(approximate: str, kind: Any) -> None:
    dtype, tolerance, run = kind
    tolerance = max(tolerance, 1e-5)  # LayerNormalization computes in float32 (stash_type)
    torch.manual_seed(0)
    net = Gpt(approximate).to(dtype)
    tokens, labels = torch.randint(0, 11, (2, 7)), torch.randint(0, 11, (2, 7))
    nets.compare(net, (tokens, labels), tolerance=tolerance, run=run)
