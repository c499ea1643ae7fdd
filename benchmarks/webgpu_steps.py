"""Small steps of PyTorch for ``benchmarks.webgpu``: ``memplan capture`` takes a function.

    memplan capture benchmarks/webgpu_steps.py:gpt -o STEPS/gpt.onnx --portable

``gpt``, ``vit`` and ``cnn`` (max pools, 3 × 3 by 2 and 2 × 2) are three networks; ``sample_*`` are
the networks of the sample models, as one step of those takes minutes in software.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from memplan import TorchStep

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "sample_models")]

from nets import Gpt, LstmLm, Mlp, ResNet, UNet  # noqa: E402

from benchmarks.nets import Vit  # noqa: E402


def _step(
    net: nn.Module, optimizer: type[torch.optim.Optimizer], *batch: torch.Tensor
) -> TorchStep:
    return TorchStep(net, None, batch, optimizer(net.parameters(), lr=1e-3))


def _tokens(*shape: int, most: int = 64) -> torch.Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(1))


def _images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def gpt() -> TorchStep:
    """Two blocks of a GPT, with Adam."""
    torch.manual_seed(0)
    net = Gpt(64, 32, width=32, heads=2, depth=2)
    return _step(net, torch.optim.Adam, _tokens(16, 32), _tokens(16, 32))


def vit() -> TorchStep:
    """Two blocks of a ViT, with AdamW."""
    torch.manual_seed(0)
    net = Vit(size=32, patch=8, width=32, heads=2, depth=2, classes=10)
    return _step(net, torch.optim.AdamW, _images(32, 3, 32, 32), _tokens(32, most=10))


class Cnn(nn.Module):
    """Convolutions and max pools."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer, pool in ((3, 8, nn.MaxPool2d(3, 2, 1)), (8, 16, nn.MaxPool2d(2))):
            for channels in (inner, outer, outer):
                layers += [nn.Conv2d(channels, outer, 3, padding=1), nn.SiLU()]
            layers.append(pool)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(1024, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.features(images).flatten(1)), labels)


def cnn() -> TorchStep:
    """A small CNN with max pools, with SGD."""
    torch.manual_seed(0)
    return _step(Cnn(), torch.optim.SGD, _images(8, 3, 32, 32), _tokens(8, most=10))


def sample_mlp_adamw() -> TorchStep:
    """The sample model, narrow."""
    net = Mlp(32, width=64, depth=6, classes=10)
    return _step(net, torch.optim.AdamW, _images(1024, 32), _tokens(1024, most=10))


def sample_cnn_bn() -> TorchStep:
    """The sample model, narrow, 4 images; gradients are outputs."""
    net = ResNet(widths=(8, 16, 32), blocks=2, classes=10)
    return TorchStep(net, None, (_images(4, 3, 32, 32), _tokens(4, most=10)))


def sample_unet() -> TorchStep:
    """The sample model, narrow, an image of 32 × 32; gradients are outputs."""
    net = UNet(width=8, depth=3, classes=4)
    return TorchStep(net, None, (_images(1, 3, 32, 32), _tokens(1, 32, 32, most=4)))


def sample_gpt_dropout() -> TorchStep:
    """The sample model, narrow, sequences of 64; gradients are outputs."""
    net = Gpt(64, 64, width=32, heads=4, depth=6, dropout=0.1)
    return TorchStep(net, None, (_tokens(4, 64), _tokens(4, 64)))


def sample_lstm() -> TorchStep:
    """The sample model, narrow, 12 tokens of 32 sequences; gradients are outputs."""
    net = LstmLm(64, width=64, layers=2)
    return TorchStep(net, None, (_tokens(12, 32), _tokens(12, 32)))
