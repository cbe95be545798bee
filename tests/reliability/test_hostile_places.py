"""Places that do not help: full disks, other processes, odd clocks, locales, read-only profiles."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specsim.cli import main
from specsim.study.store import is_complete

ROOT = Path(__file__).parents[2]
FEW = ("--set", "stop.num_requests=30", "--set", "question.concurrency=4", "--jobs", "1")
RUN = ("run", "hello", *FEW, "--quiet")


def start(
    *argv: str, limit: Callable[[], None] | None = None, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "specsim", *argv],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        preexec_fn=limit,
    )


def stored(out: Path) -> Path:
    (path,) = out.iterdir()
    assert is_complete(path)
    return path


@pytest.fixture(scope="module")
def in_peace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed, with the kernels compiled for those that follow."""
    out = tmp_path_factory.mktemp("peace")
    assert main([*RUN, "--out", str(out)]) == 0
    return stored(out)


def test_a_full_disk_is_said_and_leaves_nothing(in_peace: Path, tmp_path: Path) -> None:
    # No file may grow past 3,000 bytes, as on a disk with that much left.
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    process = start(*RUN, "--out", str(tmp_path / "runs"), limit=limit)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "cannot be written" in err
    assert "choose another place with --out" in err
    assert "Traceback" not in err
    assert list((tmp_path / "runs").iterdir()) == []


def test_two_processes_in_one_folder_both_succeed(in_peace: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    both = [start(*RUN, "--out", str(out)) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (stored(out) / name).read_bytes() == (in_peace / name).read_bytes()


def test_a_clock_that_jumps_changes_no_number(
    in_peace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(10**9))

    def jumpy() -> float:
        n = next(jumps)
        return 1e9 - n * 3600.0 if n % 2 else 1e9 + n * 86_400.0

    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, jumpy)
    assert main([*RUN, "--out", str(tmp_path)]) == 0
    monkeypatch.undo()
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (stored(tmp_path) / name).read_bytes() == (in_peace / name).read_bytes()


ODD = [
    {"LC_ALL": "C", "TZ": "Pacific/Kiritimati", "PYTHONUTF8": "0"},
    {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
    {"LC_ALL": "de_DE.UTF-8", "LANG": "C", "TZ": "", "PYTHONIOENCODING": "ascii"},
]


@pytest.mark.parametrize(
    "environment",
    [pytest.param(ODD[0]), *(pytest.param(e, marks=pytest.mark.slow) for e in ODD[1:])],
    ids=lambda e: e["LC_ALL"],
)
def test_locale_and_time_zone_change_nothing(
    environment: dict[str, str], in_peace: Path, tmp_path: Path
) -> None:
    process = start(*RUN, "--out", str(tmp_path), **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "no_speculation" in out
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (stored(tmp_path) / name).read_bytes() == (in_peace / name).read_bytes()


WATCHED = """
import sys
from specsim.cli import main
wrote = []
def hook(event, args):
    if event == "open" and isinstance(args[0], str) and args[2] & 3 and "profiles" in args[0]:
        wrote.append(args[0])
    if event in ("os.mkdir", "os.rename", "os.remove") and "profiles" in str(args[0]):
        wrote.append(str(args[0]))
sys.addaudithook(hook)
code = main(sys.argv[1:])
assert not wrote, wrote
sys.exit(code)
"""


def test_nothing_is_ever_written_among_the_profiles(tmp_path: Path) -> None:
    # As root a read-only folder can be written all the same, so this looks at what is opened.
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *RUN, "--out", str(tmp_path / "runs")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_climbs_out_is_not_written(tmp_path: Path, capsys) -> None:
    # A scenario's name becomes no path, and a policy's neither.
    for name in ("../../escaped", "a/b", "..", "/etc/x"):
        assert main([*RUN, "--set", f"name={name}", "--out", str(tmp_path / "runs")]) == 2
        assert "name" in capsys.readouterr().err
    assert not (tmp_path / "escaped").exists()


def test_what_users_write_is_text_in_a_report(tmp_path: Path, capsys) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    given = ["--set", f"description={evil!r}", "--out", str(tmp_path)]
    assert main([*RUN, *given]) == 0
    assert main(["report", str(stored(tmp_path))]) == 0
    page = (stored(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    assert "alert(1)" in page  # it is shown all the same
