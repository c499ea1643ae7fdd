"""The part of a validation that runs nothing: do the files, as they lie there, compute the same?"""

from __future__ import annotations

from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.shapes.prepare import PreparedModel


def equivalence_of(
    reference: PreparedModel, rewritten: PreparedModel, provider: str
) -> Equivalence:
    """Whether the rewritten file computes what the reference does.

    Args:
        reference: the original under the fusions that the rewritten file records.
        rewritten: the file as it lies on disk, with model-local functions inlined.
        provider: whose kernels run both.
    """
    other = Side(rewritten.proto, rewritten.path.parent)
    return prove(reference_side(reference, rewritten.proto), other, provider)


def proof_findings(found: Equivalence) -> list[str]:
    """What is wrong if the proof fails: then nothing but the runs speaks for the file."""
    if found.reason is None:
        return []
    return [f"not equivalent by construction: {found.reason}; equality rests on the runs alone"]


def proof_line(found: Equivalence) -> str:
    """What the proof says, in a line of the report."""
    if found.reason is not None:
        return "construction: not proved, see above"
    counts = [
        (found.kept, "kept"),
        (found.recomputed, "recomputed"),
        (found.explained, "explained by a rule"),
        (found.pins, "pins"),
    ]
    nodes = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    if found.redrawn and (found.rounded or found.assumed):
        nodes += "; random numbers are drawn in another order"
    if found.rounded:
        more = f" and {len(found.rounded) - 1} more" if len(found.rounded) > 1 else ""
        return (
            f"construction: every node ({nodes}), but what is put together from chunks "
            f"('{found.rounded[0]}'{more}) is assumed equal up to rounding"
        )
    if found.assumed:
        more = f" and {len(found.assumed) - 1} more" if len(found.assumed) > 1 else ""
        return (
            f"construction: every node but the loop '{found.assumed[0]}'{more}, whose body differs "
            f"from the original's ({nodes}); its equality rests on the runs"
        )
    if found.redrawn:
        return (
            f"construction: every node ({nodes}), but random numbers are drawn in another order; "
            "their equality rests on the runs"
        )
    return f"construction: equivalent, node by node ({nodes})"
