"""memplan: plan and prove the memory of ONNX training graphs on ONNX Runtime.

The names here are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.api.analyze import Analysis, analyze
    from memplan.api.grad.run import TrainingGraph, grad, gradients
    from memplan.api.profile import Profile, profile
    from memplan.api.rewrite.run import Rewrite, rewrite
    from memplan.api.validate.run import Validation, validate
    from memplan.errors import MemplanError
    from memplan.runtime.load import load, session_options

_HOME = {
    "Analysis": "memplan.api.analyze",
    "MemplanError": "memplan.errors",
    "Profile": "memplan.api.profile",
    "Rewrite": "memplan.api.rewrite.run",
    "TrainingGraph": "memplan.api.grad.run",
    "Validation": "memplan.api.validate.run",
    "analyze": "memplan.api.analyze",
    "grad": "memplan.api.grad.run",
    "gradients": "memplan.api.grad.run",
    "load": "memplan.runtime.load",
    "profile": "memplan.api.profile",
    "rewrite": "memplan.api.rewrite.run",
    "session_options": "memplan.runtime.load",
    "validate": "memplan.api.validate.run",
}

__all__ = [
    "Analysis",
    "MemplanError",
    "Profile",
    "Rewrite",
    "TrainingGraph",
    "Validation",
    "analyze",
    "grad",
    "gradients",
    "load",
    "profile",
    "rewrite",
    "session_options",
    "validate",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'memplan' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
