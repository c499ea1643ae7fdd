"""How answers show themselves in a Python prompt, a few lines, never all data, and in JSON; and
what those about training graphs count."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY, node_metadata
from memplan.units import printable

if TYPE_CHECKING:
    import onnx

_LONGEST = 160
Rows = tuple[tuple[str, str], ...]


class Summary:
    """An answer with a short ``repr``: a title, and at most nine rows of what matters."""

    __slots__ = ()

    @abstractmethod
    def summary_rows(self) -> Rows:
        """Pairs of what and how much; the first one is the title: a name and what it is of."""

    def __repr__(self) -> str:
        # Names come from files.
        shown = [(label, _cut(printable(text))) for label, text in self.summary_rows()]
        (kind, what), *rows = shown
        width = max((len(label) for label, _ in rows), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in rows]
        return "\n".join([f"<{kind} {what}>", *lines])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def attributes_json(answer: object, *names: str) -> dict[str, Any]:
    """Attributes of an answer by name, as JSON has them; what is not finite, it has not."""
    return {name: _json(getattr(answer, name)) for name in names}


def fields_json(answer: Any) -> dict[str, Any]:
    """All fields of a dataclass, as JSON has them."""
    return attributes_json(answer, *(item.name for item in fields(answer)))


def _json(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return "inf"
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    if isinstance(value, Path | Enum):
        return str(value)
    if hasattr(value, "as_json"):
        return value.as_json()
    return fields_json(value) if is_dataclass(value) else value


def phase_counts(graph: onnx.GraphProto) -> dict[Phase, int]:
    """How many nodes say of themselves to be of each part; the loss counts as forward."""
    counts = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE), 0)
    for node in graph.node:
        told = node_metadata(node).get(PHASE_KEY)  # the author may have written anything
        counts[Phase(told) if told in counts else Phase.FORWARD] += 1
    return counts
