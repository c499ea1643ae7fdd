"""Ends the process by SIGKILL at the n-th thing that it does to a file of a folder."""

import os
import signal
import tempfile
from pathlib import Path
from typing import IO, Any, Self

_CALLS = ("fsync", "chmod", "link", "replace", "rename", "unlink")


class Moments:
    """Counts what the process does to temporary and other files in ``folder``: every piece that is
    written, and every call before and behind it.

    Args:
        folder: the folder.
        last: the moment of death; None: none, and ``seen`` is what there was.
    """

    def __init__(self, folder: Path, last: int | None = None) -> None:
        self.folder, self.last = str(folder), last
        self.seen: list[str] = []
        self._handles: set[int] = set()

    def watch(self) -> None:
        """From now on, in this process."""
        make, opened = tempfile.mkstemp, os.fdopen

        def mkstemp(*given: Any, **named: Any) -> tuple[int, str]:
            handle, name = make(*given, **named)
            if os.path.dirname(name) == self.folder:
                self._handles.add(handle)
                self.come("a new file")
            return handle, name

        def fdopen(handle: int, *given: Any, **named: Any) -> Any:
            stream = opened(handle, *given, **named)
            return _Stream(stream, self) if handle in self._handles else stream

        tempfile.mkstemp, os.fdopen = mkstemp, fdopen
        for name in _CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(first: Any, *given: Any, **named: Any) -> Any:
            ours = first in self._handles if isinstance(first, int) else self._is_here(first)
            if ours:
                self.come(f"before {name}")
            result = call(first, *given, **named)
            if ours:
                self.come(f"behind {name}")
            return result

        return counted

    def _is_here(self, path: Any) -> bool:
        return os.path.dirname(os.path.abspath(os.fspath(path))) == self.folder

    def come(self, what: str) -> None:
        """One more moment."""
        self.seen.append(what)
        if len(self.seen) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class _Stream:
    """A file of which half a piece is written when the moment comes."""

    def __init__(self, stream: IO[bytes], moments: Moments) -> None:
        self._stream, self._moments = stream, moments

    def write(self, data: Any) -> int:
        """Write, in two halves."""
        view = memoryview(data).cast("B")
        half = len(view) // 2
        self._stream.write(view[:half])
        self._stream.flush()
        self._moments.come("in write")
        self._stream.write(view[half:])
        return len(view)

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        self._stream.__exit__(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
