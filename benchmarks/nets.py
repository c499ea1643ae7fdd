"""The networks of the benchmarks: twelve kinds, and the sizes that are measured.

``forward(*batch)`` of each gives the scalar loss. Published networks (:data:`FULL`) are torchvision
itself for four kinds, and built like those of torchvision, of Hugging Face (GPT-2, BERT) and
``JackFram/llama-160m`` for the others; dropout and stochastic depth are left out there, so every
step computes the same. With ``checkpoints`` every block of the others runs under
``torch.utils.checkpoint``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.capture.libraries import without_dropout

CLASSES = 10


class Network(nn.Module):
    """What all share: how a block is called."""

    checkpoints = False

    def through(self, block: nn.Module, *x: Any) -> Any:
        """What a block gives, from a checkpoint in front of it where that is asked for."""
        return checkpoint(block, *x, use_reentrant=False) if self.checkpoints else block(*x)


# --- Transformers: GPT-2 (Radford et al. 2019), ViT (Dosovitskiy et al. 2021), BERT (Devlin et al.
# 2019) --------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and two linear layers, each behind a layer norm, or with ``norms_last`` before one.

    Attention is PyTorch's function; ``spelled``, or with dropout (``drop``, a share), it is written
    out.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool,
        drop: float = 0.0,
        *,
        spelled: bool = False,
        norms_last: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.norms_last = heads, causal, norms_last
        self.spelled = spelled or drop > 0
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop) if drop else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.norms_last:
            x = self.norm_1(x + self.mixed(x))
            return self.norm_2(x + self.mlp(x))
        x = x + self.mixed(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))

    def mixed(self, x: Tensor) -> Tensor:
        """Attention between the rows of a sequence."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.drop(self.out(self.attend(q, k, v).transpose(1, 2).reshape(x.shape)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """batch × heads × length × size."""
        if not self.spelled:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores, length = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), q.shape[2]
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return self.drop(scores.softmax(-1)) @ v

    def mlp(self, x: Tensor) -> Tensor:
        """Two linear layers with GELU."""
        return self.drop(self.down(functional.gelu(self.up(x))))


class Gpt(Network):
    """A decoder with learned places; ``tied``: the head's weight is the embedding's, as GPT-2 has
    it, and attention is spelled out."""

    def __init__(
        self,
        words: int = 50257,
        length: int = 1024,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
        drop: float = 0.0,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, True, drop, spelled=tied) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Vit(Network):
    """Patches and an encoder; ``places`` are learned. With a class token, whose last state is
    classified, attention is spelled out; without one the mean of all states is classified."""

    def __init__(
        self,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
        classes: int = 1000,
        drop: float = 0.0,
        *,
        token: bool = True,
        places: bool = True,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if token else None
        count = (size // patch) ** 2 + token
        self.places = nn.Embedding(count, width) if places else None
        self.blocks = nn.ModuleList(
            Block(width, heads, False, drop, spelled=token) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        if self.places is not None:
            x = x + self.places.weight
        for block in self.blocks:
            x = self.through(block, x)
        x = self.norm(x)
        return functional.cross_entropy(
            self.head(x.mean(1) if self.token is None else x[:, 0]), labels
        )


class Bert(Network):
    """With its masked language model head; labels of -100 do not count."""

    def __init__(
        self,
        words: int = 30522,
        length: int = 512,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, heads, False, spelled=True, norms_last=True) for _ in range(depth)
        )
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.types(torch.zeros_like(tokens))
        x = self.norm(x + self.places.weight)
        for block in self.blocks:
            x = self.through(block, x)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        logits = functional.linear(x, self.words.weight, self.bias)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


# --- Llama (Touvron et al. 2023) ------------------------------------------------------------------


class RmsNorm(nn.Module):
    """Divided by the root mean square; without a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The halves of every head turned by angles that grow with the position."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaBlock(nn.Module):
    """Grouped-query attention and SwiGLU; norms first, no biases."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_1, self.norm_2 = RmsNorm(width), RmsNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        few = groups * self.size
        self.key, self.value = (nn.Linear(width, few, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def repeated(self, x: Tensor) -> Tensor:
        """Every key or value head once for each of its query heads."""
        batch, groups, length, size = x.shape
        times = self.heads // groups
        return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(batch, -1, length, size)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm_1(x)
        query, key, value = (
            layer(y).view(batch, length, -1, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        key, value = self.repeated(rotated(key, cos, sin)), self.repeated(value)
        query = rotated(query, cos, sin) * self.size**-0.5
        mixed = (query @ key.transpose(-2, -1) + mask).softmax(-1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(Network):
    """Every token predicts the next one; the head has a weight of its own."""

    def __init__(
        self,
        vocabulary: int = 32000,
        width: int = 768,
        heads: int = 12,
        groups: int = 4,
        inner: int = 3072,
        depth: int = 12,
    ) -> None:
        super().__init__()
        self.size = width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, inner) for _ in range(depth))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1])
        mask = torch.where(place > place[:, None], -math.inf, 0.0)
        speed = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angle = (place[:, None] * speed).repeat(1, 2)
        x, cos, sin = self.tokens(tokens), angle.cos(), angle.sin()
        for block in self.blocks:
            x = self.through(block, x, mask, cos, sin)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


# --- ConvNeXt (Liu et al. 2022), Swin (Liu et al. 2021), EfficientNet (Tan and Le 2019), DenseNet
# (Huang et al. 2017) ------------------------------------------------------------------------------


class Classifier(Network):
    """A network of torchvision with its loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from torchvision import models

        self.net = without_dropout(getattr(models, name)(weights=None))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(images), labels)


# --- ResNet (He et al. 2016) --------------------------------------------------------------------


def conv_norm(channels: int, outer: int, kernel: int = 1, stride: int = 1) -> list[nn.Module]:
    """A convolution without bias and a batch norm."""
    conv = nn.Conv2d(channels, outer, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outer)]


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with batch norms and a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = 4 * inner
        self.body = nn.Sequential(
            *(*conv_norm(channels, inner), nn.ReLU()),
            *(*conv_norm(inner, inner, 3, stride), nn.ReLU()),
            *conv_norm(inner, outer),
        )
        same = channels == outer and stride == 1
        self.shortcut = nn.Sequential(*([] if same else conv_norm(channels, outer, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def convolved(channels: int, outer: int, stride: int = 1) -> nn.Sequential:
    """Two convolutions with batch norm; the last ReLU is the caller's."""
    first, last = conv_norm(channels, outer, 3, stride), conv_norm(outer, outer, 3)
    return nn.Sequential(*first, nn.ReLU(), *last)


class Residual(nn.Module):
    """Two convolutions and a shortcut; ``twice``: with a ReLU before the sum, too."""

    def __init__(self, channels: int, outer: int, stride: int = 1, *, twice: bool = False) -> None:
        super().__init__()
        self.body, same = convolved(channels, outer, stride), channels == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, outer, 1, stride)
        if twice:
            self.body.append(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(Network):
    """A stem, and blocks that end with some width."""

    def __init__(
        self, stem: nn.Module, blocks: Sequence[nn.Module], width: int, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.stem, self.blocks = stem, nn.ModuleList(blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def resnet(depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> ResNet:
    """Bottlenecks; the sizes left out are those of ResNet-50."""
    stem = nn.Sequential(*conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    channels, blocks = width, list[nn.Module]()
    for stage, count in enumerate(depths):
        inner = width << stage
        for index in range(count):
            blocks.append(Bottleneck(channels, inner, 2 if index == 0 and stage > 0 else 1))
            channels = 4 * inner
    return ResNet(stem, blocks, channels, classes)


def small_resnet(width: int = 32) -> ResNet:
    """Two residual blocks at each of three widths."""
    blocks = list[nn.Module]()
    for before, after in pairwise((width, width, 2 * width, 4 * width)):
        blocks += [Residual(before, after, 1 + (before != after)), Residual(after, after)]
    return ResNet(nn.Conv2d(3, width, 3, padding=1), blocks, 4 * width)


def cnn(width: int = 32) -> ResNet:
    """Four residual blocks of one width."""
    blocks = [Residual(width, width, twice=True) for _ in range(4)]
    return ResNet(nn.Conv2d(3, width, 3, padding=1), blocks, width)


# --- U-Net (after Ronneberger et al. 2015) --------------------------------------------------------


class UNet(Network):
    """Three levels down, two up, with their bridges; a logit for every pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
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


# --- LSTM (Hochreiter and Schmidhuber 1997) -------------------------------------------------------


class Recurrence(nn.Module):
    """The states of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states


class Lstm(Network):
    """A language model of two LSTM layers."""

    def __init__(self, words: int, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Recurrence(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = self.through(block, x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


# --- Sizes and batches ----------------------------------------------------------------------------

Batch = Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Net:
    """How to make a network, and a batch of a number of samples; ``count``: what is measured."""

    make: Callable[[], Network]
    of: Batch
    count: int

    def batch(self) -> tuple[Tensor, ...]:
        """The batch that is measured."""
        return self.of(self.count)


def images(size: int, classes: int = CLASSES) -> Batch:
    """Square images of three channels and their classes."""
    return lambda count: (torch.randn(count, 3, size, size), torch.randint(0, classes, (count,)))


def masks(size: int) -> Batch:
    """Square images of three channels, and 0 or 1 for every pixel."""
    return lambda count: (
        torch.randn(count, 3, size, size),
        torch.rand(count, 1, size, size).round(),
    )


def text(length: int, words: int) -> Batch:
    """Sequences of tokens, and the tokens that follow them."""
    return lambda count: tuple(torch.randint(0, words, (count, length)) for _ in range(2))


FULL = {
    "vit_b16_bs32_224": Net(Vit, images(224, 1000), 32),
    "convnext_t_bs32_224": Net(lambda: Classifier("convnext_tiny"), images(224, 1000), 32),
    "swin_t_bs32_224": Net(lambda: Classifier("swin_t"), images(224, 1000), 32),
    "efficientnet_b0_bs32_224": Net(lambda: Classifier("efficientnet_b0"), images(224, 1000), 32),
    "densenet121_bs32_224": Net(lambda: Classifier("densenet121"), images(224, 1000), 32),
    "llama_160m_bs8_seq1024": Net(Llama, text(1024, 32000), 8),
    "resnet50_bs32_224": Net(resnet, images(224, 1000), 32),
    "unet3_bs8_512": Net(lambda: UNet(64), masks(512), 8),
    "gpt2_small_bs8_seq1024": Net(lambda: Gpt(tied=True), text(1024, 50257), 8),
    "bert_base_bs16_seq512": Net(Bert, text(512, 30522), 16),
}
"""At published sizes."""
TINY = {
    "vit_tiny": Net(lambda: Vit(8, 4, 8, 2, 2, 5), images(8, 5), 2),
    "llama_tiny": Net(lambda: Llama(11, 12, 6, 2, 16, 2), text(6, 11), 2),
    "resnet50_tiny": Net(lambda: resnet((1, 1), 8, 10), images(32), 4),
    "unet3_tiny": Net(lambda: UNet(8), masks(32), 4),
    "gpt2_tiny": Net(lambda: Gpt(96, 48, 32, 2, 2, tied=True), text(48, 96), 2),
    "bert_tiny": Net(lambda: Bert(96, 48, 32, 2, 2), text(48, 96), 2),
}
BESIDE_EAGER = {
    "gpt": Net(lambda: Gpt(4096, 256, 320, 5, 5), text(256, 4096), 8),
    "vit": Net(lambda: Vit(96, 8, 256, 4, 5, CLASSES, token=False), images(96), 16),
    "unet": Net(UNet, masks(96), 8),
    "resnet": Net(small_resnet, images(32), 32),
    "lstm": Net(lambda: Lstm(2048), text(64, 2048), 16),
}
"""Steps of a fraction of a second on two cores: of ``benchmarks/steps``."""
BESIDE_SOLVERS = {
    "GPT": Net(lambda: Gpt(1000, 128, 128, 4, 4, drop=0.1), text(128, 1000), 8),
    # As many layers as in pytorch#197838, whose peaks rise where the budget falls.
    "Llama": Net(lambda: Llama(1000, 128, 4, 4, 352, 32), text(128, 1000), 4),
    "ViT": Net(
        lambda: Vit(96, 8, 128, 4, 4, CLASSES, drop=0.1, token=False, places=False), images(96), 8
    ),
    "U-Net": Net(UNet, masks(64), 4),
    "CNN": Net(cnn, images(32), 8),
}
"""Of ``benchmarks/torch_solver``."""


def net(family: str, size: str) -> Net:
    """The network of a family, ``full`` or ``tiny``."""
    nets = FULL if size == "full" else TINY
    return next(found for name, found in nets.items() if name.startswith(family))


def make(name: str, checkpoints: bool = False) -> tuple[Network, tuple[Tensor, ...]]:
    """A small network and its batch, the same in every process."""
    found = (BESIDE_EAGER | BESIDE_SOLVERS)[name]
    torch.manual_seed(0)
    made = found.make()
    made.checkpoints = checkpoints
    torch.manual_seed(1)
    return made, found.batch()
