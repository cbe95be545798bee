"""Waiting lines: a queue of classes is a list kept sorted by class, whatever is done to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from specsim.engine.queue import ClassQueue, make_queue

CLASSES = 3


@dataclass(eq=False)
class Waiting:
    index: int
    priority: int


def by_class(line: list[Waiting]) -> list[Waiting]:
    return [one for c in range(CLASSES) for one in line if one.priority == c]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_done_it_is_the_sorted_line(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queue, line = ClassQueue(CLASSES), []
    for n in range(300):
        what = rng.choice(["join", "join", "back", "take", "leave"])
        one = Waiting(n, int(rng.integers(CLASSES)))
        if what == "join":
            queue.append(one)
            line.append(one)
        elif what == "back":
            queue.appendleft(one)
            line.insert(0, one)
        elif line and what == "take":
            first = by_class(line)[0]
            assert queue.popleft() is first
            line.remove(first)
        elif line:
            gone = line[int(rng.integers(len(line)))]
            queue.remove(gone)
            line.remove(gone)
        assert list(queue) == by_class(line)
        assert len(queue) == len(line)
        assert [queue[i] for i in range(len(queue))] == by_class(line)
    assert len(line) > 10
    queue.clear()
    assert len(queue) == 0
    assert list(queue) == []


def test_an_empty_queue_has_no_first() -> None:
    queue = ClassQueue(CLASSES)
    with pytest.raises(IndexError, match="empty"):
        queue.popleft()
    queue.append(Waiting(0, 2))
    with pytest.raises(IndexError, match="out of range"):
        _ = queue[1]


def test_one_class_needs_no_classes() -> None:
    assert isinstance(make_queue(1), deque)
    assert isinstance(make_queue(2), ClassQueue)
