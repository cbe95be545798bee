"""Many independent tasks: in this process, in several, or on a Dask cluster.

One seam, the interface of `concurrent.futures`. `run_tasks` wants every task to succeed;
`settle_tasks` also survives tasks that fail and processes that die.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Generic, TypeVar

from specsim.errors import InputError, MissingDependencyError

Task = TypeVar("Task")
Result = TypeVar("Result")


class SerialExecutor(Executor):
    """Runs each task when it is submitted, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` now; its error, if any, waits in the future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(frozen=True, slots=True)
class Place:
    """Where tasks run.

    Attributes:
        jobs: processes; 1 stays in this one. Of a cluster: tasks in flight at once.
        scheduler: address of a Dask scheduler; None for this machine.
    """

    jobs: int = 1
    scheduler: str | None = None

    def make(self) -> Executor:
        """Open an executor; the caller shuts it down.

        Raises:
            InputError: the cluster cannot be reached.
            MissingDependencyError: Dask is not installed.
        """
        return make_executor(self.jobs) if self.scheduler is None else connect(self.scheduler)

    @property
    def in_flight(self) -> int:
        """How many tasks are handed out at once: enough that nobody waits for this process."""
        if self.scheduler is not None:
            return max(256, 4 * self.jobs)
        return 1 if self.jobs <= 1 else 3 * self.jobs


def make_executor(jobs: int) -> Executor:
    """Return an executor with `jobs` processes; 1 stays in this one.

    Processes are spawned, so that no thread or lock of this one is copied into them, and end when
    this one does, however it does.
    """
    if jobs <= 1:
        return SerialExecutor()
    return _QuietPool(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )


class _QuietPool(ProcessPoolExecutor):
    """A pool whose workers end at Ctrl-C without a word, even while they start.

    A process inherits what its parent blocks, so SIGINT waits until `_begin_worker` has said what
    it does; Python's own handler would print a traceback of half an import.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand out a task; a process may be started for it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def connect(address: str, *, timeout_s: float = 20.0) -> Executor:
    """Return the executor of a Dask cluster; it needs specsim, its workers the same files.

    Args:
        address: of its scheduler, such as `tcp://10.0.0.1:8786`.
        timeout_s: how long to wait for it.

    Raises:
        InputError: it cannot be reached.
        MissingDependencyError: Dask is not installed.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingDependencyError(
            "a cluster needs the package dask[distributed], which is not installed; install "
            '"specsim-serving[cluster]"'
        ) from error
    try:
        client = Client(address, timeout=timeout_s, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address} within {timeout_s:g} s ({error}); start one "
            "with `dask scheduler`, and workers with `dask worker ADDRESS`"
        ) from error
    return _ClusterExecutor(client)


class _ClusterExecutor(Executor):
    """A Dask client with the interface of `concurrent.futures`, shut down together.

    Tasks find a user's own modules in the folder that this process was in, as they do here.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._folder = client, os.getcwd()
        # pure=False: a task writes a file, so it must not be taken for done by its name alone.
        self._inner: Executor = client.get_executor(pure=False, retries=2)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._inner.submit(_with_modules_of, self._folder, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures  # closing the client cancels what nobody waits for
        if wait:
            self._inner.shutdown(wait=True)
        self._client.close()


def _with_modules_of(folder: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn` where modules of a folder can be imported; a worker's own path comes first."""
    if folder not in sys.path:
        sys.path.append(folder)
    return fn(*args, **kwargs)


def _begin_worker() -> None:
    """Make this worker end at Ctrl-C, and when its parent is gone, even if that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


def run_tasks(
    executor: Executor, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[tuple[int, Result]]:
    """Yield `(index, result)` of every task as it ends, and raise the first error.

    Args:
        executor: where tasks run; not shut down here.
        function: a module-level function.
        tasks: its arguments, sent to the processes.
    """
    if isinstance(executor, SerialExecutor):
        for index, task in enumerate(tasks):
            yield index, executor.submit(function, task).result()
        return
    index_of = {executor.submit(function, task): index for index, task in enumerate(tasks)}
    try:
        for future in as_completed(index_of):
            yield index_of[future], future.result()
    finally:
        for future in index_of:
            future.cancel()


@dataclass(frozen=True, slots=True)
class Settled(Generic[Result]):
    """How one task ended.

    Attributes:
        index: of the task.
        result: what it returned; None if it failed.
        error: what it raised, or that its process died; None if it succeeded.
    """

    index: int
    result: Result | None
    error: BaseException | None


def settle_tasks(
    place: Place, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[Settled[Result]]:
    """Yield how every task ended, as it ends; nothing that a task does is fatal.

    If a process dies, all tasks in flight are suspects: a new pool runs them one by one, and the
    one that kills its process again has failed.

    Args:
        place: where tasks run.
        function: a module-level function; may be called again with the same task.
        tasks: its arguments.
    """
    waiting, suspects = deque(range(len(tasks))), deque[int]()
    running: dict[Future[Result], int] = {}
    executor = place.make()
    try:
        while waiting or suspects or running:
            alone = bool(suspects)
            while (suspects or waiting) and len(running) < (1 if alone else place.in_flight):
                index = (suspects or waiting).popleft()
                try:
                    running[executor.submit(function, tasks[index])] = index
                except BrokenExecutor:
                    suspects.append(index)
                    break
            done = wait(running, return_when=FIRST_COMPLETED).done if running else set()
            lost: list[int] = [] if running else [-1]
            for future in done:
                index, error = running.pop(future), _error(future)
                if isinstance(error, BrokenExecutor) and not alone:
                    lost.append(index)
                else:
                    lost += [-1] if isinstance(error, BrokenExecutor) else []
                    yield Settled(index, None if error else future.result(), error)
            if lost:
                suspects.extend(sorted({*lost, *running.values()} - {-1}))
                running.clear()
                executor.shutdown(wait=False, cancel_futures=True)
                executor = place.make()
    finally:
        for future in running:
            future.cancel()
        executor.shutdown(wait=False, cancel_futures=True)


def _error(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as error:
        return error
