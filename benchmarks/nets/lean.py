"""Forward graphs of the networks behind the large training graphs that PyTorch exported.

Architectures and sizes are those of torchvision's ResNet-50, of the U-Net paper with batch norm,
and of Hugging Face's GPT-2 and BERT. Weights are graph inputs: the files are small. Needs PyTorch:

    python -m benchmarks.nets.lean DIR
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional


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


class ResNet50(nn.Module):
    """3, 4, 6 and 3 bottlenecks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        self.layers = nn.ModuleList()
        for stage, count in enumerate((3, 4, 6, 3)):
            inner = 64 << stage
            for index in range(count):
                stride = 2 if index == 0 and stage > 0 else 1
                self.layers.append(Bottleneck(channels, inner, stride))
                channels = 4 * inner
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for layer in self.layers:
            x = layer(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return functional.cross_entropy(self.fc(x), labels)


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
    """Four levels, 64 to 1024 channels, max pools down, transposed convolutions up, two classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64 << level for level in range(5)]
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


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """batch × heads × length × size."""
    scores = query @ key.transpose(2, 3) * (1 / math.sqrt(query.shape[-1]))
    return (scores if mask is None else scores + mask).softmax(-1) @ value


class Projection(nn.Module):
    """Hugging Face's ``Conv1D``: a linear layer whose weight is not transposed."""

    def __init__(self, width: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, outer))
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], -1)


class GptBlock(nn.Module):
    """Norms first; GELU by tanh, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = Projection(width, 3 * width), Projection(width, width)
        self.c_fc, self.mlp_proj = Projection(width, 4 * width), Projection(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, 2)
        )
        mixed = _attend(query, key, value, mask).transpose(1, 2).reshape(batch, length, width)
        x = x + self.attn_proj(mixed)
        y = self.c_fc(self.ln_2(x))
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return x + self.mlp_proj(0.5 * y * (1 + torch.tanh(inner)))


class Gpt2(nn.Module):
    """GPT-2 small; every token predicts the next one, the head's weight is the embedding's."""

    def __init__(self, length: int = 1024) -> None:
        super().__init__()
        width = 768
        self.wte, self.wpe = nn.Embedding(50257, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(GptBlock(width, 12) for _ in range(12))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        future = torch.full((length, length), -math.inf).triu(1)
        x = self.wte(tokens) + self.wpe(torch.arange(length))
        for block in self.h:
            x = block(x, future)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        labels = functional.pad(tokens, (0, 1), value=-100)[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels)


class BertLayer(nn.Module):
    """Norms last."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.output_norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = _attend(query, key, value, mask).transpose(1, 2).reshape(batch, length, width)
        x = self.norm(self.dense(mixed) + x)
        return self.output_norm(self.output(functional.gelu(self.intermediate(x))) + x)


class Bert(nn.Module):
    """BERT base with its masked language model head; labels of -100 do not count."""

    def __init__(self) -> None:
        super().__init__()
        width = 768
        self.word_embeddings = nn.Embedding(30522, width)
        self.position_embeddings = nn.Embedding(512, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layer = nn.ModuleList(BertLayer(width, 12) for _ in range(12))
        self.transform, self.transform_norm = (
            nn.Linear(width, width),
            nn.LayerNorm(width, eps=1e-12),
        )
        self.bias = nn.Parameter(torch.zeros(30522))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).unsqueeze(0)
        types = torch.zeros_like(tokens)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(types)
        x = self.norm(x + self.position_embeddings(places))
        mask = torch.zeros(tokens.shape[0], 1, tokens.shape[1], tokens.shape[1])
        for layer in self.layer:
            x = layer(x, mask)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        logits = functional.linear(x, self.word_embeddings.weight, self.bias)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def batch(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network and a batch, by the name of the exported training graph."""
    if name == "resnet50_bs32_224":
        return ResNet50(), (torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.int64))
    if name == "unet_bs8_512":
        labels = torch.zeros(8, 512, 512, dtype=torch.int64)
        return UNet(), (torch.zeros(8, 3, 512, 512), labels)
    if name == "gpt2_small_bs8_seq1024":
        return Gpt2(), (torch.zeros(8, 1024, dtype=torch.int64),)
    tokens = torch.zeros(16, 512, dtype=torch.int64)
    return Bert(), (tokens, tokens)


def _batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Training mode as ONNX has it; the exporter's own translation normalizes by the old mean."""
    from onnxscript import opset20 as op

    y, mean, variance = op.BatchNormalization(
        x, weight, bias, mean, variance, epsilon=eps, momentum=1 - momentum, training_mode=1
    )
    return y, mean, variance, mean, variance


class _Functional(nn.Module):
    """Parameters and buffers as inputs; loss and new buffers as outputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = [module]  # in a list: not a submodule, so that nothing of it is exported
        self.parameter_names = [name for name, _ in module.named_parameters()]
        self.buffer_names = [name for name, _ in module.named_buffers()]

    def forward(self, parameters: Any, buffers: Any, inputs: Any) -> Any:
        state = {name: b.clone() for name, b in zip(self.buffer_names, buffers, strict=True)}
        known = dict(zip(self.parameter_names, parameters, strict=True))
        loss = torch.func.functional_call(self.inner[0], known | state, inputs)
        return (loss, *state.values())


def forward_graph(name: str) -> onnx.ModelProto:
    """The forward graph: its first output is the loss; metadata name the inputs to train."""
    return exported(*batch(name))


def exported(module: nn.Module, inputs: tuple[Tensor, ...], opset: int = 20) -> onnx.ModelProto:
    """The forward graph of a module that gives its loss, as PyTorch's exporter writes it.

    Parameters and buffers are graph inputs; metadata name the parameters. The first output is the
    loss, then come the buffers' new values.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [*parameters, *buffers, *(f"batch_{k}" for k in range(len(inputs)))]
    values = tuple(p.detach() for p in parameters.values()), tuple(buffers.values()), inputs
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Functional(module),
            values,
            dynamo=True,
            opset_version=opset,
            input_names=names,
            verbose=False,
            custom_translation_table={
                torch.ops.aten._native_batch_norm_legit_functional.default: _batch_norm
            },
        )
        assert program is not None
        program.save(buffer)
    model = onnx.load_from_string(buffer.getvalue())
    _forget_source(model)
    model.metadata_props.add(key="parameters", value="\n".join(parameters))
    return model


def _forget_source(model: onnx.ModelProto) -> None:
    """Leave out file names and line numbers of this machine: the same network, the same file."""
    for node in model.graph.node:
        kept = [item for item in node.metadata_props if not item.key.endswith(".stack_trace")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)


NAMES = (
    "resnet50_bs32_224",
    "unet_bs8_512",
    "gpt2_small_bs8_seq1024",
    "bert_base_bs16_seq512",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write ``NAME.onnx`` for every network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nets.lean")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        onnx.save(forward_graph(name), folder / f"{name}.onnx")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
