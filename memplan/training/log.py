"""The log of a run: a row per step, as CSV or as JSON lines, that a resumed run goes on with."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from memplan.errors import UsageError
from memplan.proto.write import check_output, followed, write_atomically
from memplan.training.telling import StepReport

_FIELDS = ("step", "loss", "lr", "seconds")
_SUFFIXES = (".csv", ".json", ".jsonl")


class TrainingLog:
    """Writes a row per step, which is in the file before the next step begins.

    Numbers are written so that reading them gives the same bits.

    Args:
        path: a ``.csv``, ``.json`` or ``.jsonl`` file (of the latter two, an object per line).
        resumed: the step that a resumed run goes on behind; rows of later steps, and one that was
            cut off, are removed. None: a new run, with a new file.
        force: whether a new run may replace a file.
        metrics: what is told beside the loss; each gets a column.

    Raises:
        UsageError: the file cannot be written, or its name says no format.
    """

    def __init__(
        self,
        path: Path,
        resumed: int | None = None,
        *,
        force: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        if path.suffix not in _SUFFIXES:
            raise UsageError(f"--log {path}: the name ends in none of {', '.join(_SUFFIXES)}")
        self.path = followed(path)
        self._csv = path.suffix == ".csv"
        resumes = resumed is not None and path.exists()
        check_output(path, force or resumes)
        self._metrics = tuple(metrics)
        head = _row((*_FIELDS, *self._metrics)) if self._csv else ""
        kept = self._rows_until(resumed) if resumes and resumed is not None else ""
        write_atomically(path, (head + kept).encode(), force=True)
        try:
            self._stream: IO[str] = self.path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None

    def _rows_until(self, step: int) -> str:
        """The rows of steps up to ``step`` that are whole, as they stand."""
        kept = []
        for row in self.path.read_text(errors="replace").splitlines(keepends=True):
            if row.endswith("\n") and 0 < self._step_of(row) <= step:
                kept.append(row)
        return "".join(kept)

    def _step_of(self, row: str) -> int:
        try:
            return int(row.partition(",")[0] if self._csv else json.loads(row)["step"])
        except (ValueError, KeyError, TypeError):
            return 0

    def write(self, report: StepReport) -> None:
        """Append a row.

        Raises:
            UsageError: the system refuses.
        """
        values = {name: getattr(report, name) for name in _FIELDS}
        values |= {name: report.metrics.get(name) for name in self._metrics}
        if self._csv:
            row = _row(["" if v is None else repr(v) for v in values.values()])
        else:
            row = json.dumps(values) + "\n"
        try:
            self._stream.write(row)
            self._stream.flush()
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _row(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
