"""What can go wrong, and the exit code of each.

    MemplanError                70  our bug, unless a subclass says otherwise
    ├── UsageError               2  an argument, option or output path cannot be used
    ├── ModelError               3  the file is not a model that memplan can read or plan
    ├── LockError                3  the lock file is broken
    ├── PlanError                3  the plan file is broken
    ├── InfeasibleError          4  no plan keeps the budget
    ├── RuntimeUnavailableError  5  ONNX Runtime missing, a run failed, too little memory
    │   ├── NodeFailedError      5  a run failed in a node of the model
    │   ├── ModelRefusedError    5  ONNX Runtime refuses a model that it was to load
    │   └── ProviderMissingError 5  CUDA was asked for and does not start
    ├── TrainingError            1  the loss of a step is not a number
    ├── CaptureDiffersError      1  a captured step is not PyTorch's (memplan.api.capture)
    └── GradientsDifferError     1  gradients are not the forward graph's (memplan.api.grad)

Other findings (a regression, outputs that differ, a budget that was broken) are not exceptions: the
command reports them and exits 1.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_MODEL = 3
EXIT_INFEASIBLE = 4
EXIT_ENVIRONMENT = 5
EXIT_BUG = 70


class MemplanError(Exception):
    """A failure that is told to the user in two lines: what is wrong, and what to do."""

    exit_code = EXIT_BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message, which may have been completed on the way."""
        return self.message


class UsageError(MemplanError):
    """An argument, an option or an output path cannot be used."""

    exit_code = EXIT_USAGE


class ModelError(MemplanError):
    """The file is not a model that memplan can read or plan."""

    exit_code = EXIT_MODEL


class InvalidNodeError(ModelError):
    """A node is called against the definition of its operator; ``node`` is its name."""

    node = ""


class LockError(MemplanError):
    """The lock file cannot be read."""

    exit_code = EXIT_MODEL


class PlanError(MemplanError):
    """The plan file cannot be read; the message says which entry is wrong."""

    exit_code = EXIT_MODEL


class InfeasibleError(MemplanError):
    """No plan keeps the budget; the message carries the floor and what pins it."""

    exit_code = EXIT_INFEASIBLE


class RuntimeUnavailableError(MemplanError):
    """ONNX Runtime, a provider or a run failed for a reason outside the model's contents."""

    exit_code = EXIT_ENVIRONMENT


class NodeFailedError(RuntimeUnavailableError):
    """A run failed in a node of the model: what it was given may be at fault."""


class ModelRefusedError(RuntimeUnavailableError):
    """The runtime itself refuses a model, in words of its own."""


class ProviderMissingError(RuntimeUnavailableError):
    """The execution provider that was asked for does not start on this machine."""


class TrainingError(MemplanError):
    """The loss of a step is not a finite number; the message says what became of the state."""

    exit_code = EXIT_FINDING
