"""The steps behind the first: on other batches, from what the last one has left in Python.

A graph is one function of parameters, buffers, optimizer state and batch. Where PyTorch's step
reads what an earlier call has changed in Python (:mod:`memplan.pytorch.hidden_state`), it is not.
Two steps are taken where nothing changed, else six in a row. Numbers that count are then set ahead,
to what they will be in steps far off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from memplan.api.capture.capture_check import Difference
from memplan.api.capture.compare_steps import unlike
from memplan.api.capture.reference import Reference, Taken
from memplan.errors import ModelError
from memplan.pytorch.eager import EagerStep, other_batch
from memplan.pytorch.hidden_state import Counter, counters
from memplan.pytorch.torch_errors import reason_of
from memplan.pytorch.values import as_array
from memplan.units import listed

LATER = "later"
"""The kind of a difference that lies in what is kept from step to step."""
_FEW, _SEVERAL = 2, 6
_AHEAD = (10, 100, 1_000, 10_000, 1_000_000)
"""Steps far off."""
_NAMED = 4
CAUSE = (
    "a graph is the same in every step: what one step hands on to the next belongs in a buffer "
    "(register_buffer), what follows a schedule in the batch"
)


class LaterSteps:
    """PyTorch's steps of one comparison. A step that was taken can be taken again: what it found
    in Python is there until the next one is."""

    def __init__(self, reference: Reference) -> None:
        """Begin with the first step."""
        self.reference, self.eager = reference, reference.eager
        self.states = [reference.reading.state, reference.after_first]
        self.said: list[str] = []
        self.eager.go_to(reference.reading.state)

    @property
    def most(self) -> int:
        """How many steps are compared."""
        return _SEVERAL if self.changed else _FEW

    @property
    def changed(self) -> tuple[str, ...]:
        """What steps have changed so far, by path."""
        first, *others = self.states
        return tuple(dict.fromkeys(path for each in others for path in first.changed(each)))

    def take(self, number: int, values: Mapping[str, Any]) -> Taken | Difference:
        """The next step, on another batch; what keeps PyTorch from it is a difference.

        Args:
            number: its number.
            values: parameters and buffers by name.
        """
        example = self.reference.reading.prepared.batch
        for batch in (other_batch(example, number), example):
            self.eager.go_to(self.states[-1], batch)
            try:
                taken, after = self.reference.advanced(number - 1, values)
            except ModelError as error:  # of a batch that we have made, perhaps
                failure = error.message
                continue
            if math.isfinite(taken.outcome.loss) or batch is example:
                self.states.append(after)
                return self._of_one_kind(number, taken)
        return Difference(LATER, f"in step {number}: {failure}", math.inf, 0.0, number)

    def arrays(self) -> dict[str, Any]:
        """The batch of the last step as the runtime takes it."""
        return {name: as_array(tensor) for name, tensor in self.eager.batch.items()}

    def _of_one_kind(self, number: int, taken: Taken) -> Taken | Difference:
        """A step, if it gives and draws what the first does."""
        first, outcome = self.reference.first, taken.outcome
        text = ""
        if set(first.metrics) != set(outcome.metrics):
            names = sorted(set(first.metrics) ^ set(outcome.metrics))
            text = f"step {number} has other metrics than the first: '{names[0]}'"
        elif _kinds(first) != _kinds(outcome):
            text = f"other random numbers are drawn in step {number} than in the first"
        if not text:
            return taken
        return Difference(LATER, self.with_names(text), math.inf, 0.0, number)

    def run_once(self, number: int, values: Mapping[str, Any]) -> EagerStep:
        """The last step once more, without running anew what is checkpointed.

        Raises:
            Exception: the step does not run so.
        """
        return self.eager.run(number - 1, values, marked=True)

    def blamed(self, number: int) -> Difference:
        """That a step differs where something was changed before it."""
        text = self.with_names(f"step {number} is not what the first is")
        return Difference(LATER, text, math.inf, 0.0, number)

    def with_names(self, text: str) -> str:
        """A text with what steps change."""
        return f"{text}: steps change {quoted(self.changed)}" if self.changed else text

    def ahead(self) -> Difference | None:
        """What happens far off: the step in which numbers that count make another loss."""
        found = counters(self.states)
        for number in _AHEAD if found else ():
            if not self._differs(number, found):
                continue
            alone = [each for each in found if self._differs(number, (each,))] or found
            names = quoted([each.path for each in alone])
            text = f"step {number:,} is not what the first is: steps change {names}"
            return Difference(LATER, text, math.inf, 0.0, number)
        return None

    def _differs(self, number: int, found: Sequence[Counter]) -> str:
        """What is not as in the first step, where counters are as before a later one."""
        self.eager.go_to(self.states[-1])
        taken = len(self.states) - 1
        try:
            for each in found:
                each.write(each.value + each.by * (number - 1 - taken))
            outcome = self.eager.run()
        except Exception as error:
            self.eager.go_to(self.states[-1])
            self.said.append(
                f"step {number:,} and those behind it: with {quoted([f.path for f in found])} "
                f"set ahead, PyTorch says {reason_of(error)}"
            )
            return ""
        return unlike(self.reference.first, outcome)

    def notes(self) -> tuple[str, ...]:
        """What the check leaves open."""
        said = list(dict.fromkeys(self.said[:1]))
        if self.changed:
            said.append(
                f"what {quoted(self.changed)} may do behind step {len(self.states) - 1}: steps "
                "change it, which has mattered in none of them, and the graph has it as it is "
                "before the first"
            )
        if self.states[0].limited:
            said.append("what steps change in Python beyond the first 100,000 objects")
        return tuple(said)


def _kinds(outcome: EagerStep) -> list[tuple[str, tuple[int, ...]]]:
    return [(draw.family, draw.shape) for draw in outcome.draws]


def quoted(names: Sequence[str]) -> str:
    """The first of some paths, in quotes, which those of closures and globals have themselves."""
    return listed([f"'{name}'" if "'" not in name else name for name in names], _NAMED)
