"""A network as PyTorch's own exporters write it: all that it trains is trained."""

import io
import warnings
from typing import cast

import onnx
import pytest

import memplan
from helpers.captured_nets import NETS, TINY
from helpers.with_torch import torch

WAYS: dict[str, dict[str, object]] = {
    "default": {"dynamo": True},
    "optimize=False": {"dynamo": True, "optimize": False},
    "legacy": {
        "dynamo": False,
        "do_constant_folding": False,
        "training": torch.onnx.TrainingMode.TRAINING,
    },
}


# PyTorch's own transformer layers, with a mask made inside; batch normalization, and a mean over
# axes that the exporters compute; weights that stand behind Unsqueeze and Concat.
EXPORTED = {
    "gpt": NETS["transformer_encoder"],
    "cnn": TINY["resnet50_tiny"],
    "lstm": NETS["lstm_both_ways"],
}


def exported(name: str, way: str) -> tuple[onnx.ModelProto, int]:
    """The forward graph, and how many parameters the module has."""
    torch.manual_seed(0)
    module, batch, file = EXPORTED[name].make(), EXPORTED[name].batch(), io.BytesIO()
    asked = {"input_names": ["x", "y"], "output_names": ["loss"], "verbose": False, **WAYS[way]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "legacy":
            torch.onnx.export(module, batch, file, **asked)
        else:
            torch.onnx.export(module, batch, **asked).save(file)
    return onnx.load_from_string(file.getvalue()), len(list(module.parameters()))


@pytest.mark.parametrize("way", ["optimize=False", "legacy"])
@pytest.mark.parametrize("name", EXPORTED)
def test_every_parameter_is_trained(name: str, way: str) -> None:
    model, parameters = exported(name, way)
    made = memplan.grad(model, "loss")
    trained = cast("list[str]", made.as_json()["wrt"])
    assert len(trained) == parameters
    assert not any("running" in each for each in trained)


def test_weights_that_the_default_export_merged_are_told() -> None:
    model, parameters = exported("gpt", "default")
    made = memplan.grad(model, "loss").as_json()
    assert len(cast("list[str]", made["wrt"])) < parameters
    assert any("several layers each" in note for note in cast("list[str]", made["notes"]))
