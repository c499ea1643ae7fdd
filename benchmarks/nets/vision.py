"""Networks of images: those of torchvision, and the paper's U-Net, where sizes are left out.

Dropout and stochastic depth are left out: every step computes the same. ``forward(*batch)`` of each
gives the scalar loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """batch × heads × length × size; ``bias`` is added to the scores."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(-1) @ value


def mlp(width: int) -> nn.Sequential:
    """Two linear layers with GELU, four times as wide between them."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


# --- ViT (Dosovitskiy et al. 2021) --------------------------------------------------------------


class EncoderBlock(nn.Module):
    """Norms first; full attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attend(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm_2(x))


class Vit(nn.Module):
    """Patches and a class token, whose last state is classified."""

    def __init__(
        self,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


# --- ConvNeXt (Liu et al. 2022) -----------------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then linear layers per pixel, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = mlp(width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2) * self.scale


class ConvNext(nn.Module):
    """Four stages; each begins with a norm and a convolution that halves the image."""

    def __init__(
        self, depths: Sequence[int] = (3, 3, 9, 3), width: int = 96, classes: int = 1000
    ) -> None:
        super().__init__()
        widths = [width << stage for stage in range(len(depths))]
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width, eps=1e-6)]
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(ChannelNorm(widths[stage - 1], eps=1e-6))
                layers.append(nn.Conv2d(widths[stage - 1], widths[stage], 2, 2))
            layers += [ConvNextBlock(widths[stage]) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = ChannelNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.layers(images), 1)
        return functional.cross_entropy(self.head(self.norm(x).flatten(1)), labels)


# --- Swin (Liu et al. 2021) ---------------------------------------------------------------------


def windows(x: Tensor, window: int) -> Tensor:
    """batch × height × width × channels → batch · windows × pixels × channels."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // window, window, width // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, channels)


def seams(size: int, window: int, shift: int) -> Tensor:
    """windows × 1 × pixels × pixels, added to the scores in a shifted image: -100 where two pixels
    are neighbours only because the image was rolled."""
    place = torch.arange(size)
    strip = (place >= size - window).float() + (place >= size - shift).float()
    regions = windows((3 * strip[:, None] + strip).view(1, size, size, 1), window)
    return torch.where(regions != regions.transpose(1, 2), -100.0, 0.0).unsqueeze(1)


def distances(window: int) -> Tensor:
    """Which row of the table of biases belongs to each pair of pixels of a window."""
    place = torch.arange(window, device="cpu")
    away = place[:, None] - place + window - 1
    rows, columns = away.view(window, 1, window, 1), away.view(1, window, 1, window)
    return (rows * (2 * window - 1) + columns).reshape(-1)


class WindowAttention(nn.Module):
    """Attention within the windows of an image, with a bias for every distance."""

    def __init__(self, width: int, heads: int, size: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.size, self.window, self.shift = heads, size, window, shift
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.distances = distances(window)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """batch · windows × heads × pixels × pixels."""
        pixels = self.window**2
        bias = self.bias[self.distances].view(pixels, pixels, -1).permute(2, 0, 1)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias
        if not self.shift:
            return scores
        across = seams(self.size, self.window, self.shift)
        apart = scores.view(-1, len(across), self.heads, pixels, pixels) + across
        return apart.view(scores.shape)

    def forward(self, x: Tensor) -> Tensor:
        batch, size, _, width = x.shape
        window, side = self.window, size // self.window
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        qkv = self.qkv(windows(x, window)).view(-1, window**2, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = self.scores(query, key).softmax(-1) @ value
        y = self.proj(mixed.transpose(1, 2).reshape(-1, window**2, width))
        y = y.view(batch, side, side, window, window, width).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(batch, size, size, width)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class SwinBlock(nn.Module):
    """Norms first."""

    def __init__(self, width: int, attention: WindowAttention) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = attention, mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Merging(nn.Module):
    """Four pixels become one with twice the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Stages of blocks; every second block has its windows shifted by half a window."""

    def __init__(
        self,
        size: int = 224,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        width: int = 96,
        window: int = 7,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches, self.norm_0 = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        layers: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            wide, side = width << stage, (size // 4) >> stage
            if stage:
                layers.append(Merging(wide // 2))
            for index in range(depth):
                shift = window // 2 if index % 2 and side > window else 0
                attention = WindowAttention(wide, heads[stage], side, window, shift)
                layers.append(SwinBlock(wide, attention))
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.norm_0(self.patches(images).permute(0, 2, 3, 1))
        x = self.norm(self.layers(x)).mean((1, 2))
        return functional.cross_entropy(self.head(x), labels)


# --- EfficientNet (Tan and Le 2019) -------------------------------------------------------------


def conv_norm(
    channels: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution without bias and a batch norm."""
    conv = nn.Conv2d(channels, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outer)]


class SqueezeExcite(nn.Module):
    """Every channel times a gate that is computed from the means of all."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        return x * gate.sigmoid()


class InvertedResidual(nn.Module):
    """1×1 to more channels, a depthwise convolution, gates, 1×1 back."""

    def __init__(self, channels: int, outer: int, expand: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = expand * channels
        layers = [*conv_norm(channels, inner), nn.SiLU()] if expand > 1 else []
        layers += [*conv_norm(inner, inner, kernel, stride, inner), nn.SiLU()]
        layers += [SqueezeExcite(inner, max(1, channels // 4)), *conv_norm(inner, outer)]
        self.layers = nn.Sequential(*layers)
        self.shortcut = stride == 1 and channels == outer

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + x if self.shortcut else self.layers(x)


B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Stages of EfficientNet-B0: expansion, kernel, stride of the first, channels, blocks."""


class EfficientNet(nn.Module):
    """Inverted residuals with squeeze and excitation."""

    def __init__(
        self,
        stages: Sequence[tuple[int, int, int, int, int]] = B0,
        stem: int = 32,
        last: int = 1280,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, stem, 3, 2), nn.SiLU()]
        channels = stem
        for expand, kernel, stride, outer, count in stages:
            for index in range(count):
                step = 1 if index else stride
                layers.append(InvertedResidual(channels, outer, expand, kernel, step))
                channels = outer
        self.layers = nn.Sequential(*layers, *conv_norm(channels, last), nn.SiLU())
        self.head = nn.Linear(last, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.layers(images), 1).flatten(1)
        return functional.cross_entropy(self.head(x), labels)


# --- DenseNet (Huang et al. 2017) ---------------------------------------------------------------


def norm_conv(channels: int, outer: int, kernel: int) -> list[nn.Module]:
    """Batch norm, ReLU, convolution."""
    conv = nn.Conv2d(channels, outer, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(channels), nn.ReLU(), conv]


class DenseBlock(nn.Module):
    """Every layer reads what all layers before it gave."""

    def __init__(self, channels: int, growth: int, depth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.layers = nn.ModuleList(
            nn.Sequential(*norm_conv(channels + k * growth, inner, 1), *norm_conv(inner, growth, 3))
            for k in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """Dense blocks; between them, half the channels and a quarter of the pixels."""

    def __init__(
        self,
        depths: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
        stem: int = 64,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, stem, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = stem
        for block, depth in enumerate(depths):
            if block:
                layers += [*norm_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            layers.append(DenseBlock(channels, growth, depth))
            channels += depth * growth
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.layers(images), 1).flatten(1)
        return functional.cross_entropy(self.head(x), labels)


# --- ResNet (He et al. 2016) ----------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with batch norms and a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = 4 * inner
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """Bottlenecks; 3, 4, 6 and 3 of them are ResNet-50."""

    def __init__(
        self, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        self.layers = nn.ModuleList()
        for stage, count in enumerate(depths):
            inner = width << stage
            for index in range(count):
                stride = 2 if index == 0 and stage > 0 else 1
                self.layers.append(Bottleneck(channels, inner, stride))
                channels = 4 * inner
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for layer in self.layers:
            x = layer(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return functional.cross_entropy(self.fc(x), labels)


# --- U-Net (Ronneberger et al. 2015) --------------------------------------------------------------


def _double(channels: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, outer, 3, padding=1),
        nn.BatchNorm2d(outer),
        nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.BatchNorm2d(outer),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Levels of twice the channels, max pools down, transposed convolutions up, two classes."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.inc = _double(3, widths[0])
        self.down = nn.ModuleList(_double(fine, coarse) for fine, coarse in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in reversed(pairs)
        )
        self.dec = nn.ModuleList(_double(2 * fine, fine) for fine, _ in reversed(pairs))
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(functional.max_pool2d(skips[-1], 2)))
        y = skips.pop()
        for up, dec in zip(self.up, self.dec, strict=True):
            y = dec(torch.cat([skips.pop(), up(y)], 1))
        return functional.cross_entropy(self.out(y), labels)
