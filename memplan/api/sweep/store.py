"""Finished points in a file, so that a sweep that was ended goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memplan.api.sweep.point import Answer, Failure, Task, answer_from, answer_json
from memplan.errors import EXIT_BUG, EXIT_ENVIRONMENT, UsageError
from memplan.processes.locks import updating
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.proto.write import check_output, followed, write_atomically

SCHEMA = "memplan.sweep-points/1"


class Store:
    """Answers by the key of their task. The file is written anew, atomically, with every answer;
    what others have added to it meanwhile stays.

    Without a file, answers are kept until the program ends.
    """

    def __init__(self, path: Path | None) -> None:
        """Read what the file has.

        Raises:
            UsageError: it cannot be written, or is a file of another kind, which is left alone.
        """
        self._path = None if path is None else followed(path)
        self._kept: dict[str, Answer] = {}
        if path is None:
            return
        check_output(path, force=True)
        if os.path.exists(path):
            self._kept = _read(path)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, task: Task) -> Answer | None:
        """The answer to ``task``, if there is one."""
        return self._kept.get(task.key)

    def put(self, task: Task, answer: Answer) -> None:
        """Keep an answer. What failed for a reason that may go away is asked again next time.

        Raises:
            UsageError: the file cannot be written.
            RuntimeUnavailableError: another process keeps it locked.
        """
        self._kept[task.key] = answer
        passing = {EXIT_ENVIRONMENT, EXIT_BUG}
        if self._path is None or (isinstance(answer, Failure) and answer.exit_code in passing):
            return
        with updating(self._path):
            if os.path.exists(self._path):
                self._kept = {**_read(self._path), **self._kept}
            points = {
                key: answer_json(kept)
                for key, kept in sorted(self._kept.items())
                if not (isinstance(kept, Failure) and kept.exit_code in passing)
            }
            text = json.dumps({"schema": SCHEMA, "points": points}, indent=1) + "\n"
            write_atomically(self._path, text.encode(), force=True)


def _read(path: Path) -> dict[str, Answer]:
    try:
        content = json.loads(read_bytes(path, MOST_TEXT))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return {str(key): answer_from(kept) for key, kept in content["points"].items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {file_problem(error)}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} does not hold points of a sweep ({type(error).__name__}: {error})",
            "give another file to --resume, or delete this one",
        ) from None
