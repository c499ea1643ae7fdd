"""What ``rewrite`` says of chunks."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.equivalence.prove import Equivalence
from memplan.passes.chunk.choose import NONE, Chunk
from memplan.passes.manager import PassStep
from memplan.units import counted


def chunk_notes(asked: str, steps: Sequence[PassStep], equivalence: Equivalence) -> tuple[str, ...]:
    """What chunks may change; or why there are none, though they were asked for."""
    if asked == NONE:
        return ()
    step = next((step for step in steps if step.name == Chunk.name), None)
    if step is None:
        return ("no chunks: the proof does not follow them in this graph",)
    if not step.changed:
        return (f"no chunks: {step.note}",)
    wholes = counted(len(equivalence.rounded), "tensor")
    return (
        f"chunks: {wholes} put together from them ('{equivalence.rounded[0]}'...) may differ in "
        "the last bits, as additions may be in another order; validate judges with a tolerance"
        if equivalence.rounded
        else "chunks: no result is put together from them",
    )
