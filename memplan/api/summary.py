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

_LONGEST, _MOST_ROWS = 160, 12
_NOT_SHOWN = ("schema", "accounting_version")


class Summary:
    """An answer with a short ``repr``: a title, and the first single values of its JSON."""

    __slots__ = ()

    @abstractmethod
    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""

    @property
    def title(self) -> str:
        """What it is of."""
        return f"of {self.path}"  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        told = {n: v for n, v in self.as_json().items() if isinstance(v, str | int | float)}
        names = [name for name in told if name not in _NOT_SHOWN][:_MOST_ROWS]
        width = max(map(len, names), default=0)
        rows = [f"  {name:<{width}}  {_shown(told[name])}" for name in names]
        return "\n".join([f"<{type(self).__name__} {_shown(self.title)}>", *rows])


def _shown(value: str | int | float) -> str:
    """A value on one line; names in it come from files."""
    text = f"{value:,}" if type(value) is int else printable(str(value))
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
