"""memplan: plan and prove the memory of ONNX training graphs on ONNX Runtime.

The names here are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.analysis import Analysis, analyze
    from memplan.differentiation import TrainingGraph, grad, gradients
    from memplan.errors import MemplanError
    from memplan.loading import load, session_options
    from memplan.profiling import Profile, profile
    from memplan.rewriting import Rewrite, rewrite
    from memplan.validation import Validation, validate

_HOME = {
    "Analysis": "memplan.analysis",
    "MemplanError": "memplan.errors",
    "Profile": "memplan.profiling",
    "Rewrite": "memplan.rewriting",
    "TrainingGraph": "memplan.differentiation",
    "Validation": "memplan.validation",
    "analyze": "memplan.analysis",
    "grad": "memplan.differentiation",
    "gradients": "memplan.differentiation",
    "load": "memplan.loading",
    "profile": "memplan.profiling",
    "rewrite": "memplan.rewriting",
    "session_options": "memplan.loading",
    "validate": "memplan.validation",
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
