"""The decisions of a plan file, held against its own sequence.

A replay runs the sequence; people and ``plan-as`` read the decisions. A file in which the two
disagree was edited, and there is no telling which of them was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.errors import PlanError
from memplan.units import counted, printable

if TYPE_CHECKING:
    from memplan.planning.plan_file import FormNode, Step, TensorDecision

KEPT, RECOMPUTED, REBUILT = "kept", "recomputed", "rebuilt"
PACKED, OFFLOADED = "packed", "offloaded"
FORMS = (PACKED, OFFLOADED)
"""Forms in which a tensor may be kept, as plan files call them."""
DECISIONS = (KEPT, RECOMPUTED, REBUILT, *FORMS)

ANEW = "plan anew: memplan rewrite MODEL --budget SIZE --plan-out FILE"
EDITED = f"the file was edited: take it back from version control, or {ANEW}"
"""Hints of errors about plan files."""


def require_decided_as_run(tensors: Sequence[TensorDecision], sequence: Sequence[Step]) -> None:
    """Hold every decision against what the sequence does, and the other way round.

    Raises:
        PlanError: a tensor has two entries or none, or one that the sequence contradicts.
    """
    runs = Counter(sequence)
    forms: dict[str, list[FormNode]] = {}
    for step in runs:
        if not isinstance(step, str):
            forms.setdefault(step.tensor, []).append(step)
    seen: set[str] = set()
    for place, row in enumerate(tensors):
        said = (row.decision, row.times)
        if row.tensor in seen:
            raise _wrong(place, row, "has an entry already")
        seen.add(row.tensor)
        if row.node not in runs:
            raise _wrong(place, row, f"the sequence does not run node '{printable(row.node)}'")
        again = runs[row.node] - 1
        if made := forms.get(row.tensor):
            possible = {(step.form, runs[step]) for step in made}
        elif again:
            possible = {(RECOMPUTED, again)}
        else:
            possible = {(KEPT, 0)}
        if said not in possible:
            found = " or ".join(sorted(_in_words(*each) for each in possible))
            raise _wrong(place, row, f"is {_in_words(*said)}, but {found} by the sequence")
    told = {row.node for row in tensors}
    for step, times in runs.items():
        if isinstance(step, str) and times > 1 and step not in told:
            raise PlanError(
                f"the plan's sequence runs node '{printable(step)}' {counted(times, 'time')}, and "
                "no entry of tensors says so",
                EDITED,
            )
    for tensor in sorted(forms.keys() - seen):
        raise PlanError(
            f"the plan's sequence has a form of '{printable(tensor)}', and no entry of tensors "
            "says so",
            EDITED,
        )


def _in_words(decision: str, times: int) -> str:
    return f"{decision} ({counted(times, 'time')})" if times else decision


def _wrong(place: int, row: TensorDecision, reason: str) -> PlanError:
    return PlanError(f"the plan's tensors[{place}], '{printable(row.tensor)}': {reason}", EDITED)
