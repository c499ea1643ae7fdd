"""The compiler of the planner's inner loops: numba, with its cache in the user's cache folder.

numba compiles on first use (some seconds, once per version) and needs no toolchain at install.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from memplan.errors import RuntimeUnavailableError
from memplan.processes.locks import OneAtATime
from memplan.solver.cache import before_compiling, code_folder

Function = TypeVar("Function", bound=Callable[..., Any])


def source_digest() -> str:
    """A hash of the planner's sources.

    numba notices a change of a function's own file only, not of the files that it calls into; so
    every version of the sources gets a cache of its own.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = code_folder(source_digest())
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


_DIGEST_BYTES = hashlib.sha256().digest_size


class _CheckedFile(_CACHING.IndexDataCacheFile):  # type: ignore[misc]
    """Files of machine code that begin with a digest: what is damaged is not run but made again."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # what unpickling damaged data raises
            return {}

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            raise OSError(f"{name} is damaged")  # then numba takes it for missing
        return pickle.loads(data)

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)


class _Cache(_CACHING.FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, except that a cache that fails is no reason to fail."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        implementation = self._impl
        stamp = implementation.locator.get_source_stamp()
        self._cache_file = _CheckedFile(self._cache_path, implementation.filename_base, stamp)
        self._turn = OneAtATime(Path(self._cache_path, f"{implementation.filename_base}.lock"))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The code for these types; None: it is to be compiled, and this process's turn to do so
        until :meth:`save_overload`. Processes that need it meanwhile wait for it."""
        found = super().load_overload(signature, target_context)
        if found is None and self._turn.begin():
            found = super().load_overload(signature, target_context)
        if found is not None:
            self._turn.end()
        elif is_cold():
            while before_compiling:
                before_compiling.pop()()
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep the code of ``function`` for these types, if there is room."""
        try:
            with suppress(OSError):
                super().save_overload(signature, data)
        finally:
            self._turn.end()


def is_cold() -> bool:
    """Whether nothing of this version has been compiled yet."""
    return _FOLDER is None or not any(_FOLDER.rglob("*.nbc"))


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
