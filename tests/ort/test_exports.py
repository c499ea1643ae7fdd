"""A model as PyTorch's own exporters write it: all that it trains is trained."""

import io
import warnings
from typing import Any, cast

import onnx
import pytest

import memplan
from helpers.with_torch import nn, torch

WAYS: dict[str, dict[str, object]] = {
    "default": {"dynamo": True},
    "optimize=False": {"dynamo": True, "optimize": False},
    "legacy": {
        "dynamo": False,
        "do_constant_folding": False,
        "training": torch.onnx.TrainingMode.TRAINING,
    },
}


class Gpt(nn.Module):  # type: ignore[misc]
    """PyTorch's own transformer layers, with a mask made inside."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.tokens, self.positions = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(h, mask=mask, is_causal=True))


class Cnn(nn.Module):  # type: ignore[misc]
    """Batch normalization, and a mean over axes that the exporters compute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Lstm(nn.Module):  # type: ignore[misc]
    """Weights that stand behind Unsqueeze and Concat."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, 2, batch_first=True), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


NETS = {
    "gpt": (Gpt, lambda: torch.randint(0, 20, (2, 8))),
    "cnn": (Cnn, lambda: torch.randn(2, 3, 8, 8)),
    "lstm": (Lstm, lambda: torch.randn(2, 5, 4)),
}


def exported(name: str, way: str) -> tuple[onnx.ModelProto, int]:
    """The forward graph, and how many parameters the module has."""
    torch.manual_seed(0)
    kind, inputs = NETS[name]
    module, file = kind(), io.BytesIO()
    asked = {"input_names": ["x"], "output_names": ["logits"], "verbose": False, **WAYS[way]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "legacy":
            torch.onnx.export(module, (inputs(),), file, **asked)
        else:
            torch.onnx.export(module, (inputs(),), **asked).save(file)
    return onnx.load_from_string(file.getvalue()), len(list(module.parameters()))


@pytest.mark.parametrize("way", ["optimize=False", "legacy"])
@pytest.mark.parametrize("name", NETS)
def test_every_parameter_is_trained(name: str, way: str) -> None:
    model, parameters = exported(name, way)
    made = memplan.grad(model, memplan.GradOptions("cross-entropy", logits="logits"))
    trained = cast("list[str]", made.as_json()["wrt"])
    assert len(trained) == parameters
    assert not any("running" in each for each in trained)


def test_weights_that_the_default_export_merged_are_told() -> None:
    model, parameters = exported("gpt", "default")
    made = memplan.grad(model, memplan.GradOptions("cross-entropy", logits="logits")).as_json()
    assert len(cast("list[str]", made["wrt"])) < parameters
    assert any("several layers each" in note for note in cast("list[str]", made["notes"]))
