"""Holds a captured step against PyTorch: the same step eagerly, and by ONNX Runtime.

1. PyTorch takes the step twice on the example batch, once in the model's types and once in
   float64: the loss, every gradient, changed buffers, and what its own rounding is
   (:mod:`memplan.api.capture.compare_steps`). Random draws are noted
   (:mod:`memplan.pytorch.draws`).
2. A plain session, with the runtime's own optimizations, takes the captured step with the same
   draws. With an optimizer, gradients are looked at before they are unscaled and clipped.
3. A copy of the user's optimizer is given the graph's gradients: its parameters and state must be
   the graph's. So differences neither add up from step to step nor hide behind each other (a
   gradient of 0 ± rounding is ± a whole step of Adam).
4. With the graph's new values the same is done again, with new draws and another batch: once, or
   five times where steps change what they keep in Python (:mod:`memplan.api.capture.reference`).
5. Of a scaled loss, a gradient of each optimizer is made infinite in turn, and a step without that
   follows: what is skipped, the scale and the counters must be as PyTorch's own scaler has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.api.capture.capture_check import Check, Difference, NotComparableError, Verdict
from memplan.api.capture.captured_file import Finished
from memplan.api.capture.compare_steps import (
    DOUBTFUL,
    Compared,
    Sides,
    UpdateTolerance,
    Values,
    compare,
)
from memplan.api.capture.doubts import Doubts
from memplan.api.capture.reference import CAUSE, Reference, Taken
from memplan.api.capture.step_gradients import Trained
from memplan.api.capture.trial import CannotRunError, Ran, Trial
from memplan.autodiff.optimizers.scaling import parse_loss_scale
from memplan.autodiff.optimizers.updates import Updates
from memplan.ir.roles import LOSS_SCALE, Role
from memplan.pytorch.eager import EagerStep
from memplan.pytorch.twin import Twin
from memplan.pytorch.values import as_array, as_tensor, numbers
from memplan.units import counted, listed

Array = npt.NDArray[Any]
_SCALE = 8.0
"""Of the loss in the first step: with it nothing overflows that does not overflow without."""


def check_captured(
    reference: Reference, done: Finished, trained: Trained, peak_bytes: int = 0
) -> Check:
    """Compare a graph with PyTorch.

    Args:
        reference: PyTorch's step.
        done: the graph.
        trained: how it was made.
        peak_bytes: what it is predicted to take.

    Raises:
        ModelError: PyTorch itself cannot take the step.
    """
    begin = time.perf_counter()
    try:
        reference.require_room(peak_bytes)
        found = _Comparison(reference, done, trained).run()
    except NotComparableError as error:
        found = Check(Verdict.SKIPPED, str(error), error.kind)
    return replace(found, seconds=time.perf_counter() - begin)


class _Comparison:
    """One graph beside PyTorch."""

    def __init__(self, reference: Reference, done: Finished, trained: Trained) -> None:
        self.reference = reference
        self.reading = reference.reading
        self.new = {old: out for out, old in done.contract.new_values.items()}
        gradients = {p: out for out, p in done.contract.gradients.items()} or trained.sink.taken
        self.trial = Trial(done, gradients, reference.first.draws, self.reading.dims)
        self.trained = trained.wrt
        self.averages = done.contract.named(Role.AVERAGE)
        self.found = Compared()
        self.step = 0
        self.scale = 1.0
        self.rounding: float | None = None
        scale = parse_loss_scale(self.reading.treatment.scale)
        self.loss_scale = None if scale is None else replace(scale, init_scale=_SCALE)
        self.sink = trained.sink
        self.ties: set[str] = set()
        self.granted: list[Difference] = []
        self.causes: tuple[str, ...] = ()
        self.doubts = Doubts(reference, self._ran, self._sides)
        self.renewed_twice: tuple[str, ...] = ()
        self.seconds: tuple[float, float] | None = None
        self.state_bytes = 0

    def run(self) -> Check:
        """Take the steps up to the first that differs; a graph that cannot run differs."""
        try:
            for _ in self._steps():
                if self.found.differences:
                    break
        except CannotRunError as error:
            self.step = 0
            self._differs(Difference("run", str(error), float("inf"), 0.0, 1))
        return self._answer()

    def _steps(self) -> Iterator[None]:
        """Step by step: comes back behind everything that is compared."""
        reference = self.reference
        lost, cause = self._lost_draws()
        if lost:
            self._differs(Difference("draws", lost, float("inf"), 0.0, 1), cause)
            yield
        twin, values = reference.twin(self.loss_scale), self._first_values()
        taken, self.step = reference.begin(), 1
        self.rounding = taken.tolerance.typical if taken.exact is not None else None
        while True:
            ran = self._ran(values, taken.outcome)
            self._hold(taken, values, ran)
            yield
            if twin is not None:
                self._hold_update(twin, values, ran)
                yield
            values |= {old: ran.outputs[out] for old, out in self.new.items()}
            if self.step >= reference.most:
                break
            self.step += 1
            del taken, ran  # as large as the model, each
            found = reference.take(self._own(values))
            if isinstance(found, Difference):
                self._differs(found, CAUSE)
                yield
                return
            taken, values = found, values | reference.arrays()
        if twin is not None and self.loss_scale is not None:
            yield from self._overflowing(twin, values, taken.outcome)
        if (far := reference.ahead()) is not None:
            self._differs(far, CAUSE)
            yield
        # PyTorch's own step, not the first, neither watched nor with draws of ours.
        eager = reference.run(draws=False).seconds
        self.seconds = eager + (twin.seconds if twin is not None else 0.0), ran.seconds
        self.state_bytes = twin.state_bytes if twin is not None else 0

    def _differs(self, what: Difference, *causes: str) -> None:
        self.found.differences.append(what)
        self.causes = causes

    def _overflowing(
        self, twin: Twin, values: dict[str, Array], outcome: EagerStep
    ) -> Iterator[None]:
        """Steps in which a gradient of one optimizer after the other is infinite, and one behind
        them, likewise."""
        groups = self.reading.optimizer.groups if self.reading.optimizer is not None else {}
        last = {groups[name].owner: name for name in self.trial.gradients}
        for parameter in (*last.values(), ""):
            self.step += 1
            ran = self.trial.run(values, outcome.draws, infinite=parameter)
            self._hold_update(twin, values, ran)
            yield
            values |= {old: ran.outputs[out] for old, out in self.new.items()}

    def _answer(self) -> Check:
        reference, errors = self.reference, self.found.errors
        updates = [errors[kind] for kind in ("parameter", "state") if kind in errors]
        held = reference.eager.resident_bytes + self.state_bytes
        watched = None if reference.eager.plain else reference.first.peak_bytes
        eager, captured = self.seconds or (None, None)
        return Check(
            verdict=Verdict.DIFFERS if self.found.differences else Verdict.EQUAL,
            loss_error=errors.get("loss"),
            gradient_error=errors.get("gradient"),
            worst=self.found.worst,
            gradients=len(self.trial.gradients),
            own_error=self.rounding,
            buffer_error=errors.get("buffer"),
            update_error=max(updates, default=None),
            steps=self.step,
            draws=len(reference.first.draws),
            granted=len({each.name for each in self.granted}),
            not_checked=self._not_checked(self.rounding) if self.step else (),
            differences=tuple(
                replace(each, place=self.reading.place_of(each.name))
                for each in self.found.differences
            ),
            causes=self.causes,
            eager_seconds=eager,
            eager_peak_bytes=None if watched is None else held + watched,
            captured_seconds=captured,
        )

    def _not_checked(self, own: float | None) -> tuple[str, ...]:
        texts = []
        hidden = [name for name in self.trained if name not in self.trial.gradients]
        if hidden:
            texts.append(
                f"{counted(len(hidden), 'gradient')} that the graph has in no tensor of its own, "
                f"as that of '{hidden[0]}'"
            )
        if self.reference.why_not_exact:
            texts.append(f"how much PyTorch itself rounds: {self.reference.why_not_exact}")
        if self.ties:
            texts.append(
                f"which of equal elements {listed(sorted(self.ties), 3)} takes: PyTorch does not "
                "specify it, the graph takes those with the lowest indices"
            )
        if self.found.empty:
            names = listed([f"'{name}'" for name in sorted(self.found.empty)], 3)
            of = counted(len(self.found.empty), "tensor")
            texts.append(f"{of} of which PyTorch has no finite entry: {names}")
        if self.granted:
            worst = max(self.granted, key=lambda each: each.error)
            texts.append(
                f"{counted(len({each.name for each in self.granted}), 'tensor')} off by more than "
                f"usual rounding, most '{worst.name}' by {worst.error:.1g}: with weights that are "
                "a millionth off, the difference is another one"
            )
        elif own is not None and own > DOUBTFUL:
            texts.append(f"more than a rough sum: PyTorch's own gradients are off by {own:.0%}")
        if self.renewed_twice:
            texts.append(
                f"{counted(len(self.renewed_twice), 'buffer')} of what is checkpointed, as "
                f"'{self.renewed_twice[0]}': PyTorch runs that again and renews them twice in a "
                "step, the graph once"
            )
        return (*texts, *self.reference.notes())

    def _lost_draws(self) -> tuple[str, str]:
        """What became of randomness, where it was lost, and what probably made it so."""
        reference = self.reference
        lost = self.trial.missing
        if reference.first.outside:
            lost = (
                "the step draws from Python's or NumPy's random numbers, which a graph has as "
                "constants"
            )
        if lost:
            return lost, "a source of randomness became a constant, or two became one"
        if not reference.unsteady:
            return "", ""
        lost = f"{reference.unsteady} is another each time that the same step is run"
        if reference.changed:  # and cannot be put back: an iterator
            return reference.with_names(lost), CAUSE
        return lost, "what it reads outside of PyTorch and Python's objects is lost in a graph"

    def _first_values(self) -> dict[str, Array]:
        values = {name: as_array(t) for name, t in self.reading.tensors.items()}
        values |= {name: as_array(t) for name, t in self.reading.prepared.batch.items()}
        if self.loss_scale is not None:
            self.scale = self.loss_scale.init_scale
            values[LOSS_SCALE] = np.asarray(self.scale, np.float32)
        return values

    def _own(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """The parameters and buffers among the graph's values, as PyTorch takes them."""
        own = {*self.reference.eager.parameters, *self.reference.eager.buffers}
        return {name: as_tensor(value) for name, value in values.items() if name in own}

    def _ran(self, values: Mapping[str, Array], outcome: EagerStep, optimized: bool = True) -> Ran:
        return self.trial.run(values, outcome.draws, optimized)

    # --- One step ------------------------------------------------------------------------------

    def _hold(self, taken: Taken, values: Mapping[str, Array], ran: Ran) -> None:
        """Loss, gradients, metrics and buffers."""
        for kind in ("loss", "gradient", "metric", "buffer"):
            self.found.errors.setdefault(kind, 0.0)
        found = self._held(taken, ran)
        once = self._renewed_once(found.differences, taken, values, ran)
        if once is not None:
            self.renewed_twice = tuple(each.name for each in found.differences)
            found = once
        if found.differences:
            judged = self.doubts.judged(taken, values, ran, found.differences)
            found.differences = list(judged.differences)
            self.granted += judged.granted
            if found.differences and self.step > 1 and self.reference.changed:
                found.differences.insert(0, self.reference.blamed())
                self.causes = (CAUSE,)
            elif found.differences:
                self.causes = judged.causes or self._causes(values, taken, found)
        self.ties.update(taken.outcome.ties)
        self.found.join(found)

    def _held(self, taken: Taken, ran: Ran) -> Compared:
        return compare(self.step, self._sides(taken, ran), taken.tolerance)

    def _renewed_once(
        self,
        wrong: Sequence[Difference],
        taken: Taken,
        values: Mapping[str, Array],
        ran: Ran,
    ) -> Compared | None:
        """The step beside PyTorch's without what is checkpointed running again, if all that differs
        are buffers that PyTorch renews twice for that reason: running statistics."""
        if not wrong or any(each.kind != "buffer" for each in wrong):
            return None
        try:
            outcome = self.reference.run_once(self._own(values))
        except Exception:
            return None
        found = self._held(replace(taken, outcome=outcome, exact=None), ran)
        return None if found.differences else found

    def _sides(self, taken: Taken, ran: Ran) -> Sides:
        wanted = {
            (kind, name): tensor
            for (kind, name), tensor in self._values(taken.outcome).items()
            if kind in ("loss", "metric")
            or (kind == "gradient" and self._has_gradient(name, tensor))
            or (kind == "buffer" and self._is_renewed(name, tensor))
        }
        exact = {} if taken.exact is None else self._values(taken.exact)
        exact = {key: tensor for key, tensor in exact.items() if key in wanted}
        return partial(self._graphs, ran), wanted, exact

    def _values(self, outcome: EagerStep) -> Values:
        """What PyTorch gives; a gradient that the graph has and PyTorch has not is 0."""
        zeros = {
            ("gradient", name): np.zeros(tuple(self.reading.tensors[name].shape))
            for name in self.trial.gradients
            if ("gradient", name) not in outcome.values
        }
        return zeros | outcome.values

    def _has_gradient(self, name: str, tensor: Any) -> bool:
        """Whether the graph has a gradient, or should have one."""
        lost = name in self.reading.trainable and name not in self.trained
        return name in self.trial.gradients or (lost and bool(tensor.any()))

    def _is_renewed(self, name: str, after: Any) -> bool:
        """Whether the graph gives a buffer its next value, or should."""
        if name in self.averages or name in self.new:
            return name not in self.averages
        return self.step == 1 and not bool((self.reading.tensors[name] == after).all())

    def _graphs(self, ran: Ran, key: tuple[str, str]) -> Any:
        """The graph's tensor; gradients are those of the loss as it is."""
        kind, name = key
        if kind == "gradient":
            if name not in self.trial.gradients:
                return np.zeros(tuple(self.reading.tensors[name].shape))
            return numbers(ran.outputs[self.trial.gradients[name]]) / self.scale
        if kind == "buffer":
            return ran.outputs[self.new[name]] if name in self.new else self.reading.tensors[name]
        return ran.outputs[name].reshape(()) if kind == "loss" else ran.outputs[name]

    def _hold_update(self, twin: Twin, values: Mapping[str, Array], ran: Ran) -> None:
        """What the next step begins with: new parameters and state, beside those of PyTorch's
        optimizer, and averages of the weights."""
        gradients = {p: as_tensor(ran.outputs[n]) for p, n in self.trial.gradients.items()}
        before = {("parameter", name): values[name] for name in gradients}
        wanted: dict[tuple[str, str], Any] = {
            ("parameter" if name in gradients else "state", name): tensor
            for name, tensor in twin.step(gradients).items()
            if name in self.new and tensor.is_floating_point()
        }
        wanted |= self._averaged(values, ran)
        groups = self.reading.optimizer.groups if self.reading.optimizer is not None else {}
        rough = {name for name, group in groups.items() if group.kind == "muon"}
        tolerance = UpdateTolerance(before, wanted, rough)
        wanted |= self._counts(twin)

        def found(key: tuple[str, str]) -> Any:
            return ran.outputs[self.new[key[1]]].reshape(tuple(wanted[key].shape))

        self.found.join(compare(self.step, (found, wanted, {}), tolerance))

    def _counts(self, twin: Twin) -> dict[tuple[str, str], Any]:
        """PyTorch's step counters and loss scale, as far as the graph has them."""
        if not isinstance(self.sink, Updates):
            return {}
        begun = self.reading.optimizer.step if self.reading.optimizer is not None else 1
        taken, wanted = twin.taken, dict[str, float]()
        for owner, (name, _) in self.sink.inputs.counters.items():
            several = taken if self.loss_scale is None else {owner: taken.get(owner, begun - 1)}
            if several:
                wanted[name] = max(several.values()) + 1
        if self.loss_scale is not None:
            self.scale, tracker = twin.scaled_by
            wanted[LOSS_SCALE] = self.scale
            wanted[self.sink.tracker] = tracker
        return {("state", n): np.asarray(w) for n, w in wanted.items() if n in self.new}

    def _averaged(self, values: Mapping[str, Array], ran: Ran) -> dict[tuple[str, str], Any]:
        """Averages of the weights, by their formula on what the graph has."""
        averages, wanted = self.reading.averages, dict[tuple[str, str], Any]()
        if averages is None:
            return wanted
        for name, source in averages.following(self.trained).items():
            given = ran.outputs[self.new[source]] if source in self.new else values[source]
            old = numbers(values[name] if name in values else self.trial.zeros[name])
            wanted["state", name] = as_tensor(old + (1 - averages.decay) * (numbers(given) - old))
        return wanted

    def _causes(
        self, values: Mapping[str, Array], taken: Taken, found: Compared
    ) -> tuple[str, ...]:
        """What probably made the differences; nothing is said where that is not found out."""
        try:
            plain = self._held(taken, self._ran(values, taken.outcome, optimized=False))
        except Exception:  # whatever it is: the differences stand
            return ()
        if not plain.differences:
            return (
                "a fusion of ONNX Runtime is wrong here: without its optimizations the same graph "
                "computes what PyTorch does",
            )
        if any(each.kind == "loss" for each in found.differences):
            return (
                "an operator of the forward part means something else in the graph than in PyTorch",
            )
        return (
            "the forward part is right, so something acts on gradients alone: a custom backward, "
            "a hook, a tie at a kink",
        )
