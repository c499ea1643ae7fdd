"""Compiling and reading the allocation-trace shim (memshim.c)."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

LIMIT = 1 << 16


class ShimError(RuntimeError):
    """The shim cannot be compiled or is not loaded."""


def compiled(source: str, library: Path) -> Path:
    """Compile a file of this folder as `library`."""
    compiler = os.environ.get("CC") or next(
        (name for name in ("cc", "gcc", "clang") if shutil.which(name)), None
    )
    if compiler is None:
        raise ShimError(
            "the probe needs a C compiler for its allocation counter: none of cc, gcc and clang "
            "is on PATH and CC is not set"
        )
    path = Path(__file__).with_name(source)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(path), "-lpthread"]
    try:
        done = subprocess.run([*command, "-ldl"], capture_output=True, text=True)
    except OSError as error:
        raise ShimError(f"cannot run the C compiler {compiler!r}: {error.strerror}") from error
    if done.returncode:
        raise ShimError(f"compiling the shim failed ({' '.join(command)}):\n{done.stderr}")
    return library


class Trace:
    """Records the allocator's events of this process, which must have the shim preloaded."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        try:
            self._start, self._stop = library.shim_start, library.shim_stop
        except AttributeError as error:
            raise ShimError("the shim is not preloaded in this process") from error
        self._start.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._stop.restype = ctypes.c_int64
        self._buffer = (ctypes.c_int64 * (2 * LIMIT))()

    def start(self) -> None:
        """Begin a new trace."""
        self._start(ctypes.addressof(self._buffer), LIMIT)

    def stop(self) -> list[tuple[int, int]]:
        """End the trace; (block address, +allocated or -released bytes) in order."""
        count = self._stop()
        if count >= LIMIT:
            raise ShimError(f"more than {LIMIT} allocator events in one run")
        flat = self._buffer[: 2 * count]
        return list(zip(flat[::2], flat[1::2], strict=True))
