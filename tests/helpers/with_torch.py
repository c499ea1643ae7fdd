"""PyTorch, and what exports it: a module that imports this is skipped where they are missing."""

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn, functional, Tensor = torch.nn, torch.nn.functional, torch.Tensor
F = functional
