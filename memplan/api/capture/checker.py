"""Holds a captured step against PyTorch: the same step eagerly, and by ONNX Runtime.

1. PyTorch takes the step twice on the example batch, once in the model's types and once in
   float64: the loss, every gradient, changed buffers, and what its own rounding is
   (:mod:`memplan.api.capture.compare`). Random draws are noted (:mod:`memplan.pytorch.draws`).
2. A plain session, with the runtime's own optimizations, takes the captured step with the same
   draws. With an optimizer, gradients are looked at before they are unscaled and clipped.
3. A copy of the user's optimizer is given the graph's gradients: its parameters and state must be
   the graph's. So differences neither add up from step to step nor hide behind each other (a
   gradient of 0 ± rounding is ± a whole step of Adam).
4. With the graph's new values the same is done again, with new draws.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from memplan.api.capture.check import Check, Verdict
from memplan.api.capture.compare import DOUBTFUL, Compared, Difference, Tolerance, compare
from memplan.api.capture.finish import Finished
from memplan.api.capture.gradients import Trained
from memplan.api.capture.trial import Ran, Trial
from memplan.errors import RuntimeUnavailableError
from memplan.ir.contract import LOSS_SCALE
from memplan.pytorch.eager import Eager, Outcome
from memplan.pytorch.errors import reason_of
from memplan.pytorch.reading import Reading
from memplan.pytorch.twin import Twin
from memplan.pytorch.values import as_array, as_tensor
from memplan.runtime.archive import BFLOAT16, bfloat16_values
from memplan.units import format_bytes

Array = npt.NDArray[Any]
_UPDATES = 2
_UPDATE_SHARE = 1e-4
"""Of the largest change of a parameter: what an update may be off by, beside rounding."""
_LEAST_UNIT = float(np.finfo(np.float32).eps)
"""Constants of torch's exporter are float32 whatever the model is."""
_FREE_SHARE = 0.8
"""Of the memory that is free: what a check may need."""


class _SkippedError(Exception):
    """The check is not possible, for the reason in the text."""


class Checker:
    """Holds captured graphs of one step against PyTorch."""

    def __init__(self, reading: Reading) -> None:
        """Take note of the step; nothing is run yet."""
        self.reading = reading
        self.eager = Eager(reading.prepared)

    def check(self, done: Finished, trained: Trained, peak_bytes: int = 0) -> Check:
        """Compare a graph with PyTorch.

        Args:
            done: the graph.
            trained: how it was made.
            peak_bytes: what it is predicted to take.
        """
        begin = time.perf_counter()
        try:
            self._require_values(peak_bytes)
            found = _Comparison(self, done, trained).run()
        except _SkippedError as error:
            return Check(Verdict.SKIPPED, str(error), seconds=time.perf_counter() - begin)
        verdict = Verdict.DIFFERS if found["differences"] else Verdict.EQUAL
        return Check(verdict, **found, seconds=time.perf_counter() - begin)

    def _require_values(self, peak_bytes: int) -> None:
        if not self.eager.has_values:
            raise _SkippedError("the model has no values (meta device)")
        # PyTorch's step in float64, beside the model itself.
        needed = 2 * max(peak_bytes, 3 * self.eager.resident_bytes)
        free = _free_bytes()
        if free and needed > _FREE_SHARE * free:
            raise _SkippedError(
                f"it needs about {format_bytes(needed)}, and {format_bytes(free)} are free; a "
                "smaller example batch would do"
            )

    @cached_property
    def first(self) -> Outcome:
        """The step as PyTorch takes it."""
        try:
            found = self.eager.run(watched=True)
        except Exception as error:
            raise _SkippedError(f"PyTorch cannot run the step here: {reason_of(error)}") from error
        if not np.isfinite(found.loss):
            raise _SkippedError(f"PyTorch's own loss is {found.loss} on the example batch")
        if found.unknown:
            names = ", ".join(sorted(set(found.unknown)))
            raise _SkippedError(f"no draws can be given to {names}")
        return found

    @cached_property
    def exact(self) -> Outcome | None:
        """The step in float64, where that is possible."""
        try:
            return self.eager.run(wide=True)
        except Exception:
            return None

    @cached_property
    def narrowest(self) -> float:
        """The unit of the narrowest float type that the step computes in."""
        values = [node.meta.get("val") for node in self.reading.program.graph.nodes]
        return max((_unit(v) for v in values if isinstance(v, torch.Tensor)), default=_LEAST_UNIT)

    @cached_property
    def tolerance(self) -> Tolerance:
        """What gradients may be off by."""
        first, exact = self.first, self.exact
        return Tolerance(
            {name: _wide(as_array(t)) for name, t in first.gradients.items()},
            None
            if exact is None
            else {name: _wide(as_array(t)) for name, t in exact.gradients.items()},
            {name: _unit(t) for name, t in self.reading.tensors.items()},
            self.narrowest,
        )


class _Comparison:
    """One graph beside PyTorch."""

    def __init__(self, checker: Checker, done: Finished, trained: Trained) -> None:
        self.checker = checker
        self.reading = checker.reading
        self.done = done
        sink = trained.sink
        gradients = {p: out for out, p in done.contract.gradients.items()} or sink.taken
        self.trained = trained.wrt
        self.trial = Trial(done, gradients, checker.first.draws, self.reading.dims)
        self.differences: list[Difference] = []
        self.causes: list[str] = []
        self.not_checked: list[str] = []
        self.errors: dict[str, float] = {}
        self.worst = ("", 0)
        self.scale = 1.0
        hidden = [name for name in trained.wrt if name not in self.trial.gradients]
        if hidden:
            self.not_checked.append(f"the gradients of {', '.join(hidden[:3])} have no tensor")

    def run(self) -> dict[str, Any]:
        """The figures of a :class:`Check`."""
        first = self.checker.first
        if self._draws_match(first):
            return self._figures(1, first.seconds, None)
        twin = self._twin()
        steps = _UPDATES if twin is not None else 1
        values = self._first_values()
        outcome, exact = first, self.checker.exact
        seconds = captured = 0.0
        for step in range(1, steps + 1):
            ran = self._ran(values, outcome)
            self._compare(step, outcome, exact, ran)
            if step == 1 and self.differences:
                self._find_cause(values, outcome, exact)
                break
            seconds, captured = outcome.seconds, ran.seconds
            if twin is None:
                break
            seconds += self._update(step, twin, ran)
            values = self._next_values(values, ran)
            if step < steps:
                outcome, exact = self._again(step, values), None
        if twin is None and not self.differences:
            seconds = self.checker.eager.run(draws=bool(first.draws)).seconds
            captured = self._ran(values, first).seconds
        held = twin.state_bytes if twin is not None else 0
        return self._figures(steps, seconds, captured, held)

    def _figures(
        self, steps: int, seconds: float, captured: float | None, held: int = 0
    ) -> dict[str, Any]:
        checker, first = self.checker, self.checker.first
        if checker.exact is None:
            self.not_checked.append("PyTorch's own rounding: the step does not run in float64")
        own = checker.tolerance.typical if checker.exact is not None else None
        if own is not None and own > DOUBTFUL:
            self.not_checked.append(
                f"anything below {8 * own:.0%}: PyTorch's own gradients are off by {own:.0%}"
            )
        worst, count = self.worst
        return {
            "loss_error": self.errors.get("loss"),
            "gradient_error": self.errors.get("gradient"),
            "worst": worst,
            "gradients": count,
            "own_error": own,
            "buffer_error": self.errors.get("buffer"),
            "update_error": self.errors.get("update"),
            "steps": steps,
            "draws": len(first.draws),
            "not_checked": tuple(self.not_checked),
            "differences": tuple(
                replace(each, place=self.reading.place_of(each.name)) for each in self.differences
            ),
            "causes": tuple(self.causes),
            "eager_seconds": seconds if captured is not None else None,
            "eager_peak_bytes": checker.eager.resident_bytes + held + first.peak_bytes,
            "captured_seconds": captured,
        }

    def _draws_match(self, first: Outcome) -> bool:
        """Say where randomness was lost; whether there is nothing to compare then."""
        lost = self.trial.missing
        if first.outside:
            lost = "the model draws from Python's or NumPy's random numbers, the graph cannot"
        if lost:
            self.differences.append(Difference("draws", lost, float("inf"), 0.0, 1))
        return bool(lost)

    def _twin(self) -> Twin | None:
        optimizer = self.reading.prepared.step.optimizer
        if optimizer is None:
            return None
        names = {id(p): name for name, p in self.checker.eager.parameters.items()}
        return Twin(optimizer, names, self.reading.treatment)

    def _first_values(self) -> dict[str, Array]:
        values = {name: as_array(t) for name, t in self.reading.tensors.items()}
        if self.reading.treatment.scale is not None:
            values[LOSS_SCALE] = np.asarray(1.0, np.float32)  # nothing is to overflow yet
        return values

    def _next_values(self, values: Mapping[str, Array], ran: Ran) -> dict[str, Array]:
        new = {old: ran.outputs[out] for out, old in self.done.contract.new_values.items()}
        return {**values, **new}

    def _again(self, step: int, values: Mapping[str, Array]) -> Outcome:
        """PyTorch's step from the graph's new values."""
        own = {*self.checker.eager.parameters, *self.checker.eager.buffers}
        given = {name: as_tensor(value) for name, value in values.items() if name in own}
        return self.checker.eager.run(step, given, draws=bool(self.checker.first.draws))

    def _ran(self, values: Mapping[str, Array], outcome: Outcome, optimized: bool = True) -> Ran:
        batch = {n: as_array(t) for n, t in self.reading.prepared.batch.items()}
        try:
            return self.trial.run({**values, **batch}, outcome.draws, optimized)
        except RuntimeUnavailableError as error:
            raise _SkippedError(f"{error.message}") from error

    def _compare(
        self, step: int, outcome: Outcome, exact: Outcome | None, ran: Ran
    ) -> list[Difference]:
        """Loss, gradients and buffers of a step."""
        loss = self.done.contract.loss or "loss"
        found = {"loss": _wide(ran.outputs[loss]).reshape(())}
        wanted = {"loss": np.asarray(outcome.loss)}
        right = {"loss": np.asarray(exact.loss)} if exact is not None else {}
        made = [self._loss(step, found, wanted, right)]
        gradients = {p: _wide(ran.outputs[n]) / self.scale for p, n in self.trial.gradients.items()}
        wanted = self._wanted(outcome, gradients)
        right = self._wanted(exact, gradients) if exact is not None else {}
        for name in wanted:
            if name not in gradients:
                gradients[name] = np.zeros_like(wanted[name])
        tolerance = self.checker.tolerance
        compared = compare("gradient", step, gradients, wanted, right, tolerance)
        self._note("gradient", compared)
        if step == 1:
            self.worst = (compared.worst, len(self.trial.gradients))
        made.append(compared)
        made.append(self._buffers(step, outcome, exact, ran))
        differences = [each for part in made for each in part.differences]
        self.differences += differences
        return differences

    def _loss(self, step: int, found: Any, wanted: Any, right: Any) -> Compared:
        own = abs(float(wanted["loss"]) - float(right["loss"])) if right else 0.0
        tolerance = Tolerance({}, None, {"loss": self.checker.narrowest}, self.checker.narrowest)
        tolerance.typical = self.checker.tolerance.typical
        tolerance.own["loss"] = own
        # Differences of numbers of some size: their rounding is not that of the result.
        tolerance.largest = 16.0
        compared = compare("loss", step, found, wanted, right, tolerance)
        self._note("loss", compared)
        return compared

    def _wanted(self, outcome: Outcome, there: Mapping[str, Array]) -> dict[str, Array]:
        """PyTorch's gradients: 0 where it gives none; and none that is 0 where the graph has
        none."""
        given = {n: _wide(as_array(outcome.gradients[n])) for n in outcome.gradients}
        wanted = {
            name: array
            for name, array in given.items()
            if name in there or (name in self.reading.trainable and name not in self.trained)
        }
        missing = {n: np.zeros_like(a) for n, a in there.items() if n not in given}
        return {**{n: a for n, a in wanted.items() if n in there or a.any()}, **missing}

    def _buffers(self, step: int, outcome: Outcome, exact: Outcome | None, ran: Ran) -> Compared:
        new = {old: out for out, old in self.done.contract.new_values.items()}
        floats = {n: t for n, t in outcome.buffers.items() if t.is_floating_point()}
        wanted = {n: _wide(as_array(t)) for n, t in floats.items() if n in new}
        found = {n: _wide(ran.outputs[new[n]]) for n in wanted}
        right = {n: _wide(as_array(exact.buffers[n])) for n in wanted} if exact else {}
        if step == 1:
            for name in [n for n in floats if n not in new and self._changed(n, floats[n])]:
                wanted[name] = _wide(as_array(floats[name]))
                found[name] = _wide(as_array(self.reading.tensors[name]))
        tolerance = Tolerance({}, None, self.checker.tolerance.precision, self.checker.narrowest)
        tolerance.typical = self.checker.tolerance.typical
        compared = compare("buffer", step, found, wanted, right, tolerance)
        self._note("buffer", compared)
        return compared

    def _changed(self, name: str, after: torch.Tensor) -> bool:
        before = self.reading.tensors.get(name)
        return before is not None and not torch.equal(before, after)

    def _update(self, step: int, twin: Twin, ran: Ran) -> float:
        """Hold new parameters and state against PyTorch's optimizer; its seconds."""
        there = {p: as_tensor(ran.outputs[n]) for p, n in self.trial.gradients.items()}
        before = {n: _wide(as_array(twin.parameters[n])) for n in there}
        given = twin.step(there, list(there), self.scale)
        new = {old: out for out, old in self.done.contract.new_values.items()}
        for name, tensor in given.items():
            if name not in new or not tensor.is_floating_point():
                continue
            want, got = _wide(as_array(tensor)), _wide(ran.outputs[new[name]])
            self._hold(step, name, want, got.reshape(want.shape), before.get(name))
        if LOSS_SCALE in new:
            self.scale = float(ran.outputs[new[LOSS_SCALE]])
        return twin.seconds

    def _hold(self, step: int, name: str, want: Array, got: Array, before: Array | None) -> None:
        apart = float(np.abs(want - got).max()) if want.size else 0.0
        largest = float(np.abs(want).max()) if want.size else 0.0
        moved = float(np.abs(want - before).max()) if before is not None and want.size else largest
        unit = self.checker.tolerance.precision.get(name.rsplit(".", 1)[0], _LEAST_UNIT)
        unit = self.checker.tolerance.precision.get(name, unit)
        allowed = 4 * unit * largest + _UPDATE_SHARE * moved
        error = apart / largest if largest else (0.0 if apart <= allowed else float("inf"))
        self.errors["update"] = max(self.errors.get("update", 0.0), error)
        if not apart <= allowed:
            kind = "state" if before is None else "parameter"
            bound = allowed / largest if largest else 0.0
            self.differences.append(Difference(kind, name, error, bound, step))

    def _find_cause(
        self, values: Mapping[str, Array], outcome: Outcome, exact: Outcome | None
    ) -> None:
        """What probably made the differences of the first step."""
        before, errors, worst = list(self.differences), dict(self.errors), self.worst
        self.differences.clear()
        plain = self._compare(1, outcome, exact, self._ran(values, outcome, optimized=False))
        self.differences, self.errors, self.worst = before, errors, worst
        kinds = {each.kind for each in before}
        if not plain:
            self.causes.append(
                "a fusion of ONNX Runtime is wrong here: without its optimizations the same graph "
                "computes what PyTorch does"
            )
        elif "loss" in kinds:
            self.causes.append(
                "an operator of the forward part means something else in the graph than in PyTorch"
            )
        elif "gradient" in kinds:
            self.causes.append(
                "the forward part is right, so something acts on gradients alone: a custom "
                "backward, a hook, a tie at a kink"
            )

    def _note(self, kind: str, compared: Compared) -> None:
        self.errors[kind] = max(self.errors.get(kind, 0.0), compared.error)


def _wide(array: Array) -> Array:
    """As float64."""
    plain = bfloat16_values(array) if array.dtype == BFLOAT16 else array
    return np.asarray(plain, np.float64)


def _unit(tensor: torch.Tensor) -> float:
    """The precision of a tensor's type."""
    kind = tensor.dtype
    return max(torch.finfo(kind).eps if kind.is_floating_point else 0.0, _LEAST_UNIT)


def _free_bytes() -> int:
    """Memory that is free; 0 where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
