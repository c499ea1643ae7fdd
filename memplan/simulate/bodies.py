"""Memory inside control-flow nodes."""
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import dataclass
from memplan.graph.types import Graph
from memplan.simulate.session import SessionKind

@dataclass(frozen=True, slots=True)
class Inside:
    nbytes: Mapping[int, int]
    assumptions: tuple[str, ...]

def body_bytes(graph: Graph, session: SessionKind) -> Inside:
    return Inside({}, ())
