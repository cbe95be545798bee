"""Where requests wait: first come first served, or class by class."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specsim.engine.request import Request


class Queue(Protocol):
    """What a rank needs of a queue; `collections.deque` is one."""

    def append(self, request: Request, /) -> None:
        """Join at the end."""
        ...

    def appendleft(self, request: Request, /) -> None:
        """Go back to the front."""
        ...

    def popleft(self) -> Request:
        """Take the first."""
        ...

    def remove(self, request: Request, /) -> None:
        """Take `request` out, wherever it stands."""
        ...

    def clear(self) -> None:
        """Empty it."""
        ...

    def __getitem__(self, index: int, /) -> Request: ...

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class ClassQueue:
    """Priority classes: the lowest class first, first come first served within a class.

    Strict: a class waits for as long as one before it has requests. `Cluster` names classes that
    starve.
    """

    def __init__(self, num_classes: int) -> None:
        self._classes: tuple[deque[Request], ...] = tuple(deque() for _ in range(num_classes))

    def append(self, request: Request, /) -> None:
        """Join at the end of its class."""
        self._classes[request.priority].append(request)

    def appendleft(self, request: Request, /) -> None:
        """Go back to the front of its class."""
        self._classes[request.priority].appendleft(request)

    def popleft(self) -> Request:
        """Take the first of the first class that has any."""
        for waiting in self._classes:
            if waiting:
                return waiting.popleft()
        raise IndexError("an empty queue")

    def remove(self, request: Request, /) -> None:
        """Take `request` out of its class."""
        self._classes[request.priority].remove(request)

    def clear(self) -> None:
        """Empty every class."""
        for waiting in self._classes:
            waiting.clear()

    def __getitem__(self, index: int, /) -> Request:
        for waiting in self._classes:
            if index < len(waiting):
                return waiting[index]
            index -= len(waiting)
        raise IndexError("queue index out of range")

    def __iter__(self) -> Iterator[Request]:
        for waiting in self._classes:
            yield from waiting

    def __len__(self) -> int:
        return sum(map(len, self._classes))


def make_queue(num_classes: int) -> Queue:
    """Make a queue for that many priority classes."""
    return deque() if num_classes <= 1 else ClassQueue(num_classes)
