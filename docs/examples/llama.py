import torch
from torch import nn
from torch.nn import functional

import memplan

WIDTH, HIDDEN, HEADS, GROUPS, VOCABULARY, TOKENS = 4096, 14336, 32, 8, 128256, 8192


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        few = GROUPS * WIDTH // HEADS
        self.before, self.after = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, few, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin, mask):
        y = self.before(x)
        parts = (self.q(y), self.k(y), self.v(y))
        q, k, v = (p.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for p in parts)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        even = torch.arange(0, WIDTH // HEADS, 2).float()
        self.register_buffer("rates", 500_000.0 ** (-even * HEADS / WIDTH), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device).float()
        angles = torch.outer(places, self.rates).repeat(1, 2)
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        x, cos, sin = self.embed(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


def loss(model, tokens, labels):
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def make_step(depth=32):
    with torch.device("meta"):
        model = Llama(depth)
        tokens = torch.zeros(1, TOKENS, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batch = {"tokens": tokens, "labels": tokens.clone()}
    return memplan.TorchStep(model, loss, batch, optimizer)
