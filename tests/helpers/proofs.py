"""Two graphs as text, and the proof that one computes what the other does."""

from collections.abc import Mapping
from pathlib import Path

import onnx

from helpers.graphs import parse
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.shapes.prepare import prepare


def proof(
    first: str | onnx.ModelProto,
    second: str | onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    provider: str = "cpu",
) -> Equivalence:
    """The proof that ``second`` computes what ``first`` does, with ``dims`` bound."""
    one = parse(first) if isinstance(first, str) else first
    other = parse(second) if isinstance(second, str) else second
    reference = reference_side(prepare(one, Path("first.onnx"), dims or {}))
    return prove(reference, Side(other, Path()), provider)
