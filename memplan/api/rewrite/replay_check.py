"""What a plan file says, held against what a replay of it found.

Everything in the file follows from the graph and the sequence,
but for what a clock, a bound or measured seconds gave: these are told as recorded
(:class:`Recorded`), and everything else must be what the replay would write itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memplan.errors import PlanError
from memplan.planning.certificate import certificate, no_bound
from memplan.planning.plan_decisions import EDITED
from memplan.planning.plan_file import PlanFile
from memplan.units import printable

_SAME = 1e-6  # of the step: two sums of the same seconds
_MEASURED = "seconds"  # of a decision
_DECIDED = ("dims", "tensors", "chunks", "loops", "passes", "plain", "order", "sequence")
_MOST = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a plan file says of its own worth: extra time and a bound on it, as fractions of the
    step, from seconds per node that the file does not have.

    ``same_seconds``: the estimates here give this extra time, so that the bound may be of them.
    """

    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    same_seconds: bool

    @property
    def line(self) -> str:
        """How good the plan is, in words."""
        if not self.same_seconds:
            percent = f"{100 * self.extra_cost_fraction:+.2f}%"
            return f"it was planned from other seconds per node, recorded as {percent} time"
        if not self.extra_cost_fraction and no_bound(self.bound_kind):
            return "nothing recomputed"
        good = certificate(self.extra_cost_fraction, self.bound_fraction, self.bound_kind)
        return f"as recorded in it, not certified again: {good}"

    def as_json(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "exact": True,
            "recorded": {
                "extra_cost_fraction": self.extra_cost_fraction,
                "bound_fraction": self.bound_fraction,
                "bound_kind": self.bound_kind,
                "same_seconds": self.same_seconds,
            },
        }


def recorded_worth(plan: PlanFile, now: PlanFile) -> Recorded:
    """What ``plan`` says of its worth; ``now`` is what a replay of it would record."""
    same = all(
        math.isclose(getattr(plan, name), getattr(now, name), abs_tol=_SAME)
        for name in ("extra_cost_fraction", "chunk_cost_fraction")
    )
    extra, bound = plan.extra_cost_fraction, plan.bound_fraction
    return Recorded(extra, bound, plan.bound_kind, same)


def require_as_found(plan: PlanFile, now: PlanFile) -> None:
    """Hold a plan against what a replay of it would record.

    Raises:
        PlanError: an entry differs; the message says which.
    """
    _require_same("model.nodes", plan.model.nodes, now.model.nodes)
    _require_same("model.tensors", plan.model.tensors, now.model.tensors)
    _require_same("baseline_peak_bytes", plan.baseline_peak_bytes, now.baseline_peak_bytes)
    _require_same("settings.tags", plan.settings.tags, now.settings.tags)
    said, found = plan.as_json(), now.as_json()
    for name in _DECIDED:
        for place, here, there in _differences(name, said[name], found[name]):
            _require_same(place, here, there)


def _differences(place: str, said: object, found: object) -> Iterator[tuple[str, object, object]]:
    """The parts in which two JSON values differ, and what each has there."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in {**said, **found}:
            if key != _MEASURED:
                yield from _differences(f"{place}.{key}", said.get(key), found.get(key))
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for number, (here, there) in enumerate(zip(said, found, strict=True)):
            yield from _differences(f"{place}[{number}]", here, there)
    elif said != found:
        yield place, said, found


def _require_same(place: str, said: object, found: object) -> None:
    if said != found:
        raise PlanError(
            f"the plan's {printable(place)}: {_shown(said)}, and a replay of its sequence has "
            f"{_shown(found)}",
            EDITED,
        )


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value):,}"
    text = "nothing" if value is None else printable(str(value))
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."
