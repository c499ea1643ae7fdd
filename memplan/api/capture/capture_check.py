"""What came of holding a captured step against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from memplan.api.summary import fields_json
from memplan.errors import EXIT_FINDING, MemplanError
from memplan.units import counted, format_bytes, listed

_SHOWN = 3
_SPOKEN = ("draws", "run", "later")
"""Kinds whose differences are sentences."""
_KINDS = {
    "draws": "draw",
    "run": "run",
    "later": "later step",
    "loss": "loss",
    "gradient": "gradient",
    "metric": "metric",
    "buffer": "buffer",
    "parameter": "new parameter",
    "state": "new state tensor",
}
"""What may differ, in the order in which it is told, and what one is called."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not as in PyTorch.

    ``kind`` is ``loss``, ``gradient``, ``metric``, ``buffer``, ``parameter`` or ``state`` (new
    values); or ``draws``, ``run`` or ``later``: then ``name`` says what was drawn, why the graph
    cannot run, or what a later step does. ``error`` and ``tolerance`` are relative to the largest
    entry of the tensor, ``place`` is its module and the line of the user's code that reads it
    first. ``step`` is the step in which it was seen.
    """

    kind: str
    name: str
    error: float
    tolerance: float
    step: int
    place: str = ""


class Verdict(StrEnum):
    """Whether a captured step is PyTorch's."""

    EQUAL = "equal"
    DIFFERS = "differs"
    SKIPPED = "skipped"


class Skip(StrEnum):
    """Why nothing was compared: there are no other reasons."""

    NO_VALUES = "no-values"
    MEMORY = "memory"
    NO_RUNTIME = "no-runtime"
    NO_KERNEL = "no-kernel"
    DRAWS = "draws"
    LOSS = "loss-not-finite"


class NotComparableError(Exception):
    """A step cannot be held against PyTorch, for the reason in the text, of one of the kinds."""

    def __init__(self, kind: Skip, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Check:
    """A captured step beside PyTorch's, on the example batch.

    Errors are relative to the largest entry of a tensor, infinite where one is not finite.

    Attributes:
        verdict: what came of it.
        reason: why it was skipped.
        skipped_for: the kind of that reason.
        loss_error: of the loss.
        gradient_error: the largest of all gradients; ``worst`` has it, of ``gradients`` compared.
        own_error: what PyTorch's gradients differ from those computed in float64 in the middle.
        buffer_error: the largest of all buffers that the step renews.
        update_error: the largest of all new parameters and optimizer state, against PyTorch's
            optimizer given the graph's gradients.
        steps: how many steps were compared.
        draws: random draws of a step that both were given.
        granted: tensors that are off by more than usual rounding, and taken for rounding.
        not_checked: what was left out, and why.
        differences: what is not PyTorch's; empty unless ``verdict`` says so.
        causes: what probably made it so.
        seconds: that the check took.
        eager_seconds: that PyTorch took for one step.
        eager_peak_bytes: parameters, buffers, optimizer state and batch, and the most that tensors
            made in PyTorch's step took at a time.
        captured_seconds: that the graph took in a plain session.
    """

    verdict: Verdict
    reason: str = ""
    skipped_for: Skip | None = None
    loss_error: float | None = None
    gradient_error: float | None = None
    worst: str = ""
    gradients: int = 0
    own_error: float | None = None
    buffer_error: float | None = None
    update_error: float | None = None
    steps: int = 0
    draws: int = 0
    granted: int = 0
    not_checked: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    causes: tuple[str, ...] = ()
    seconds: float = 0.0
    eager_seconds: float | None = None
    eager_peak_bytes: int | None = None
    captured_seconds: float | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The report, a line each."""
        if self.verdict is Verdict.SKIPPED:
            return (f"not checked against PyTorch, nothing was compared: {self.reason}",)
        left = tuple(f"not checked: {text}" for text in self.not_checked)
        return (self._headline, *left, *self._beside)

    @property
    def _headline(self) -> str:
        if self.verdict is Verdict.DIFFERS:
            return f"differs from PyTorch: {self.summary}"
        parts = [
            f"loss within {self.loss_error or 0:.1g}",
            f"{counted(self.gradients, 'gradient')} within {self.gradient_error or 0:.1g}",
        ]
        if self.update_error is not None:
            parts.append(f"{counted(self.steps, 'update')} within {self.update_error:.1g}")
        if self.own_error is not None:
            parts.append(f"PyTorch's own rounding {self.own_error:.1g}")
        if self.draws:
            parts.append(f"the same {counted(self.draws, 'random draw')} in both")
        return f"checked against PyTorch: {', '.join(parts)} ({self.seconds:.1f} s)"

    @property
    def _beside(self) -> tuple[str, ...]:
        if self.eager_seconds is None or self.captured_seconds is None:
            return ()
        peak = self.eager_peak_bytes
        beside = "" if peak is None else f"peak {format_bytes(peak)}, "
        return (
            f"eager PyTorch: {beside}{_milliseconds(self.eager_seconds)} a step; captured: "
            f"{_milliseconds(self.captured_seconds)} in a plain session (one step each; other work "
            "on the machine counts)",
        )

    @property
    def summary(self) -> str:
        """What differs, in a line."""
        return "; ".join(_summed(self.differences))

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {**fields_json(self), "seconds": round(self.seconds, 2)}


class CaptureDiffersError(MemplanError):
    """The captured step is not PyTorch's; nothing was written.

    ``check`` has the figures, of the method that was tried last.
    """

    exit_code = EXIT_FINDING

    def __init__(self, message: str, hint: str, check: Check) -> None:
        super().__init__(message, hint)
        self.check = check


def _summed(differences: Sequence[Difference]) -> list[str]:
    """Differences by kind: how many, how far off the worst is, and the names of some."""
    texts = []
    for kind, what in _KINDS.items():
        found = [each for each in differences if each.kind == kind]
        if not found:
            continue
        if kind in _SPOKEN:
            texts += [each.name for each in found]
            continue
        worst = max(found, key=lambda each: each.error)
        off = f"off by {worst.error:.2g} ({worst.tolerance:.1g} would be rounding)"
        if not isfinite(worst.error):
            off = "infinitely far off, or in another shape"
        if kind == "loss":
            texts.append(f"the loss is {off}")
            continue
        ordered = sorted(found, key=lambda each: -each.error)
        names = [f"'{d.name}'" + (f" of {d.place}" if d.place else "") for d in ordered]
        texts.append(f"{counted(len(found), what)} off, the worst {off}: {listed(names, _SHOWN)}")
    return texts


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2f} ms"
