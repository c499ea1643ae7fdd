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
_SUFFIXES = (".csv", ".json", ".jsonl")


def check_log(path: Path, *, resumes: bool, checkpoint: bool, force: bool) -> None:
    """Fail early where :class:`TrainingLog` would.

    Args:
        path: the log.
        resumes: whether the run may go on with what is there.
        checkpoint: whether there is a state to go on from.
        force: whether what is there may be replaced.

    Raises:
        UsageError: the file cannot be written, its name says no format, or it is no log.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--log {path}: the name ends in none of {', '.join(_SUFFIXES)}")
    check_output(path, force or resumes)
    if resumes and not force and path.exists():
        text = _text(path)
        is_csv = path.suffix == ".csv"
        if text and not text.startswith(",".join(_FIELDS) if is_csv else '{"step": '):
            raise _foreign(path, 1)
        if not checkpoint and text.count("\n") > is_csv:
            raise _without_checkpoint(path)


class TrainingLog:
    """Writes a row per step, which is in the file before the next step begins.

    Numbers are written so that reading them gives the same bits. The file is as it was until
    :meth:`begin`: a run that is refused changes nothing.

    Args:
        path: a ``.csv``, ``.json`` or ``.jsonl`` file (of the latter two, an object per line).
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
        resumes = resumed is not None
        check_log(path, resumes=resumes, checkpoint=bool(resumed), force=force)
        self.path = followed(path)
        self.notes: tuple[str, ...] = ()
        self._csv = path.suffix == ".csv"
        self._metrics = tuple(metrics)
        self._fields = (*_FIELDS, *self._metrics)
        self._head = _row(self._fields) if self._csv else ""
        self._kept = self._rows_until(resumed or 0, force) if resumes and path.exists() else ""
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

    def _rows_until(self, step: int, force: bool) -> str:
        """The rows of steps up to ``step`` that are whole, as they stand.

        Raises:
            UsageError: something else is among them.
        """
        text = _text(self.path, force)
        ours = text.startswith(self._head)
        if text and not ours and not force:
            raise _foreign(self.path, 1)
        rows = []
        lines = text[len(self._head) if ours else 0 :].split("\n")[:-1]  # what was cut off is last
        for number, line in enumerate(lines, 1 + bool(self._head)):
            found = self._step_of(line)
            if found:
                rows.append((found, line + "\n"))
            elif not force:
                raise _foreign(self.path, number)
        self._note(step, [number for number, _ in rows])
        return "".join(row for number, row in rows if number <= step)

    def _note(self, step: int, steps: Sequence[int]) -> None:
        later = sum(number > step for number in steps)
        if later:
            rows = counted(later, "row")
            self.notes += (f"{self.path}: {rows} of steps after {step} removed, to be taken again",)
        elif steps and max(steps) < step:
            self.notes += (f"{self.path} has no rows of steps {max(steps) + 1} to {step}",)

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
        values = {name: getattr(report, name) for name in _FIELDS}
        values |= {name: report.metrics.get(name) for name in self._metrics}
        if self._csv:
            row = _row(["" if v is None else repr(v) for v in values.values()])
        else:
            row = json.dumps(values) + "\n"
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


def _text(path: Path, force: bool = False) -> str:
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


def _without_checkpoint(path: Path) -> UsageError:
    return UsageError(
        f"{path} has rows, but there is no checkpoint to resume from",
        "give the checkpoint that belongs to it, or --force to begin the log anew",
    )


def _row(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
