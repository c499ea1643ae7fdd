"""Is PyTorch there, and was memplan tried with it? Asked before the rest of this room is imported.

memplan stands on parts of PyTorch that are not public (the exporter, decompositions, the
partitioner), and a minor version may change them. A newer one is not refused, as what is
captured is held against PyTorch itself; it is named in a note, and where something fails. What
fails in memplan's own code is told as that, never as the model's fault (:func:`own_failure`). The
parts are listed in :mod:`memplan.pytorch.torch_internals`.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import CodeType

from memplan.errors import MemplanError, RuntimeUnavailableError

OLDEST, NEWEST = (2, 13), (2, 15)
"""Minor versions that memplan was tried with: the first and the last; so is the extra ``torch``."""
TRIED = f"PyTorch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
REMEDY = f"pip install 'torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"
_NEEDED = ("torch", "onnxscript")
_PATH = re.compile(r" from '/[^']*'| \(/[^)]*\)")
_ROOM = Path(__file__).parent
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_UNFIT = (AttributeError, ImportError, NameError, KeyError, AssertionError)
"""What a part of PyTorch raises that is gone, or of another kind."""
_OTHER_KIND = re.compile(
    r"unexpected keyword|positional argument|object is not (callable|iterable)"
)
"""The same of a ``TypeError``; others may be of what the user hands to a function."""


def require_torch(what: str = "capture", needed: Sequence[str] = _NEEDED) -> None:
    """Check that PyTorch, and what its exporter needs, can be imported.

    Raises:
        RuntimeUnavailableError: they are not installed, or PyTorch is too old.
    """
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise RuntimeUnavailableError(
            f"{what} needs {' and '.join(missing)}, which this environment does not have",
            "pip install 'memplan[torch]'",
        )
    minor = _minor()
    if minor is not None and minor < OLDEST:
        raise RuntimeUnavailableError(
            f"{what} needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, and {_installed()} is "
            "installed",
            REMEDY,
        )


def torch_notes() -> tuple[str, ...]:
    """What to know where PyTorch is another version than those that memplan was tried with."""
    minor = _minor()
    if minor is None or OLDEST <= minor <= NEWEST:
        return ()
    return (f"memplan was tried with {TRIED}, and {_installed()} is installed",)


def own_failure(error: BaseException) -> RuntimeUnavailableError | None:
    """What to say of an error whose first cause was raised by memplan's own code, because a part of
    PyTorch is gone or of another kind; None of others."""
    while error.__cause__ is not None:
        error = error.__cause__
    unfit = isinstance(error, _UNFIT)
    if not unfit and not (isinstance(error, TypeError) and _OTHER_KIND.search(str(error))):
        return None
    place = own_place(error)
    return does_not_fit(f"{_said(error)} ({place})") if place else None


def own_place(error: BaseException) -> str:
    """File and line of memplan's own code that raised an error; empty of others."""
    code, line = _raised_by(error)
    if code is None or not Path(code.co_filename).is_relative_to(_ROOM):
        return ""
    return f"{Path(code.co_filename).relative_to(_ROOM.parents[1]).as_posix()}:{line}"


def does_not_fit(why: str) -> RuntimeUnavailableError:
    """What to say where PyTorch is not what memplan stands on."""
    return RuntimeUnavailableError(
        f"memplan's own handle on PyTorch does not fit PyTorch {_installed()}: {why}; tried with "
        f"{TRIED}",
        REMEDY if torch_notes() else "this is a bug in memplan; -vv shows where",
    )


def _raised_by(error: BaseException) -> tuple[CodeType | None, int]:
    """The innermost code that is not Python's own, as ``mock.patch`` is, and its line."""
    found, line = None, 0
    for frame, number in walk_tb(error.__traceback__):
        code = frame.f_code
        pythons = code.co_filename.startswith(_PYTHON) and "-packages" not in code.co_filename
        if not pythons and not code.co_filename.startswith("<"):
            found, line = code, number
    return found, line


@contextmanager
def named_in_failures(what: str) -> Iterator[None]:
    """Say of an unexpected failure that it is memplan's, or that memplan was not tried with this
    PyTorch.

    Raises:
        RuntimeUnavailableError: instead of an exception that is neither the user's nor the
            system's, where it is.
    """
    try:
        yield
    except (MemplanError, OSError, MemoryError):
        raise
    except Exception as error:
        notes = torch_notes()
        if not notes:
            raise
        raise own_failure(error) or RuntimeUnavailableError(
            f"{what} failed with {_said(error)}; {notes[0]}", REMEDY
        ) from error


def _said(error: BaseException) -> str:
    """An error in one line, without paths of this machine."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _PATH.sub("", text)[:200]


def _installed() -> str:
    """The version of the distribution; empty where it has none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _minor() -> tuple[int, int] | None:
    """Major and minor; None where they are not known. Builds from source end in ``a0+git…``."""
    found = re.match(r"(\d+)\.(\d+)", _installed())
    return None if found is None else (int(found[1]), int(found[2]))
