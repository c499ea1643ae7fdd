"""The same work on many items at once: on the cores of this machine, or wherever the caller has
told joblib to work.

The only door of joblib. Items are independent, and their answers come as they are ready.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

from memplan.processes.scratch import open_folders

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_POLL_SECONDS = 0.5
# Workers that have nothing to do end after so long; between two calls they are used again.
_IDLE_SECONDS = 60


def answers(
    work: Callable[[Item], Answer], items: Sequence[Item], jobs: int = 0
) -> Generator[tuple[int, Answer | None], None, None]:
    """Index and answer of every item, as they are ready, in any order; None where the system ended
    its process, even when it was tried once more alone: one that is ended takes those beside it
    with it.

    The processes end when this one does, however it ends, and a Ctrl-C is left to it. Inside
    ``joblib.parallel_config(backend=...)`` that backend does the work instead.

    Args:
        work: a function of a module, which raises nothing; what it takes and gives can be pickled.
        items: any number.
        jobs: how many at a time on this machine; 0: one per core.
    """
    left = dict(enumerate(items))
    if not left:
        return
    try:
        for index, answer in _in_parallel(work, left, min(jobs or _cores(), len(left))):
            del left[index]
            yield index, answer
    except BrokenExecutor:
        for index, item in left.items():
            try:
                yield from _in_parallel(work, {index: item}, 1)
            except BrokenExecutor:
                yield index, None


def _cores() -> int:
    """Cores of this machine that this process may use; two threads of one core count once."""
    from joblib import cpu_count

    with warnings.catch_warnings():  # where they cannot be told apart, all are counted
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def _in_parallel(
    work: Callable[[Item], Answer], items: dict[int, Item], jobs: int
) -> Generator[tuple[int, Answer], None, None]:
    from joblib import Parallel, delayed

    # One process would be this one (joblib's rule), where work could not be ended: of two, one is
    # given nothing to do.
    parallel = Parallel(
        n_jobs=max(2, jobs),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch=jobs if _is_local() else "all",
        max_nbytes=None,
        idle_worker_timeout=_IDLE_SECONDS,
        initializer=_follow,
        initargs=(os.getpid(),),
    )
    tasks = [delayed(_numbered)(work, index, item) for index, item in items.items()]
    with _environment():
        _start_tracker()
        with closing(parallel(tasks)) as found:
            yield from found


def _is_local() -> bool:
    """Whether the work is done by processes of joblib's own on this machine."""
    from joblib.parallel import LokyBackend, get_active_backend

    return isinstance(get_active_backend()[0], LokyBackend)


def _start_tracker() -> None:
    """The process in which joblib notes what is shared outlives a terminal, as it does a Ctrl-C:
    one that is started in its place knows of nothing, and says so in tracebacks."""
    from joblib.externals.loky.backend.resource_tracker import ensure_running

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _numbered(work: Callable[[Item], Answer], index: int, item: Item) -> tuple[int, Answer]:
    return index, work(item)


@contextmanager
def _environment() -> Iterator[None]:
    """Processes that start meanwhile import nothing from the current directory, and keep warnings
    about their own end to themselves."""
    settings = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _follow(parent: int) -> None:
    """What a worker does first: it leaves Ctrl-C to its parent, and ends when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        for folder in open_folders():
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
