"""Many independent tasks, in this process or in several; results in order either way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

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


def make_executor(jobs: int) -> Executor:
    """Return an executor with `jobs` processes; 1 stays in this one.

    Processes are spawned, so that no thread or lock of this one is copied into them.
    """
    if jobs <= 1:
        return SerialExecutor()
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


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
