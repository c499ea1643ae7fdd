"""Whole networks: the gradients of a generated training graph against PyTorch's autograd."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import Run, runtime
from helpers.models import load_benchmark

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

batch_norm = load_benchmark("nets.catalogue").batch_norm


class _Functional(torch.nn.Module):  # type: ignore[misc]
    """A module whose parameters are inputs, in front of its own: nothing folds them away."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.names = [name for name, _ in module.named_parameters()]
        self.inner = [module]  # in a list: not a submodule, so that its parameters are not exported

    def forward(self, parameters: tuple[Any, ...], inputs: tuple[Any, ...]) -> Any:
        known = dict(zip(self.names, parameters, strict=True))
        known |= {name: buffer.clone() for name, buffer in self.inner[0].named_buffers()}
        return torch.func.functional_call(self.inner[0], known, inputs)


def exported(module: Any, inputs: tuple[Any, ...], opset: int = 20) -> onnx.ModelProto:
    """The forward graph of a module, with its parameters as graph inputs."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    names = [*parameters, *(f"input_{k}" for k in range(len(inputs)))]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Functional(module),
            (tuple(parameters.values()), inputs),
            dynamo=True,
            opset_version=opset,
            input_names=names,
            verbose=False,
            custom_translation_table={
                torch.ops.aten._native_batch_norm_legit_functional.default: batch_norm
            },
        )
        program.save(buffer)
    return onnx.load_from_string(buffer.getvalue())


def compare(
    module: Any,
    inputs: tuple[Any, ...],
    *,
    tolerance: float = 1e-4,
    run: Run = runtime,
    opset: int = 20,
) -> onnx.ModelProto:
    """Differentiate ``module(*inputs)``, a scalar, by all parameters; the training graph.

    The error of each gradient is relative to its largest entry.
    """
    model = exported(module, inputs, opset)
    loss = module(*inputs)
    loss.backward()
    wanted = {name: p.grad.numpy() for name, p in module.named_parameters()}
    (output,) = (value.name for value in model.graph.output)
    trained = memplan.gradients(model, output, list(wanted))
    feeds = {name: p.detach().numpy() for name, p in module.named_parameters()}
    feeds |= {f"input_{k}": tensor.numpy() for k, tensor in enumerate(inputs)}
    found = run(trained, feeds)
    np.testing.assert_allclose(found[output], loss.detach().numpy(), rtol=tolerance)
    for name, grad in wanted.items():
        largest = max(float(np.abs(grad).max()), 1e-12)
        error = float(np.abs(found[f"{name}_grad"] - grad).max()) / largest
        assert error <= tolerance, (name, error)
    return trained
