"""``memplan.torch_solver``: what is asked, checked before PyTorch is loaded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.errors import UsageError
from memplan.ops.cost import DEVICES
from memplan.pytorch.installed_torch import named_in_failures, require_torch, torch_notes
from memplan.units import SizeSpec, did_you_mean, parse_budget

if TYPE_CHECKING:
    from memplan.pytorch.torch_solver import TorchSolver

BACKENDS = ("inductor", "aot_eager")


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """What a solver is asked; as of :func:`torch_solver`."""

    budget: SizeSpec
    backend: str
    time_limit: float
    effort: int
    seed: int
    device: str | None


def torch_solver(
    budget: str | int,
    *,
    backend: str = "inductor",
    time_limit: float = 10.0,
    effort: int = 0,
    seed: int = 0,
    device: str | None = None,
) -> TorchSolver:
    """A backend for ``torch.compile`` that keeps the peak of a training step within a budget.

        solver = memplan.torch_solver(budget="6GB")
        step = torch.compile(model, backend=solver.backend)

    and, once a step was taken, ``print(solver.report)``.

    Args:
        budget: of the peak over forward and backward, weights and gradients included: a size
            (``"6GB"``, bytes), a percentage of what the step takes without recomputation, or
            ``"min"``.
        backend: what compiles both graphs, ``inductor`` or ``aot_eager``.
        time_limit: seconds to plan.
        effort: rounds of every search instead of seconds (0: seconds), so that the plan is the
            same on every machine and PyTorch's caches know it again.
        seed: another one gives another plan.
        device: a roofline to take operators' times from (``memplan rewrite --device``); None: that
            of the device that the model is on.

    Raises:
        UsageError: an argument cannot be used.
        RuntimeUnavailableError: PyTorch is missing, or lacks what this needs.
    """
    spec = parse_budget(str(budget))
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend '{backend}' ({', '.join(BACKENDS)})")
    if device is not None and device not in DEVICES:
        raise UsageError(
            f"unknown device '{device}'",
            f"{did_you_mean(device, DEVICES)}devices: {', '.join(DEVICES)}",
        )
    if time_limit <= 0 or effort < 0:
        raise UsageError("expected a positive time limit and an effort of 0 or more")
    require_torch("torch_solver", ("torch",))
    for note in torch_notes():
        warnings.warn(note, stacklevel=2)
    with named_in_failures("torch_solver"):
        from memplan.pytorch.torch_solver import TorchSolver
    return TorchSolver(SolverOptions(spec, backend, time_limit, effort, seed, device))
