"""Whole networks: the gradients of a generated training graph against PyTorch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import Run, runtime
from helpers.models import load_benchmark

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

exported = load_benchmark("nets.catalogue").exported


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
    feeds = {name: b.detach().clone().numpy() for name, b in module.named_buffers()}
    loss = module(*inputs)
    loss.backward()
    wanted = {name: p.grad.numpy() for name, p in module.named_parameters()}
    output = model.graph.output[0].name  # behind it are new buffers
    trained = memplan.gradients(model, output, list(wanted))
    feeds |= {name: p.detach().numpy() for name, p in module.named_parameters()}
    feeds |= {f"batch_{k}": tensor.numpy() for k, tensor in enumerate(inputs)}
    given = {value.name for value in trained.graph.input}
    found = run(trained, {name: array for name, array in feeds.items() if name in given})
    np.testing.assert_allclose(found[output], loss.detach().numpy(), rtol=tolerance)
    for name, grad in wanted.items():
        largest = max(float(np.abs(grad).max()), 1e-12)
        error = float(np.abs(found[f"{name}_grad"] - grad).max()) / largest
        assert error <= tolerance, (name, error)
    return trained
