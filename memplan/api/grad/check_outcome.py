"""What came of holding gradients against the graph that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from memplan.api.summary import fields_json
from memplan.errors import EXIT_FINDING, MemplanError
from memplan.units import counted, listed

EQUAL, DIFFERS, SKIPPED = "equal", "differs", "skipped"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WrongGradient:
    """A gradient that is not the derivative: of which tensor, and off by how much of its size
    (infinite where the graph does not give it)."""

    tensor: str
    error: float

    @property
    def text(self) -> str:
        """In a sentence."""
        off = f"off by {self.error:.2g} of its size" if isfinite(self.error) else "not a number"
        return f"that of '{self.tensor}' is {off}"


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """Directional derivatives beside central differences of the forward graph.

    Attributes:
        verdict: ``equal``, ``differs`` or ``skipped``.
        reason: why it was skipped, or how the graph with gradients does not even run.
        error: the largest of all directions, relative to a derivative of usual size.
        tolerance: what was granted.
        gradients: how many were compared.
        directions: along how many random directions of all tensors.
        precision: the type of the differences, ``float64`` or ``float32``.
        single: operators that had to compute in float32 all the same.
        draws: random draws that both graphs were given.
        dims: sizes that were chosen for symbolic dimensions.
        not_checked: what was left out.
        wrong: what is off; empty unless ``verdict`` says so.
        seconds: that the check took.
    """

    verdict: str
    reason: str = ""
    error: float | None = None
    tolerance: float | None = None
    gradients: int = 0
    directions: int = 0
    precision: str = "float64"
    single: tuple[str, ...] = ()
    draws: int = 0
    dims: tuple[tuple[str, int], ...] = ()
    not_checked: tuple[str, ...] = ()
    wrong: tuple[WrongGradient, ...] = ()
    seconds: float = 0.0

    @property
    def lines(self) -> tuple[str, ...]:
        """The report, a line each."""
        if self.verdict == SKIPPED:
            return (f"not checked against the forward graph: {self.reason}",)
        left = tuple(f"not checked: {text}" for text in self.not_checked)
        if self.verdict == DIFFERS:
            return (f"differs from the forward graph: {self.summary}", *left)
        parts = [
            f"{counted(self.gradients, 'gradient')} along "
            f"{counted(self.directions, 'direction')}, in {self._types}",
            f"within {self.error or 0:.1g}",
        ]
        if self.draws:
            parts.append(f"the same {counted(self.draws, 'random draw')} in both")
        if self.dims:
            parts.append("with " + ", ".join(f"{name}={size}" for name, size in self.dims))
        told = f"{', '.join(parts)} ({self.seconds:.1f} s)"
        return (f"checked against the forward graph: {told}", *left)

    @property
    def _types(self) -> str:
        if not self.single:
            return self.precision
        return f"{self.precision} (float32: {listed(self.single, _SHOWN)})"

    @property
    def summary(self) -> str:
        """What differs, in a line."""
        return self.reason or listed([each.text for each in self.wrong], _SHOWN)

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            **fields_json(self),
            "dims": dict(self.dims),
            "seconds": round(self.seconds, 2),
        }


class GradientsDifferError(MemplanError):
    """Gradients are not those of the forward graph; nothing was written.

    ``check`` has the figures.
    """

    exit_code = EXIT_FINDING

    def __init__(self, message: str, hint: str, check: GradientCheck) -> None:
        super().__init__(message, hint)
        self.check = check


def require_equal(check: GradientCheck) -> None:
    """Refuse gradients that are not those of the forward graph.

    Raises:
        GradientsDifferError: they are not.
    """
    if check.verdict == DIFFERS:
        raise GradientsDifferError(
            f"gradients are not those of the forward graph: {check.summary}; nothing was written",
            "this is a bug in a gradient rule; please report it with the model; --no-check "
            "(check=False) writes it all the same",
            check,
        )


def skipped(reason: str) -> GradientCheck:
    """Nothing was compared."""
    return GradientCheck(SKIPPED, reason)
