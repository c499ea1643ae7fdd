"""memplan: plan and prove the memory of ONNX training graphs on ONNX Runtime.

The names here are loaded on first use, so that importing the package costs nothing. What each
function takes and gives stands in :mod:`memplan.api`; :func:`load` opens a rewritten file.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers take it for true; the typing module would be half of the time that the import takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from memplan.api.analyze import Analysis, analyze
    from memplan.api.capture.check import CaptureDiffersError, Check
    from memplan.api.capture.result import Capture
    from memplan.api.capture.run import capture
    from memplan.api.grad.result import GradOptions, TrainingGraph
    from memplan.api.grad.run import grad, gradients
    from memplan.api.lower.run import LoweredGraph, LowerOptions, lower
    from memplan.api.profile import Profile, ProfileOptions, profile
    from memplan.api.rewrite.goal import RewriteOptions
    from memplan.api.rewrite.result import Rewrite
    from memplan.api.rewrite.run import rewrite
    from memplan.api.sweep.request import SweepOptions
    from memplan.api.sweep.result import Sweep
    from memplan.api.sweep.run import sweep
    from memplan.api.validate.result import Validation
    from memplan.api.validate.run import ValidateOptions, validate
    from memplan.errors import MemplanError
    from memplan.pytorch.step import Ema, TorchStep
    from memplan.runtime.load import load, session_options
    from memplan.training.accumulate import AccumulatingTrainer
    from memplan.training.alternating import AlternatingTrainer
    from memplan.training.trainer import Trainer
    from memplan.units import parse_size

_HOME = {
    "AccumulatingTrainer": "memplan.training.accumulate",
    "AlternatingTrainer": "memplan.training.alternating",
    "Analysis": "memplan.api.analyze",
    "Capture": "memplan.api.capture.result",
    "CaptureDiffersError": "memplan.api.capture.check",
    "Check": "memplan.api.capture.check",
    "Ema": "memplan.pytorch.step",
    "GradOptions": "memplan.api.grad.result",
    "LowerOptions": "memplan.api.lower.run",
    "LoweredGraph": "memplan.api.lower.run",
    "MemplanError": "memplan.errors",
    "Profile": "memplan.api.profile",
    "ProfileOptions": "memplan.api.profile",
    "Rewrite": "memplan.api.rewrite.result",
    "RewriteOptions": "memplan.api.rewrite.goal",
    "Sweep": "memplan.api.sweep.result",
    "SweepOptions": "memplan.api.sweep.request",
    "Trainer": "memplan.training.trainer",
    "TorchStep": "memplan.pytorch.step",
    "TrainingGraph": "memplan.api.grad.result",
    "ValidateOptions": "memplan.api.validate.run",
    "Validation": "memplan.api.validate.result",
    "analyze": "memplan.api.analyze",
    "capture": "memplan.api.capture.run",
    "grad": "memplan.api.grad.run",
    "gradients": "memplan.api.grad.run",
    "load": "memplan.runtime.load",
    "lower": "memplan.api.lower.run",
    "parse_size": "memplan.units",
    "profile": "memplan.api.profile",
    "rewrite": "memplan.api.rewrite.run",
    "session_options": "memplan.runtime.load",
    "sweep": "memplan.api.sweep.run",
    "validate": "memplan.api.validate.run",
}

__all__ = [
    "AccumulatingTrainer",
    "AlternatingTrainer",
    "Analysis",
    "Capture",
    "CaptureDiffersError",
    "Check",
    "Ema",
    "GradOptions",
    "LowerOptions",
    "LoweredGraph",
    "MemplanError",
    "Profile",
    "ProfileOptions",
    "Rewrite",
    "RewriteOptions",
    "Sweep",
    "SweepOptions",
    "TorchStep",
    "Trainer",
    "TrainingGraph",
    "ValidateOptions",
    "Validation",
    "analyze",
    "capture",
    "grad",
    "gradients",
    "load",
    "lower",
    "parse_size",
    "profile",
    "rewrite",
    "session_options",
    "sweep",
    "validate",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in _HOME:
        found: object = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module 'memplan' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
