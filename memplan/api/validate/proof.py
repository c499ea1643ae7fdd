"""The part of a validation that runs nothing: do the files, as they lie there, compute the same?"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.api.validate.same_interface import some_names
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.shapes.prepare import PreparedModel
from memplan.units import counted


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
    return [f"not equivalent by construction: {found.reason}; only the runs show equality"]


def contradictions(found: Equivalence, unlike: Sequence[str], threads: int) -> list[str]:
    """Outputs that are the same by construction and are not in the runs: one of both is wrong.

    Args:
        found: the proof, of the very models that ran.
        unlike: outputs whose bits differ, though the original repeats its own.
        threads: of the runs; 0: as many as the runtime takes.
    """
    if not found.proved or not unlike:
        return []
    many = counted(threads, "thread") if threads else "as many threads as the runtime takes"
    return [
        f"the runs contradict the proof: {some_names(unlike)} "
        f"{'have' if len(unlike) > 1 else 'has'} other bits with {many}, though the same by "
        "construction; please report this with both files"
    ]


def proof_line(found: Equivalence, *, contradicted: bool = False) -> str:
    """What the proof says, in a line of the report. ``contradicted``: by the runs."""
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
        many = len(found.rounded) > 1
        more = f" and {len(found.rounded) - 1} more" if many else ""
        return (
            f"construction: every node ({nodes}), but '{found.rounded[0]}'{more} "
            f"({'; '.join(found.rounding)}) {'are' if many else 'is'} assumed equal up to rounding"
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
    doubt = ", which the runs contradict" if contradicted else ""
    return f"construction: equivalent, node by node ({nodes}){doubt}"
