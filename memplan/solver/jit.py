"""The compiler of the planner's inner loops: numba, with its cache in the user's cache folder.

numba compiles on first use (some seconds, once per version) and needs no toolchain at install.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def cache_folder() -> Path:
    """The user's cache folder for compiled code (``MEMPLAN_CACHE_DIR`` overrides it)."""
    if "MEMPLAN_CACHE_DIR" in os.environ:
        return Path(os.environ["MEMPLAN_CACHE_DIR"])
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(base) / "memplan"


def source_digest() -> str:
    """A hash of the planner's sources.

    numba notices a change of a function's own file only, not of the files that it calls into; so
    every version of the sources gets a cache of its own.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# numba reads the variable when it is first imported, so this must stand before the import.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "numba" / source_digest()))

# Functions are linked into their callers and optimized again there, so that higher levels cost a
# tenth of the compile time; no difference in speed could be measured.
os.environ.setdefault("NUMBA_OPT", "1")

import numba  # noqa: E402
import numpy as np  # noqa: E402

# numba's stubs do not know the wrapper options.
_NJIT: Any = numba.njit


def is_cold() -> bool:
    """Whether nothing of this version has been compiled yet."""
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    return not folder.is_dir() or not any(folder.rglob("*.nbc"))


def compiled(function: Function) -> Function:
    """Compile ``function`` in nopython mode on first call and cache the machine code."""
    return cast(Function, _NJIT(cache=True, nogil=True, no_cfunc_wrapper=True)(function))


def inner(function: Function) -> Function:
    """The same for functions that only compiled code calls.

    They get no wrapper that unpacks Python arguments, which would take most of the compile time,
    and no cache file: their code is part of their callers'.
    """
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True}
    return cast(Function, _NJIT(nogil=True, **options)(function))


def leaf(function: Function) -> Function:
    """The same for functions that allocate nothing, without reference counts.

    numba counts references to every array of every tuple that is passed, atomically; in small
    functions that run millions of times per second this took two thirds of all time, and more with
    two threads on the same problem.
    """
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True, "_nrt": False}
    return cast(Function, _NJIT(nogil=True, **options)(function))


@compiled
def seed_random(seed: int) -> None:
    """Seed the compiled code's random numbers (numba keeps its own state)."""
    np.random.seed(seed)
