"""memplan: plan and prove the memory of ONNX training graphs on ONNX Runtime.

The names here are loaded on first use, so that importing the package costs nothing. What each
function takes and gives stands in :mod:`memplan.api`; :func:`load` opens a rewritten file.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers take it for true; the typing module would be half of the time that the import takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from memplan.api.analysis import Analysis, analyze
    from memplan.api.capture.capture_check import CaptureDiffersError, Check
    from memplan.api.capture.capture_result import Capture
    from memplan.api.capture.capturing import capture
    from memplan.api.check.assert_peak import assert_peak
    from memplan.api.diff.diff_result import Diff
    from memplan.api.diff.diffing import diff
    from memplan.api.grad.check_outcome import GradientCheck, GradientsDifferError
    from memplan.api.grad.differentiate import grad, gradients
    from memplan.api.grad.training_graph import TrainingGraph
    from memplan.api.lower import LoweredGraph, lower
    from memplan.api.profiling import Profile, profile
    from memplan.api.rewrite.rewrite_result import Rewrite
    from memplan.api.rewrite.rewriting import replay, rewrite
    from memplan.api.sweep.sweep_result import Sweep
    from memplan.api.sweep.sweeping import sweep
    from memplan.api.validate.validating import validate
    from memplan.api.validate.validation import Validation
    from memplan.errors import MemplanError
    from memplan.options import (
        GradOptions,
        LowerOptions,
        ProfileOptions,
        RewriteOptions,
        SweepOptions,
        ValidateOptions,
    )
    from memplan.pytorch.solver_options import torch_solver
    from memplan.pytorch.torch_step import Ema, TorchStep
    from memplan.runtime.load_session import load, session_options
    from memplan.training.accumulate import AccumulatingTrainer
    from memplan.training.alternating import AlternatingTrainer
    from memplan.training.trainer import Trainer
    from memplan.units import parse_size

_HOME = {
    "AccumulatingTrainer": "memplan.training.accumulate",
    "AlternatingTrainer": "memplan.training.alternating",
    "Analysis": "memplan.api.analysis",
    "Capture": "memplan.api.capture.capture_result",
    "CaptureDiffersError": "memplan.api.capture.capture_check",
    "Check": "memplan.api.capture.capture_check",
    "Diff": "memplan.api.diff.diff_result",
    "Ema": "memplan.pytorch.torch_step",
    "GradOptions": "memplan.options",
    "GradientCheck": "memplan.api.grad.check_outcome",
    "GradientsDifferError": "memplan.api.grad.check_outcome",
    "LowerOptions": "memplan.options",
    "LoweredGraph": "memplan.api.lower",
    "MemplanError": "memplan.errors",
    "Profile": "memplan.api.profiling",
    "ProfileOptions": "memplan.options",
    "Rewrite": "memplan.api.rewrite.rewrite_result",
    "RewriteOptions": "memplan.options",
    "Sweep": "memplan.api.sweep.sweep_result",
    "SweepOptions": "memplan.options",
    "Trainer": "memplan.training.trainer",
    "TorchStep": "memplan.pytorch.torch_step",
    "TrainingGraph": "memplan.api.grad.training_graph",
    "ValidateOptions": "memplan.options",
    "Validation": "memplan.api.validate.validation",
    "analyze": "memplan.api.analysis",
    "assert_peak": "memplan.api.check.assert_peak",
    "capture": "memplan.api.capture.capturing",
    "diff": "memplan.api.diff.diffing",
    "grad": "memplan.api.grad.differentiate",
    "gradients": "memplan.api.grad.differentiate",
    "load": "memplan.runtime.load_session",
    "lower": "memplan.api.lower",
    "parse_size": "memplan.units",
    "profile": "memplan.api.profiling",
    "replay": "memplan.api.rewrite.rewriting",
    "rewrite": "memplan.api.rewrite.rewriting",
    "session_options": "memplan.runtime.load_session",
    "sweep": "memplan.api.sweep.sweeping",
    "torch_solver": "memplan.pytorch.solver_options",
    "validate": "memplan.api.validate.validating",
}

__all__ = [
    "AccumulatingTrainer",
    "AlternatingTrainer",
    "Analysis",
    "Capture",
    "CaptureDiffersError",
    "Check",
    "Diff",
    "Ema",
    "GradOptions",
    "GradientCheck",
    "GradientsDifferError",
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
    "assert_peak",
    "capture",
    "diff",
    "grad",
    "gradients",
    "load",
    "lower",
    "parse_size",
    "profile",
    "replay",
    "rewrite",
    "session_options",
    "sweep",
    "torch_solver",
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
