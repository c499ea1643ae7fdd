"""What all rows of the GPU benchmark share: the graphs, the record, and when to stop."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A training graph of one family; ``dim`` names a symbolic batch, else ``batch`` is fixed."""

    family: str
    path: Path
    dim: str | None
    batch: int | None

    def dims(self, batch: int) -> dict[str, int]:
        """What to bind for a batch."""
        return {self.dim: batch} if self.dim else {}


@dataclass(slots=True)
class Bench:
    """What all rows share; rows are written as they come."""

    options: argparse.Namespace
    provider: str
    memory_bytes: int
    record: dict[str, Any]
    started: float = field(default_factory=time.perf_counter)

    @property
    def over(self) -> bool:
        """Whether no further row should be begun."""
        return time.perf_counter() - self.started > self.options.seconds

    def known(self, key: Mapping[str, Any]) -> bool:
        """Whether a row of an earlier call says all of this."""
        return any(
            all(row.get(name) == value for name, value in key.items())
            for row in self.record["results"]
        )

    def add(self, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> None:
        """Make one row, unless time is over or it is there; a failure is a row too."""
        from memplan.errors import MemplanError

        if self.known(key):
            return
        if self.over:
            self.record["left_out"].append(dict(key))
            return
        begun = time.perf_counter()
        try:
            found = dict(make())
        except MemplanError as error:
            found = {"error": error.message}
        row = {**key, **found, "took_seconds": round(time.perf_counter() - begun, 2)}
        self.record["results"].append(row)
        self.save()
        print(json.dumps(row), flush=True)

    def save(self) -> None:
        """Write what there is."""
        if self.options.json:
            self.options.json.write_text(json.dumps(self.record, indent=1) + "\n")
