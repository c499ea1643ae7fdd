"""The same work on many items at once: on the cores of this machine, or on a cluster.

The only door of joblib and Dask. Items are independent, their answers come as they are ready, and
an item whose process is ended by the system (out of memory, a machine of the cluster that leaves)
is told as :class:`Lost` while the others go on.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from memplan.errors import RuntimeUnavailableError
from memplan.processes.scratch import open_folders

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_POLL_SECONDS = 0.5
# Workers that have nothing to do end after so long; between two calls they are used again.
_IDLE_SECONDS = 60
_CONNECT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands for the answer of an item whose process ended before it gave one; ``reason`` is for
    people."""

    reason: str


class Workers(Protocol):
    """Where work is done."""

    def answers(
        self, work: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[int, Answer | Lost], None, None]:
        """Index and answer of every item, as they are ready, in any order.

        ``work`` is a function of a module, and raises nothing; what it takes and gives can be
        pickled.
        """
        ...


def physical_cores() -> int:
    """Cores of this machine that this process may use; two threads of one core count once."""
    from joblib import cpu_count

    with warnings.catch_warnings():  # where they cannot be told apart, all are counted
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Processes on this machine, ``jobs`` of which work at a time.

    They end when this process does, however it ends, and a Ctrl-C is left to it. No work is done
    in this process itself, where it could not be ended.
    """

    jobs: int

    def answers(
        self, work: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[int, Answer | Lost], None, None]:
        """See :class:`Workers`. A process that is ended takes those beside it with it, so what
        they had not answered is done once more, one item at a time."""
        left = dict(enumerate(items))
        try:
            jobs = min(self.jobs, len(items))
            for index, answer in _in_processes(work, list(left.items()), jobs):
                del left[index]
                yield index, answer
        except BrokenExecutor:
            for index, item in list(left.items()):
                try:
                    yield from _in_processes(work, [(index, item)], 1)
                except BrokenExecutor:
                    yield index, Lost("its process was ended by the system (out of memory?)")


@dataclass(frozen=True, slots=True)
class ConfiguredWorkers:
    """What ``joblib.parallel_config`` says: for callers that brought a backend of their own."""

    def answers(
        self, work: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[int, Answer | Lost], None, None]:
        """See :class:`Workers`."""
        from joblib import Parallel, delayed

        tasks = (delayed(_numbered)(work, index, item) for index, item in enumerate(items))
        with closing(Parallel(return_as="generator", batch_size=1)(tasks)) as found:
            yield from found


@dataclass(frozen=True, slots=True)
class DaskWorkers:
    """The workers of a Dask cluster whose scheduler has the ``address``; empty: the cluster of this
    process's current client.
    """

    address: str = ""

    def answers(
        self, work: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[int, Answer | Lost], None, None]:
        """See :class:`Workers`.

        Raises:
            RuntimeUnavailableError: Dask is not installed, or no scheduler answers.
        """
        # Not through joblib: its backend waits for ever for an item whose worker is lost.
        with _dask_client(self.address) as client:
            from distributed import as_completed

            futures = {
                client.submit(work, item, pure=False): index for index, item in enumerate(items)
            }
            lost: list[int] = []
            try:
                for future in as_completed(list(futures), loop=client.loop):
                    answer = _result(future)
                    # An answer that is still held would be computed anew if its worker were lost.
                    future.release()
                    index = futures.pop(future)
                    if isinstance(answer, Lost):
                        lost.append(index)
                    else:
                        yield index, answer
                # Once more, each alone: it may have been another item that its worker died of.
                for index in lost:
                    future = client.submit(work, items[index], pure=False)
                    futures[future] = index
                    yield index, _result(future)
            finally:
                client.cancel(list(futures))


def workers_for(backend: str, address: str, jobs: int) -> Workers:
    """The workers of a ``backend``: ``local``, ``dask`` or ``joblib``.

    Args:
        backend: its name.
        address: of the cluster's scheduler.
        jobs: how many items at a time on this machine; 0: one per core.
    """
    if backend == "dask":
        return DaskWorkers(address)
    return ConfiguredWorkers() if backend == "joblib" else LocalWorkers(jobs or physical_cores())


def _in_processes(
    work: Callable[[Item], Answer], items: Sequence[tuple[int, Item]], jobs: int
) -> Generator[tuple[int, Answer], None, None]:
    from joblib import Parallel, delayed

    # One process would be this one (joblib's rule): of two, one is given nothing to do.
    parallel = Parallel(
        n_jobs=max(2, jobs),
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch=jobs,
        max_nbytes=None,
        idle_worker_timeout=_IDLE_SECONDS,
        initializer=_follow,
        initargs=(os.getpid(),),
    )
    with _environment():
        _start_tracker()
        tasks = (delayed(_numbered)(work, index, item) for index, item in items)
        with closing(parallel(tasks)) as found:
            yield from found


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


@contextmanager
def _dask_client(address: str) -> Iterator[Client]:
    try:
        from distributed import Client, get_client
    except ImportError:
        raise RuntimeUnavailableError(
            "Dask is not installed", "pip install 'memplan[dask]', here and on the cluster"
        ) from None
    try:
        client = (
            Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
            if address
            else get_client()
        )
    except (OSError, ValueError) as error:
        where = f"at {address}" if address else "in this process"
        raise RuntimeUnavailableError(
            f"no Dask scheduler {where}: {error}",
            "give the address of one: --address tcp://HOST:8786",
        ) from None
    try:
        yield client
    finally:
        if address:
            client.close()


def _result(future: Any) -> Any:
    """The answer of a Dask future, or why there is none."""
    from concurrent.futures import CancelledError

    try:
        return future.result()
    except (Exception, CancelledError) as error:
        kind = type(error).__name__
        return Lost(f"its worker was lost, or cannot do it ({kind}: {error})")
