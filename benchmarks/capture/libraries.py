"""Networks of torchvision, timm and transformers, small: made from configurations, not trained.

``libraries.txt`` has a row of each: ``library name | function or class, image size | settings``.
Without a second column the name is the function's. Settings are literals of Python; ``@name``
stands for those of that row. Networks with dropout are made without: every step computes the same.
"""

from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import memplan

Make = Callable[[], memplan.TorchStep]
ROWS = Path(__file__).with_name("libraries.txt")
IMAGE_SIZE = 64
TASKS = ("LMHeadModel", "MTModel", "For")
"""What the name of a class of transformers ends with, behind that of its configuration."""


def _read(text: str) -> Iterator[tuple[str, Make]]:
    named: dict[str, Mapping[str, Any]] = {}
    for line in filter(None, text.splitlines()):
        name, made, words = (part.strip() for part in f"{line}||".split("|")[:3])
        settings: dict[str, Any] = {}
        for word in words.split():
            key, _, value = word.partition("=")
            settings |= named[key] if key.startswith("@") else {key: literal_eval(value)}
        library, _, own = name.partition(" ")
        if library.startswith("@"):
            named[library] = settings
        elif library == "transformers":
            yield name, partial(_of_transformers, made, settings)
        else:
            function, _, size = (made or own).partition(" ")
            of = _of_torchvision if library == "torchvision" else _of_timm
            yield name, partial(of, function, int(size or IMAGE_SIZE), settings)


def _of_torchvision(name: str, size: int, settings: Mapping[str, Any]) -> memplan.TorchStep:
    """A classifier of ten classes: a function of ``torchvision.models``, or a class there."""
    from torchvision import models

    weights = {"weights": None} if name[0].islower() else {}
    return _classifier(getattr(models, name)(num_classes=10, **weights, **settings), size)


def _of_timm(name: str, size: int, settings: Mapping[str, Any]) -> memplan.TorchStep:
    from timm import create_model

    return _classifier(create_model(name, num_classes=10, **settings), size)


def _classifier(model: Any, size: int) -> memplan.TorchStep:
    batch = {"image": torch.randn(2, 3, size, size), "label": torch.randint(0, 10, (2,))}
    return memplan.TorchStep(without_dropout(model.train()), _classify, batch)


def _classify(model: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(image), label)


def _of_transformers(name: str, settings: Mapping[str, Any]) -> memplan.TorchStep:
    """A model that gives its own loss; of texts, the second is shorter."""
    import transformers

    of_images = name.endswith("ForImageClassification")
    kind = next(name.partition(task)[0] for task in TASKS if task in name)
    labels = {"num_labels": 10} if of_images else {}
    config = getattr(transformers, f"{kind}Config")(**labels, **settings)
    model = without_dropout(getattr(transformers, name)(config).train())
    if of_images:
        batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 10, (2,))}
    elif kind == "Whisper":
        sound = torch.randn(2, settings["num_mel_bins"], 2 * settings["max_source_positions"])
        batch = {"input_features": sound, "labels": _tokens()}
    else:
        mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
        batch = {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}
    return memplan.TorchStep(model, None, batch)


def _tokens() -> torch.Tensor:
    return torch.randint(3, 90, (2, 12))


def without_dropout(model: Any) -> Any:
    """The model, whose every step computes the same."""
    for module in model.modules():
        if "Drop" in type(module).__name__ or "StochasticDepth" in type(module).__name__:
            module.eval()
    return model


LIBRARY_NETS: dict[str, Make] = dict(_read(ROWS.read_text(encoding="utf-8")))
