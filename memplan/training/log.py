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
from memplan.units import counted

_FIELDS = ("step", "loss", "lr", "seconds")
_ROW_OF_JSON = '{"step": '


def check_log(path: Path, *, replaced: bool) -> None:
    """Fail early where the file cannot be written, before any work.

    Args:
        path: the log.
        replaced: whether a file that is there may be gone on with, or replaced.

    Raises:
        UsageError: it cannot, or its name says no format.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise UsageError(
            f"--log {path}: the name ends in neither .csv nor .jsonl",
            "a .csv file, or .jsonl for an object per line",
        )
    check_output(path, replaced)


class TrainingLog:
    """Writes a row per step, which is in the file before the next step begins.

    Numbers are written so that reading them gives the same bits. The file is as it was until
    :meth:`begin`: a run that is refused changes nothing.

    Args:
        path: a ``.csv`` or ``.jsonl`` file (of the latter, an object per line).
        resumed: the step that a resumed run goes on behind; rows of later steps, and one that was
            cut off, are removed. None: a new run, with a new file.
        force: whether a new run may replace a file, and a resumed one what is no row of this log.
        metrics: what is told beside the loss; each gets a column.

    ``notes`` says what does not fit together: rows behind the checkpoint, or too few of them.

    Raises:
        UsageError: the file cannot be written, its name says no format, or it is not the log of
            this run.
    """

    def __init__(
        self,
        path: Path,
        resumed: int | None = None,
        *,
        force: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        check_log(path, replaced=force or resumed is not None)
        self.path = followed(path)
        self.notes: tuple[str, ...] = ()
        self._csv = path.suffix == ".csv"
        self._metrics = tuple(metrics)
        self._fields = (*_FIELDS, *self._metrics)
        self._head = _row(self._fields) if self._csv else ""
        self._kept = "" if resumed is None else self._rows_until(resumed, force)
        self._stream: IO[str] | None = None

    def begin(self) -> IO[str]:
        """Bring the file to what the run goes on from, if that has not been done, and open it.

        Raises:
            UsageError: the system refuses.
        """
        if self._stream is None:
            write_atomically(self.path, (self._head + self._kept).encode(), force=True)
            self._kept = ""
            try:
                self._stream = self.path.open("a", encoding="utf-8", newline="")
            except OSError as error:
                raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None
        return self._stream

    def _rows_until(self, last: int, force: bool) -> str:
        """The rows of steps up to ``last`` that are whole, as they stand.

        Raises:
            UsageError: something else is among them; or there are rows, but no step to go on from.
        """
        text = _text(self.path, force) if self.path.exists() else ""
        if text and not text.startswith(self._head or _ROW_OF_JSON) and not force:
            raise _foreign(self.path, 1)
        rows: list[tuple[int, str]] = []
        for number, line in enumerate(text.split("\n")[:-1], 1):  # what was cut off is last
            if step := self._step_of(line):
                rows.append((step, f"{line}\n"))
            elif not force and (number > 1 or not self._csv):
                raise _foreign(self.path, number)
        if rows and not last and not force:
            raise UsageError(
                f"{self.path} has rows, but there is no checkpoint to resume from",
                "give the checkpoint that belongs to it, or --force to begin the log anew",
            )
        later = sum(step > last for step, _ in rows)
        if later:
            what = counted(later, "row")
            self.notes = (f"{self.path}: {what} of steps after {last} removed, to be taken again",)
        elif rows and max(rows)[0] < last:
            self.notes = (f"{self.path} has no rows of steps {max(rows)[0] + 1} to {last}",)
        return "".join(row for step, row in rows if step <= last)

    def _step_of(self, line: str) -> int:
        """The step of a row; 0 of what is none."""
        if self._csv:
            cells = line.split(",")
            whole = len(cells) == len(self._fields) and cells[0].isdecimal()
            return int(cells[0]) if whole else 0
        try:
            row = json.loads(line)
            return int(row["step"]) if row.keys() == set(self._fields) else 0
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return 0

    def write(self, report: StepReport) -> None:
        """Append a row.

        Raises:
            UsageError: the system refuses.
        """
        values = [getattr(report, name) for name in _FIELDS]
        values += [report.metrics.get(name) for name in self._metrics]
        if self._csv:
            row = _row(["" if value is None else repr(value) for value in values])
        else:
            row = json.dumps(dict(zip(self._fields, values, strict=True))) + "\n"
        stream = self.begin()
        try:
            stream.write(row)
            stream.flush()
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


def _text(path: Path, force: bool) -> str:
    """What a log holds; with ``force``, also of a file that is not a text.

    Raises:
        UsageError: it cannot be read, or is not a text.
    """
    try:
        text = path.read_bytes().decode(errors="replace" if force else "strict")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _foreign(path, 1) from None
    return text.replace("\r\n", "\n")


def _foreign(path: Path, line: int) -> UsageError:
    return UsageError(
        f"{path} is not a log of this step: line {line} is none of its rows",
        "give another name to --log, or --force to remove what is not a row",
    )


def _row(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
