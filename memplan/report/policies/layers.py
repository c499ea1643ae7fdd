"""What a plan decides of each layer, for frameworks in which layers share their code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from memplan.report.policies.plan_calls import PlannedCall

KEPT = "kept"
AGAIN = "made again"
HOST = "offloaded"
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call in a layer: ``path`` of its module in the layer, and a ``name`` that says which call
    of this module it is."""

    path: str
    name: str
    operator: str
    number: int
    fate: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A numbered module, such as ``blocks.3``, and its calls in their order. The ``path`` of what
    stands in none is empty."""

    path: str
    calls: tuple[LayerCall, ...]

    @property
    def recomputes(self) -> bool:
        """Whether anything of it is made again or offloaded."""
        return any(call.fate != KEPT for call in self.calls)


def layers(calls: Sequence[PlannedCall]) -> tuple[Layer, ...]:
    """The layers in order: modules with a number, the outermost in which a call is made."""
    found: dict[str, list[LayerCall]] = {}
    for call in calls:
        match = _INDEX.search(call.path)
        layer = call.path[: match.end()] if match else ""
        inner = call.path[match.end() :].lstrip(".") if match else call.path
        fate = HOST if call.offloaded else KEPT if call.kept else AGAIN
        made = LayerCall(inner, _name(inner, call), call.operator, call.number, fate)
        found.setdefault(layer, []).append(made)
    return tuple(Layer(path, tuple(each)) for path, each in found.items())


def _name(inner: str, call: PlannedCall) -> str:
    number = f"_{call.number}" if call.number else ""
    return f"{inner}.{call.operator}{number}" if inner else f"{call.operator}{number}"
