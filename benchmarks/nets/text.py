"""Language models: GPT-2 small and BERT base as Hugging Face has them where sizes are left out, and
Llama at those of ``JackFram/llama-160m``, with one key and value head for three query heads.

Attention is spelled out, dropout left out. ``forward(*batch)`` of each gives the scalar loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.nets.vision import attend

# --- GPT-2 (Radford et al. 2019) ------------------------------------------------------------------


def attend_by_scores(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """batch × heads × length × size; the scores are scaled, not the query."""
    scores = query @ key.transpose(2, 3) * (1 / math.sqrt(query.shape[-1]))
    return (scores + mask).softmax(-1) @ value


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
        mixed = (
            attend_by_scores(query, key, value, mask).transpose(1, 2).reshape(batch, length, width)
        )
        x = x + self.attn_proj(mixed)
        y = self.c_fc(self.ln_2(x))
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return x + self.mlp_proj(0.5 * y * (1 + torch.tanh(inner)))


class Gpt2(nn.Module):
    """Every token predicts the next one, the head's weight is the embedding's."""

    def __init__(
        self,
        length: int = 1024,
        vocabulary: int = 50257,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        future = torch.full((length, length), -math.inf, device=tokens.device).triu(1)
        x = self.wte(tokens) + self.wpe(torch.arange(length, device=tokens.device))
        for block in self.h:
            x = block(x, future)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        labels = functional.pad(tokens, (0, 1), value=-100)[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels)


# --- BERT (Devlin et al. 2019) --------------------------------------------------------------------


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
        mixed = (
            attend_by_scores(query, key, value, mask).transpose(1, 2).reshape(batch, length, width)
        )
        x = self.norm(self.dense(mixed) + x)
        return self.output_norm(self.output(functional.gelu(self.intermediate(x))) + x)


class Bert(nn.Module):
    """With its masked language model head; labels of -100 do not count."""

    def __init__(
        self,
        length: int = 512,
        vocabulary: int = 30522,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
    ) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(length, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layer = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        types = torch.zeros_like(tokens)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(types)
        x = self.norm(x + self.position_embeddings(places))
        length = tokens.shape[1]
        mask = torch.zeros(tokens.shape[0], 1, length, length, device=tokens.device)
        for layer in self.layer:
            x = layer(x, mask)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        logits = functional.linear(x, self.word_embeddings.weight, self.bias)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


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
        mixed = attend(rotated(query, cos, sin), key, value, mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
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
            x = block(x, mask, cos, sin)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
