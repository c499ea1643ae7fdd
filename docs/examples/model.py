import torch
from torch import nn
from torch.nn import functional

import memplan


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, width=64, depth=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.places.weight[:length]
        return self.head(self.layers(x, mask=mask, is_causal=True))


def loss(model, tokens, labels):
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def make_step():
    torch.manual_seed(0)
    model = Gpt()
    tokens = torch.zeros(16, 64, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = {"tokens": tokens, "labels": tokens}
    return memplan.TorchStep(model, loss, batch, optimizer, dynamic="batch")
