"""Networks of torchvision, timm and transformers, small: made from configurations, not trained.

Those with dropout are made without: every step computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import memplan

Make = Callable[[], memplan.TorchStep]


def _classify(model: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(image), label)


def _without_dropout(model: Any) -> Any:
    for module in model.modules():
        if "Drop" in type(module).__name__ or "StochasticDepth" in type(module).__name__:
            module.eval()
    return model


def _vision(model: Any, size: int) -> memplan.TorchStep:
    batch = {"image": torch.randn(2, 3, size, size), "label": torch.randint(0, 10, (2,))}
    return memplan.TorchStep(_without_dropout(model.train()), _classify, batch)


def torchvision(name: str, size: int = 64, **settings: Any) -> Make:
    """A classifier of ten classes: a function of ``torchvision.models``, or a class there."""

    def make() -> memplan.TorchStep:
        from torchvision import models

        if name[0].islower():
            settings.setdefault("weights", None)
        return _vision(getattr(models, name)(num_classes=10, **settings), size)

    return make


def timm(name: str, size: int = 64, **settings: Any) -> Make:
    """A classifier of ten classes."""

    def make() -> memplan.TorchStep:
        from timm import create_model

        return _vision(create_model(name, num_classes=10, **settings), size)

    return make


def _tokens(length: int = 12) -> torch.Tensor:
    return torch.randint(3, 90, (2, length))


def language(kind: str, task: str, **settings: Any) -> Make:
    """A language model of transformers that gives its own loss; the second text is shorter."""

    def make() -> memplan.TorchStep:
        model = _transformer(kind, task, settings)
        mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
        batch = {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}
        return memplan.TorchStep(model, None, batch)

    return make


def vision(kind: str, **settings: Any) -> Make:
    """An image classifier of transformers that gives its own loss."""

    def make() -> memplan.TorchStep:
        model = _transformer(kind, "ForImageClassification", {"num_labels": 10, **settings})
        batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 10, (2,))}
        return memplan.TorchStep(model, None, batch)

    return make


def speech(**settings: Any) -> Make:
    """Whisper: a spectrogram in, text out."""

    def make() -> memplan.TorchStep:
        model = _transformer("Whisper", "ForConditionalGeneration", settings)
        sound = torch.randn(2, settings["num_mel_bins"], 2 * settings["max_source_positions"])
        return memplan.TorchStep(model, None, {"input_features": sound, "labels": _tokens()})

    return make


def _transformer(kind: str, task: str, settings: dict[str, Any]) -> Any:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    return _without_dropout(getattr(transformers, f"{kind}{task}")(config).train())


_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL = {**_LAYERS, "intermediate_size": 64, "vocab_size": 99}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_ENCODER = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SEQUENCES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_CAUSAL, _MASKED, _PAIRS = "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"
LIBRARY_NETS: dict[str, Make] = {
    "torchvision resnet18": torchvision("resnet18"),
    "torchvision mobilenet_v3_small": torchvision("mobilenet_v3_small"),
    "torchvision efficientnet_b0": torchvision("efficientnet_b0"),
    "torchvision convnext_tiny": torchvision("convnext_tiny"),
    "torchvision vit": torchvision(
        "VisionTransformer",
        32,
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
    ),
    "torchvision swin": torchvision(
        "SwinTransformer",
        32,
        patch_size=[2, 2],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
    ),
    "torchvision densenet": torchvision(
        "DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16
    ),
    "torchvision shufflenet_v2_x0_5": torchvision("shufflenet_v2_x0_5"),
    "torchvision regnet_y_400mf": torchvision("regnet_y_400mf"),
    "timm resnet18": timm("resnet18"),
    "timm vit_tiny_patch16_224": timm("vit_tiny_patch16_224", img_size=64),
    "timm convnext_atto": timm("convnext_atto"),
    "timm mixer_s16_224": timm("mixer_s16_224", img_size=64),
    "timm regnety_002": timm("regnety_002"),
    "timm mobilenetv3_small_050": timm("mobilenetv3_small_050"),
    "timm edgenext_xx_small": timm("edgenext_xx_small"),
    "timm swin_tiny_patch4_window7_224": timm(
        "swin_tiny_patch4_window7_224",
        56,
        img_size=56,
        embed_dim=24,
        depths=(2, 2),
        num_heads=(2, 4),
    ),
    "timm poolformer_s12": timm("poolformer_s12"),
    "timm ghostnet_050": timm("ghostnet_050"),
    "torchvision squeezenet1_1": torchvision("squeezenet1_1"),
    "torchvision googlenet": torchvision("googlenet", aux_logits=False, init_weights=False),
    "torchvision mnasnet0_5": torchvision("mnasnet0_5"),
    "torchvision mobilenet_v2": torchvision("mobilenet_v2"),
    "torchvision resnext": torchvision("resnext50_32x4d"),
    "torchvision maxvit": torchvision(
        "MaxVit",
        64,
        input_size=(64, 64),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
    ),
    "timm deit_tiny": timm("deit_tiny_patch16_224", img_size=64, depth=2),
    "timm cait_xxs24": timm("cait_xxs24_224", img_size=64, depth=2),
    "timm gmlp_ti16": timm("gmlp_ti16_224", img_size=64),
    "timm resmlp_12": timm("resmlp_12_224", img_size=64),
    "timm xcit_nano_12_p16": timm("xcit_nano_12_p16_224", img_size=64, depth=2),
    "timm mobilevit_xxs": timm("mobilevit_xxs"),
    "timm efficientnet_lite0": timm("efficientnet_lite0"),
    "timm tf_efficientnetv2_b0": timm("tf_efficientnetv2_b0"),
    "timm hardcorenas_a": timm("hardcorenas_a"),
    "timm res2net50_26w_4s": timm("res2net50_26w_4s", layers=(1, 1, 1, 1)),
    "timm resnest14d": timm("resnest14d"),
    "timm skresnet18": timm("skresnet18"),
    "timm dla34": timm("dla34"),
    "timm nf_regnet_b0": timm("nf_regnet_b0"),
    "timm repvgg_a0": timm("repvgg_a0"),
    "timm levit_128s": timm("levit_128s", img_size=64),
    "timm fbnetc_100": timm("fbnetc_100"),
    "timm fastvit_t8": timm("fastvit_t8"),
    "transformers GPT2": language(
        "GPT2",
        "LMHeadModel",
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=99,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "transformers Bert": language("Bert", _MASKED, **_SMALL, **_ENCODER),
    "transformers Roberta": language("Roberta", _MASKED, **_SMALL, **_ENCODER),
    "transformers DistilBert": language(
        "DistilBert",
        _MASKED,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        vocab_size=99,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    "transformers Llama": language("Llama", _CAUSAL, **_GROUPED),
    "transformers Mistral": language("Mistral", _CAUSAL, **_GROUPED, sliding_window=8),
    "transformers Qwen2": language("Qwen2", _CAUSAL, **_GROUPED),
    "transformers Qwen3": language("Qwen3", _CAUSAL, **_GROUPED, head_dim=8),
    "transformers Gemma2": language(
        "Gemma2", _CAUSAL, **_GROUPED, head_dim=8, sliding_window=8, attn_implementation="eager"
    ),
    "transformers Phi": language(
        "Phi", _CAUSAL, **_SMALL, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0
    ),
    "transformers GPTNeoX": language("GPTNeoX", _CAUSAL, **_SMALL),
    "transformers OPT": language(
        "OPT",
        _CAUSAL,
        **_LAYERS,
        ffn_dim=64,
        vocab_size=99,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
        dropout=0.0,
    ),
    "transformers Bloom": language(
        "Bloom",
        _CAUSAL,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        vocab_size=99,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
    "transformers T5": language(
        "T5",
        _PAIRS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=99,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    ),
    "transformers Bart": language("Bart", _PAIRS, **_SEQUENCES, **_SPECIAL),
    "transformers Albert": language(
        "Albert", _MASKED, **_SMALL, **_ENCODER, embedding_size=16, classifier_dropout_prob=0.0
    ),
    "transformers Electra": language("Electra", _MASKED, **_SMALL, **_ENCODER, embedding_size=16),
    "transformers DebertaV2": language("DebertaV2", _MASKED, **_SMALL, **_ENCODER),
    "transformers MPNet": language("MPNet", _MASKED, **_SMALL, **_ENCODER),
    "transformers GPTNeo": language(
        "GPTNeo",
        _CAUSAL,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        vocab_size=99,
        window_size=8,
        attention_dropout=0.0,
        embed_dropout=0.0,
        resid_dropout=0.0,
    ),
    "transformers Gemma": language("Gemma", _CAUSAL, **_GROUPED, head_dim=8),
    "transformers Phi3": language("Phi3", _CAUSAL, **_GROUPED, pad_token_id=0),
    "transformers StableLm": language("StableLm", _CAUSAL, **_GROUPED),
    "transformers Olmo2": language("Olmo2", _CAUSAL, **_GROUPED),
    "transformers Falcon": language(
        "Falcon", _CAUSAL, **_LAYERS, vocab_size=99, hidden_dropout=0.0, attention_dropout=0.0
    ),
    "transformers Pegasus": language("Pegasus", _PAIRS, **_SEQUENCES, **_SPECIAL),
    "transformers Marian": language(
        "Marian", "MTModel", **_SEQUENCES, **{**_SPECIAL, "pad_token_id": 98}
    ),
    "transformers BeiT": vision(
        "Beit", **_LAYERS, intermediate_size=64, image_size=32, patch_size=8, out_indices=[1, 2]
    ),
    "transformers DeiT": vision(
        "DeiT", **_LAYERS, intermediate_size=64, image_size=32, patch_size=8
    ),
    "transformers Dinov2": vision("Dinov2", **_LAYERS, image_size=32, patch_size=8),
    "transformers Swin": vision(
        "Swin",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    "transformers ResNet": vision(
        "ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"
    ),
    "transformers ViT": vision("ViT", **_LAYERS, intermediate_size=64, image_size=32, patch_size=8),
    "transformers ConvNext": vision("ConvNext", num_stages=2, hidden_sizes=[16, 32], depths=[2, 2]),
    "transformers Whisper": speech(
        **_SEQUENCES,
        **_SPECIAL,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=16,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    ),
}
