"""Networks of torchvision, timm and transformers, small: made from configurations, not trained.

Those with dropout are made without: every step computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import memplan


def _classify(model: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(image), label)


def _vision(make: Callable[[], Any], size: int = 64) -> memplan.TorchStep:
    model = make().train()
    for module in model.modules():
        if "Drop" in type(module).__name__ or "StochasticDepth" in type(module).__name__:
            module.eval()
    batch = {"image": torch.randn(2, 3, size, size), "label": torch.randint(0, 10, (2,))}
    return memplan.TorchStep(model, _classify, batch)


def torchvision(name: str, size: int = 64) -> Callable[[], memplan.TorchStep]:
    """A classifier of ten classes."""

    def make() -> memplan.TorchStep:
        from torchvision import models

        return _vision(lambda: getattr(models, name)(weights=None, num_classes=10), size)

    return make


def timm(name: str, size: int = 64, **settings: Any) -> Callable[[], memplan.TorchStep]:
    """A classifier of ten classes."""

    def make() -> memplan.TorchStep:
        from timm import create_model

        return _vision(lambda: create_model(name, num_classes=10, **settings), size)

    return make


def transformers(kind: str, **settings: Any) -> Callable[[], memplan.TorchStep]:
    """A language model of two layers that gives its own loss."""

    def make() -> memplan.TorchStep:
        import transformers as library

        config = getattr(library, f"{kind}Config")(**settings)
        names = {"Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration"}
        name = names.get(kind, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")
        model = getattr(library, name)(config).train()
        tokens = torch.randint(1, 90, (2, 12))
        batch = {"input_ids": tokens, "labels": torch.randint(1, 90, (2, 12))}
        if kind == "Bert":
            batch["attention_mask"] = (torch.arange(12) < torch.tensor([[12], [9]])).long()
        return memplan.TorchStep(model, None, batch)

    return make


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LIBRARY_NETS: dict[str, Callable[[], memplan.TorchStep]] = {
    "torchvision resnet18": torchvision("resnet18"),
    "torchvision mobilenet_v3_small": torchvision("mobilenet_v3_small"),
    "torchvision efficientnet_b0": torchvision("efficientnet_b0"),
    "torchvision convnext_tiny": torchvision("convnext_tiny"),
    "torchvision vit_b_16": torchvision("vit_b_16", 224),
    "torchvision swin_t": torchvision("swin_t"),
    "torchvision densenet121": torchvision("densenet121"),
    "timm resnet18": timm("resnet18"),
    "timm vit_tiny_patch16_224": timm("vit_tiny_patch16_224", img_size=64),
    "timm convnext_atto": timm("convnext_atto"),
    "timm mixer_s16_224": timm("mixer_s16_224", 224),
    "timm regnety_002": timm("regnety_002"),
    "transformers GPT2": transformers(
        "GPT2",
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=99,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "transformers Bert": transformers(
        "Bert",
        **_SMALL,
        intermediate_size=64,
        vocab_size=99,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    "transformers Llama": transformers(
        "Llama", **_SMALL, num_key_value_heads=2, intermediate_size=64, vocab_size=99
    ),
    "transformers T5": transformers(
        "T5",
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=99,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    ),
    "transformers Qwen2": transformers(
        "Qwen2", **_SMALL, num_key_value_heads=2, intermediate_size=64, vocab_size=99
    ),
}
