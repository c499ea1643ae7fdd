"""Gradients of whole networks against PyTorch's autograd (skipped where torch is not there)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from helpers.gradients import reference, runtime

torch: Any = pytest.importorskip("torch")
nets: Any = pytest.importorskip("helpers.torch_nets")
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
        self.attention = (Attention if approximate == "tanh" else Flash)(width, heads)
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


class Flash(Attention):
    """The same by PyTorch's own function."""

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Cnn(nn.Module):  # type: ignore[misc]
    """Convolutions with groups, strides and dilations in 1 to 3 dimensions, pools of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
        self.depthwise = nn.Conv2d(8, 16, 5, stride=(2, 1), padding=(1, 2), groups=8)
        self.conv3 = nn.Conv3d(2, 3, (3, 2, 3), stride=(2, 1, 1), padding=(1, 0, 1))
        self.conv4 = nn.Conv1d(3, 4, 3, padding="same")
        self.norms = nn.ModuleList([nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(4, 16)])
        self.head = nn.Linear(4, 5)

    def forward(self, x: Any, labels: Any) -> Any:
        pool = nn.functional
        x = pool.max_pool2d(self.norms[0](self.conv1(x)).relu(), 3, 2, 1, ceil_mode=True)
        x = pool.lp_pool2d(pool.silu(self.conv2(x)) + 2, 2, 2, stride=1)
        x = pool.avg_pool2d(self.norms[1](self.depthwise(x)), 3, 2, 1, count_include_pad=False)
        x = self.conv3(x.reshape(x.shape[0], 2, 8, *x.shape[2:])).relu()
        x = self.conv4(x.flatten(2))
        return pool.cross_entropy(self.head(x.mean(2)), labels)


class Residual(nn.Module):  # type: ignore[misc]
    """Bottlenecks with training-mode batch norm, as in ResNet-50."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        sizes = [(channels, inner, 1, 1), (inner, inner, 3, stride), (inner, 4 * inner, 1, 1)]
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.short = nn.Conv2d(channels, 4 * inner, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(4 * inner)

    def forward(self, x: Any) -> Any:
        y = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = norm(conv(y)) if conv is self.convs[-1] else norm(conv(y)).relu()
        return (y + self.norm(self.short(x))).relu()


class ResNet(nn.Module):  # type: ignore[misc]
    """Stem, bottlenecks, global pool, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(Residual(8, 4, 1), Residual(16, 8, 2))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Any, labels: Any) -> Any:
        x = nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        return nn.functional.cross_entropy(self.head(x.flatten(1)), labels)


class UNet(nn.Module):  # type: ignore[misc]
    """Down by max pools, up by ``up`` ('transposed', or a mode of interpolation), with skips."""

    def __init__(self, up: str, norm: Any) -> None:
        super().__init__()
        self.up = up
        self.down = nn.ModuleList(double(i, o, norm) for i, o in [(3, 4), (4, 8), (8, 16)])
        pairs = [(16, 8), (8, 4)]
        self.wide = nn.ModuleList(
            nn.ConvTranspose2d(i, o, 2, 2) if up == "transposed" else nn.Conv2d(i, o, 1)
            for i, o in pairs
        )
        self.merge = nn.ModuleList(double(i, o, norm) for i, o in pairs)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Any, labels: Any) -> Any:
        skips = [self.down[0](x)]
        for layer in self.down[1:]:
            skips.append(layer(nn.functional.max_pool2d(skips[-1], 2)))
        y = skips.pop()
        for wide, merge in zip(self.wide, self.merge, strict=True):
            if self.up != "transposed":
                y = nn.functional.interpolate(y, scale_factor=2, mode=self.up)
            y = merge(torch.cat([skips.pop(), wide(y)], 1))
        return nn.functional.cross_entropy(self.head(y), labels)


def double(channels: int, outer: int, norm: Any) -> Any:
    """Two convolutions with norms, which take a bias out again where they are per channel."""
    bias = norm is not nn.BatchNorm2d
    return nn.Sequential(
        nn.Conv2d(channels, outer, 3, padding=1, bias=bias),
        norm(outer),
        nn.SiLU(),
        nn.Conv2d(outer, outer, 3, padding=1, bias=bias),
        norm(outer),
        nn.ReLU(),
    )


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


KINDS = pytest.mark.parametrize("kind", [FLOAT32, FLOAT64], ids=["float32", "float64"])


@KINDS
def test_cnn(kind: Any) -> None:
    dtype, tolerance, run = kind
    torch.manual_seed(0)
    x, labels = torch.randn(3, 3, 33, 29, dtype=dtype), torch.randint(0, 5, (3,))
    nets.compare(Cnn().to(dtype), (x, labels), tolerance=tolerance, run=run)


@KINDS
def test_resnet(kind: Any) -> None:
    """Few layers: deeper nets with Relu are chaotic in float32."""
    dtype, tolerance, run = kind
    torch.manual_seed(0)
    x, labels = torch.randn(4, 3, 32, 32, dtype=dtype), torch.randint(0, 5, (4,))
    nets.compare(ResNet().to(dtype), (x, labels), tolerance=tolerance, run=run)


@KINDS
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("up", ["transposed", "nearest", "bilinear"])
def test_unet(up: str, norm: str, kind: Any) -> None:
    dtype, tolerance, run = kind
    torch.manual_seed(0)
    layer = nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(2, channels)
    x, labels = torch.randn(2, 3, 16, 16, dtype=dtype), torch.randint(0, 2, (2, 16, 16))
    nets.compare(UNet(up, layer).to(dtype), (x, labels), tolerance=tolerance, run=run)
