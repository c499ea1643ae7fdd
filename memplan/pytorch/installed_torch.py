"""Is PyTorch there, and was memplan tried with it? Asked before the rest of this room is imported.

memplan stands on parts of PyTorch that are not public (AOTAutograd's joint graph, decompositions,
the partitioner), and a minor version may change them. A newer one is not refused, as what is
captured is held against PyTorch itself; it is named in a note, and where something fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from memplan.errors import MemplanError, RuntimeUnavailableError

OLDEST, NEWEST = (2, 13), (2, 14)
"""Minor versions that ``capture`` was tried with: the first and the last."""
NEWEST_SOLVED = (2, 13)
"""The last that ``torch_solver`` was tried with."""
_NEEDED = ("torch", "onnxscript")


def require_torch() -> None:
    """Check that PyTorch and what its exporter needs can be imported.

    Raises:
        RuntimeUnavailableError: they are not installed, or PyTorch is too old.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise RuntimeUnavailableError(
            f"capture needs {' and '.join(missing)}, which this environment does not have",
            "pip install 'memplan[torch]'",
        )
    minor = _minor()
    if minor is not None and minor < OLDEST:
        raise RuntimeUnavailableError(
            f"capture needs PyTorch {_text(OLDEST)} or newer, and {_installed()} is installed",
            f"pip install 'torch>={_text(OLDEST)}'",
        )


def torch_notes(newest: tuple[int, int] = NEWEST) -> tuple[str, ...]:
    """What to know where PyTorch is another version than those that memplan was tried with."""
    minor = _minor()
    if minor is None or OLDEST <= minor <= newest:
        return ()
    tried = " and ".join(sorted({_text(OLDEST), _text(newest)}))
    return (f"memplan was tried with PyTorch {tried}, and {_installed()} is installed",)


@contextmanager
def named_in_failures(what: str, newest: tuple[int, int] = NEWEST) -> Iterator[None]:
    """Say of an unexpected failure that memplan was not tried with this PyTorch.

    Raises:
        RuntimeUnavailableError: instead of an exception that is neither the user's nor the
            system's, where it is.
    """
    try:
        yield
    except (MemplanError, OSError, MemoryError):
        raise
    except Exception as error:
        notes = torch_notes(newest)
        if not notes:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RuntimeUnavailableError(
            f"{what} failed with {said}; {notes[0]}", f"pip install 'torch=={_text(newest)}.*'"
        ) from error


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


def _text(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"
