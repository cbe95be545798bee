"""Kill -9 at random moments of run, sweep, capture and train, and look what is left.

    python scripts/kill_test.py sweep --kills 25 --out kills     # one verb
    python scripts/kill_test.py all --kills 25 --out kills       # 25 of each, 100 in all

Each round starts the command in a process group of its own, kills the whole group after a random
part of the time that it takes when left alone, and checks what is on disk:

  run      the folder of runs holds the whole run or none, never a part; rerun in peace it has the
           bytes of a run that nobody killed
  sweep    every point finished before the kill is still there, and never run again; in the end
           the table has the bytes of one that nobody killed
  capture  the trace file is whole or absent; in the end it has the same arrays
  train    the checkpoint is whole or absent and never goes back; in the end it is at the last step
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SCENARIO = ["--set", "stop.num_requests=60", "--set", "question.concurrency=8"]
STUDY = """\
name: kill
scenario: hello
set: {stop.num_requests: 40, question.concurrency: 8}
plan: {kind: grid, axes: {seed: [1, 2, 3, 4, 5, 6]}}
policies: [fixed_2, async_topk]
"""


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "specsim", *argv]


def start(argv: list[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603
            argv, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def finish(argv: list[str], folder: Path) -> float:
    """Let a command end; return the seconds that it took."""
    started = time.monotonic()
    code = start(argv, folder).wait()
    if code:
        raise AssertionError(f"{' '.join(argv)} ended with {code}; see {folder / 'log'}")
    return time.monotonic() - started


def kill(argv: list[str], folder: Path, after_s: float) -> bool:
    """Kill a command with all its processes; say whether it was still running."""
    process = start(argv, folder)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=after_s)
    running = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return running


class Verb:
    """A command to kill, and what must hold after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    argv: ClassVar[list[str]]

    def look(self) -> None:
        """Check what a kill has left."""

    def end(self) -> None:
        """Check what there is when the command was let alone at last."""


class Run(Verb):
    argv: ClassVar[list[str]] = command(
        "run", "hello", *SCENARIO, "--jobs", "2", "--out", "runs", "--quiet"
    )

    def look(self) -> None:
        from specsim.study.store import read_manifest, read_summary

        for path in (self.folder / "runs").glob("[!.]*"):
            names = sorted(p.name for p in path.iterdir())
            assert names == [
                "manifest.json", "requests.parquet", "steps.parquet", "summary.json",
            ], names  # fmt: skip
            read_summary(path)
            assert read_manifest(path)["status"] == "complete"

    def end(self) -> None:
        (path,) = (self.folder / "runs").glob("[!.]*")
        hidden = list((self.folder / "runs").glob(f".{path.name}.*"))
        assert not hidden, hidden
        code = subprocess.run(  # noqa: S603
            command("rerun", str(path), "--quiet"),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=False,
        ).returncode
        assert code == 0


class Sweep(Verb):
    argv: ClassVar[list[str]] = command(
        "sweep", "kill.yaml", "--jobs", "2", "--out", "runs", "--quiet"
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "kill.yaml").write_text(STUDY)
        self.seen: dict[Path, tuple[int, bytes]] = {}

    def shards(self) -> list[Path]:
        return sorted((self.folder / "runs" / "points").rglob("[!.]*.parquet"))

    def look(self) -> None:
        from specsim.study.points import read_shard

        for path, (changed_ns, content) in self.seen.items():
            assert path.read_bytes() == content, f"{path} was lost or changed"
            assert path.stat().st_mtime_ns == changed_ns, f"{path} was run again"
        for path in self.shards():
            finished = read_shard(path)
            assert finished is not None, f"{path} is torn"
            assert finished.status == "ok", finished.error
            self.seen[path] = (path.stat().st_mtime_ns, path.read_bytes())
        # Half of the points go, so that there is something to do in the next round.
        if len(self.shards()) == 12:
            for path in self.shards()[::2]:
                path.unlink()
                del self.seen[path]

    def end(self) -> None:
        assert len(self.shards()) == 12
        peace = self.folder / "peace"
        peace.mkdir()
        (peace / "kill.yaml").write_text(STUDY)
        finish(self.argv, peace)
        for name in ("table.csv", "table.parquet", "summary.json"):
            (one,) = (self.folder / "runs").glob(f"kill-*/{name}")
            (other,) = (peace / "runs").glob(f"kill-*/{name}")
            assert one.read_bytes() == other.read_bytes(), name


TINY = str(Path(__file__).parent / "kill_tiny.py")


class Capture(Verb):
    argv: ClassVar[list[str]] = [sys.executable, TINY, "capture", "trace.npz"]

    def look(self) -> None:
        from specsim.acceptance.trace import load_trace

        path = self.folder / "trace.npz"
        if path.exists():
            load_trace(path)
            path.unlink()  # so that the next round captures again

    def end(self) -> None:
        from specsim.acceptance.trace import load_trace

        finish([sys.executable, TINY, "capture", "peace.npz"], self.folder)
        one, other = (load_trace(self.folder / n) for n in ("trace.npz", "peace.npz"))
        assert np.array_equal(one.confidence_NG, other.confidence_NG)
        assert np.array_equal(one.num_accepted_N, other.num_accepted_N)


class Train(Verb):
    argv: ClassVar[list[str]] = [sys.executable, TINY, "train", "checkpoint.safetensors"]
    last = 0

    def look(self) -> None:
        from safetensors.torch import load_file

        path = self.folder / "checkpoint.safetensors"
        if path.exists():
            step = int(load_file(str(path))["schedule.step"])
            assert step >= self.last, f"step {step} after {self.last}"
            self.last = step
        if self.last >= 40:
            path.unlink()
            self.last = 0

    def end(self) -> None:
        from safetensors.torch import load_file

        path = self.folder / "checkpoint.safetensors"
        assert int(load_file(str(path))["schedule.step"]) == 40


VERBS: dict[str, Callable[[Path], Verb]] = {
    "run": Run, "sweep": Sweep, "capture": Capture, "train": Train,
}  # fmt: skip


def rounds(name: str, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill one verb again and again; return the account."""
    finish(VERBS[name](folder / f"{name}-warm").argv, folder / f"{name}-warm")
    took_s = finish(VERBS[name](folder / f"{name}-timed").argv, folder / f"{name}-timed")
    verb = VERBS[name](folder / name)
    rng = np.random.default_rng(seed)
    alive, late = 0, 0
    while alive < kills:
        if kill(verb.argv, verb.folder, float(rng.uniform(0.02, 1.0)) * took_s):
            alive += 1
        else:
            late += 1  # it had ended already; that is no kill
        verb.look()
        print(f"{name}: {alive} kills, {late} too late", flush=True)
    finish(verb.argv, verb.folder)
    verb.end()
    return {"verb": name, "kills": alive, "too_late": late, "undisturbed_s": round(took_s, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=[*VERBS, "all"])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("kills"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in VERBS if given.verb == "all" else [given.verb]:
        account = rounds(name, given.out.resolve(), given.kills, given.seed)
        report = given.out / f"{name}.json"
        report.write_text(json.dumps(account, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {account}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
