"""The compiler of the planner's inner loops: numba, with its cache in the user's cache folder.

numba compiles on first use (some seconds, once per version) and needs no toolchain at install.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar, cast

from memplan.errors import RuntimeUnavailableError
from memplan.solver.cache import code_folder, is_empty, version_name

Function = TypeVar("Function", bound=Callable[..., Any])

_FOLDER = code_folder(version_name())
# numba reads the variable when it is first imported, so this must stand before the import.
if _FOLDER is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(_FOLDER)

# Functions are linked into their callers and optimized again there, so that higher levels cost a
# tenth of the compile time; no difference in speed could be measured.
os.environ.setdefault("NUMBA_OPT", "1")

try:
    import numba
except ValueError as error:  # of a variable such as NUMBA_NUM_THREADS
    raise RuntimeUnavailableError(
        f"numba does not start: {error}", "look at the variables NUMBA_... of the environment"
    ) from None
import numpy as np  # noqa: E402

# numba's stubs do not know the wrapper options.
_NJIT: Any = numba.njit
_CACHING: Any = import_module("numba.core.caching")


class _Cache(_CACHING.FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, except that one that fails is no reason to fail."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The code for these types; None: it is to be compiled."""
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # what unpickling damaged data raises
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep the code for these types, if there is room."""
        with suppress(OSError):
            super().save_overload(signature, data)


def is_cold() -> bool:
    """Whether nothing of this version has been compiled yet."""
    return is_empty(_FOLDER)


def compiled(function: Function) -> Function:
    """Compile ``function`` in nopython mode on first call and cache the machine code."""
    dispatcher = _NJIT(nogil=True, no_cfunc_wrapper=True)(function)
    if _FOLDER is not None:
        with suppress(RuntimeError):  # "no locator available": the folder is gone again
            dispatcher._cache = _Cache(function)
    return cast(Function, dispatcher)


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
