"""What is off by more than usual rounding: another rule, a tie, or rounding after all.

Both steps are taken again, with the same weights off by about a millionth (in float16, by what that
rounds by; backward error: Higham, Accuracy and Stability of Numerical Algorithms, 1.5), several
times.

1. **Another rule** is wrong by the same amount at all of these points. Rounding is not: a variance
   as a difference of squares is off by something else each time, and a unit that fell to the other
   side of a kink is back on the right one.
2. At **a tie**, or exactly at a kink, both agree at the points beside it, too. But there PyTorch's
   own step in float64 jumps, however little weights are off; beside a kink it does not. A tie has
   a rule, and what has another one differs. Without a step in float64, what is more than rounding
   of the narrowest type may be, is taken for a tie.

What is neither is granted, and the report says so. A difference whose explanation fails remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.api.capture.capture_check import Difference
from memplan.api.capture.compare_steps import Key, Sides, Values, distance
from memplan.api.capture.reference import Reference, Taken
from memplan.api.capture.trial import Ran
from memplan.pytorch.eager import EagerStep
from memplan.pytorch.values import as_array, as_tensor, numbers

Array = npt.NDArray[Any]
SHAKEN = 8.0
"""By how much weights are off, relative to each of them: units of the narrowest type."""
_ROUGH = 128.0
"""What rounding may make of a gradient at most, in the same units."""
_SHAKES = 6
"""How often, at most."""
_TIMES = 2.0
"""What an error may be of the largest change of it."""
_TINY = 2.0**-40
"""The same in float64, to see whether PyTorch's step jumps: far less than float32 rounds by."""
_SHARE = 0.125
"""Of a difference: how large a jump explains it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of differences: those that remain, those that are granted, and what probably made
    the former."""

    differences: tuple[Difference, ...]
    granted: tuple[Difference, ...] = ()
    causes: tuple[str, ...] = ()


class Doubts:
    """Looks at differences again."""

    def __init__(
        self,
        reference: Reference,
        run: Callable[[Mapping[str, Any], EagerStep], Ran],
        sides: Callable[[Taken, Ran], Sides],
    ) -> None:
        """Take note of how steps are taken.

        Args:
            reference: PyTorch's.
            run: the graph's, with values and draws.
            sides: what is compared in a step, of the two.
        """
        self.reference, self.run, self.sides = reference, run, sides
        self.unit = reference.reading.narrowest_cast

    def judged(
        self, taken: Taken, values: Mapping[str, Any], ran: Ran, wrong: Sequence[Difference]
    ) -> Judged:
        """Look at the differences of the last step.

        Args:
            taken: the step as PyTorch took it.
            values: all that the graph was given.
            ran: what it made of that.
            wrong: the differences, of which there are some.
        """
        try:
            return self._judged(taken, values, ran, tuple(wrong))
        except Exception:  # whatever it is: what explains nothing excuses nothing
            return Judged(tuple(wrong))

    def _judged(
        self, taken: Taken, values: Mapping[str, Any], ran: Ran, wrong: tuple[Difference, ...]
    ) -> Judged:
        own = {*self.reference.eager.parameters, *self.reference.eager.buffers}
        given = {name: as_tensor(value) for name, value in values.items() if name in own}
        begun = self.sides(taken, ran)
        errors = _errors(begun, wrong)
        noise, least = self._shaken(values, given, begun, wrong)
        left = [d for d in wrong if errors[_key(d)] > _TIMES * noise[_key(d)]]
        if left:
            return Judged(tuple(left))
        near = [d for d in wrong if least[_key(d)] < errors[_key(d)] / _TIMES]
        if not near:
            return Judged((), wrong)
        if taken.exact is None:
            large = tuple(d for d in near if d.error > _ROUGH * self.unit)
            return Judged(
                large,
                () if large else wrong,
                (
                    "with weights a millionth off, both agree: a tie or a kink, which rounding "
                    "cannot be told from as the step does not run in float64",
                ),
            )
        return self._at_ties(given, near, errors) or Judged((), wrong)

    def _shaken(
        self,
        values: Mapping[str, Any],
        given: Mapping[str, Any],
        begun: Sides,
        wrong: Sequence[Difference],
    ) -> tuple[dict[Key, float], dict[Key, float]]:
        """By how much errors change at most where weights are off, and the least that they are."""
        first, errors = _gaps(begun, wrong), _errors(begun, wrong)
        noise, least = dict.fromkeys(errors, 0.0), dict.fromkeys(errors, float("inf"))
        for seed in range(_SHAKES):
            shaken = self.reference.eager.shaken(given, SHAKEN * self.unit, seed)
            off = {name: shaken[name].to(tensor.dtype) for name, tensor in given.items()}
            taken = self.reference.again(off)
            arrays = {name: as_array(tensor) for name, tensor in off.items()}
            sides = self.sides(taken, self.run({**values, **arrays}, taken.outcome))
            for key, gap in _gaps(sides, wrong).items():
                if key in first:
                    noise[key] = max(noise[key], float(np.abs(gap - first[key]).max(initial=0.0)))
            for key, error in _errors(sides, wrong).items():
                least[key] = min(least[key], error)
            if all(errors[key] <= _TIMES * noise[key] for key in errors):
                break
        return noise, least

    def _at_ties(
        self, given: Mapping[str, Any], near: Sequence[Difference], errors: Mapping[Key, float]
    ) -> Judged | None:
        """Differences that PyTorch's own jumps explain; None if there are none."""
        shaken, number = self.reference.eager.shaken, self.reference.number
        here = self.reference.eager.run(number, shaken(given, 0.0), wide=True)
        found: dict[Key, Difference] = {}
        for share in (_TINY, -_TINY):
            there = self.reference.eager.run(number, shaken(given, share), wide=True)
            for each in near:
                gap = distance(_value(here.values, each), _value(there.values, each))
                if gap > _SHARE * errors[_key(each)]:
                    found[_key(each)] = each
        if not found:
            return None
        return Judged(
            tuple(found.values()),
            causes=(
                "equal elements, or one exactly at a kink, where the graph has another rule than "
                "PyTorch (with weights a millionth off, both agree)",
            ),
        )


def _key(difference: Difference) -> Key:
    return difference.kind, difference.name


def _errors(sides: Sides, wrong: Sequence[Difference]) -> dict[Key, float]:
    """What tensors that differ are off by, absolute, from the nearer of PyTorch's two."""
    found, wanted, exact = sides
    return {
        key: distance(
            numbers(found(key)), numbers(wanted[key]), numbers(exact.get(key, wanted[key]))
        )
        for key in map(_key, wrong)
    }


def _gaps(sides: Sides, wrong: Sequence[Difference]) -> dict[Key, Array]:
    """The graph's tensors that differ, less PyTorch's; 0 where that is no number."""
    found, wanted, exact = sides
    apart: dict[Key, Array] = {}
    for key in map(_key, wrong):
        got, right = numbers(found(key)), numbers(exact.get(key, wanted[key]))
        if got.shape == right.shape:
            with np.errstate(invalid="ignore"):
                gap = got.astype(np.float64) - right.astype(np.float64)
            apart[key] = np.where(np.isfinite(gap), gap, 0.0)
    return apart


def _value(held: Values, of: Difference) -> Any:
    """What is off, as a step has it; 0 for a gradient that it does not give."""
    return numbers(held[_key(of)]) if _key(of) in held else np.zeros(())
