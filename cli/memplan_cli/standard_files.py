"""Stdin, stdout and stderr as commands need them: numbers of their own, and written out whole.

Where Python is unbuffered (``PYTHONUNBUFFERED``, ``python -u``), its streams write once and take
no notice of how much went out: a disk that fills up midway or a limit of a file's size would cut a
result off and look like success. A pipe that does not block, as some programs hand it on, refuses
what does not fit into it at once.
"""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = 0, 1, 2


class _Whole(io.RawIOBase):
    """An open file that takes whatever it is given whole, or fails."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        """Its number."""
        return self._number

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        """It is written to."""
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Write all of ``data``; how many bytes that were.

        Raises:
            OSError: the system refuses; what fitted has been written.
        """
        left = memoryview(data).cast("B")
        nbytes = len(left)
        while left:
            try:
                left = left[os.write(self._number, left) :]
            except BlockingIOError:
                select.select((), (self._number,), ())
        return nbytes


def whole_stream(number: int, like: TextIO | None = None) -> TextIO:
    """A stream to what is open under ``number``, which it leaves open.

    Args:
        number: of stdout or stderr.
        like: the stream that it stands for, whose encoding it has.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(_Whole(number)),
        encoding=getattr(like, "encoding", None),
        errors=getattr(like, "errors", None),
        line_buffering=number == STDERR or os.isatty(number),
    )


def reserve_standard_files() -> None:
    """Let numbers 0 to 2 stand for no other file where stdin, stdout or stderr was closed.

    Writing to a stdout that was closed fails, as it should.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
            if number == STDOUT:
                sys.stdout = whole_stream(number)


def write_standard_files_whole() -> None:
    """Let text and bytes for stdout and stderr go out whole, or fail."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    if streams[0] is not None:
        sys.stdout = whole_stream(STDOUT, streams[0])
    if streams[1] is not None:
        sys.stderr = whole_stream(STDERR, streams[1])


def silence(number: int) -> None:
    """Let what is still buffered for stdout or stderr go nowhere: it must not fail once more when
    the interpreter ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
