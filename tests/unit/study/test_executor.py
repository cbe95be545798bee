"""Tasks settle whatever they do: raise, kill their process, or run on a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.study.executor import Place, make_executor, run_tasks, settle_tasks


def square(n: int) -> int:
    if n == 3:
        raise ValueError("three")
    return n * n


def die_at_five(n: int) -> int:
    if n == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return n * n


def pid(n: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_is_told_and_not_fatal(jobs: int) -> None:
    settled = {s.index: s for s in settle_tasks(Place(jobs), square, list(range(8)))}
    assert sorted(settled) == list(range(8))
    assert [i for i, s in settled.items() if s.error] == [3]
    assert isinstance(settled[3].error, ValueError)
    assert {i: s.result for i, s in settled.items() if i != 3} == {
        n: n * n for n in range(8) if n != 3
    }


def test_only_the_task_that_kills_its_process_fails() -> None:
    found = list(settle_tasks(Place(2), die_at_five, list(range(12))))
    assert Counter(s.index for s in found) == Counter(range(12))  # each exactly once
    assert [s.index for s in found if s.error] == [5]
    assert {s.index: s.result for s in found if not s.error} == {
        n: n * n for n in range(12) if n != 5
    }


def test_run_tasks_raises_the_first_error() -> None:
    with pytest.raises(ValueError, match="three"):
        list(run_tasks(make_executor(1), square, [1, 3, 4]))


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:  # a parent of its own, which is then killed
        executor = make_executor(2)
        (tmp_path / "pid").write_text(str(executor.submit(pid, 0).result()))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    worker = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        time.sleep(0.1)
    else:
        os.kill(worker, signal.SIGKILL)
        pytest.fail("the worker of a killed process goes on")


def test_an_absent_cluster_is_a_mistake_that_says_what_to_do() -> None:
    pytest.importorskip("distributed")
    from specsim.study.executor import connect

    with pytest.raises(InputError, match="no Dask scheduler answers at tcp"):
        connect("tcp://127.0.0.1:9", timeout_s=0.5)


INTERRUPTED = """
import sys, time
from specsim.study.executor import make_executor
if __name__ == "__main__":
    executor = make_executor(2)
    futures = [executor.submit(time.sleep, 60) for _ in range(2)]
    print("submitted", flush=True)
    try:
        futures[0].result()
    except BaseException as error:
        executor.shutdown(wait=True, cancel_futures=True)
        sys.exit(9)
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.15, 1.5])
def test_workers_end_at_an_interrupt_without_a_word(wait_s: float, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "submitted\n"
    time.sleep(wait_s)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 9
    assert err == ""
