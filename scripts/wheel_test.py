"""Build the wheel, install it into a clean environment, and use it from another folder.

    python scripts/wheel_test.py dist

What it does there is what a newcomer does who has no checkout: run a shipped scenario, write one of
their own, prove a scheduler, draw a report. Everything that it needs must be in the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ["--version"],
    ["list", "profiles"],
    ["run", "hello", "--out", "runs"],
    ["init", "mine.yaml"],
    ["check", "mine.yaml", "flash_120tps", "lag"],
    ["trace", "lint", "smollm2_markov_t1"],
    ["lossless", "my_scheduler:LoadThreshold", "--samples", "2000"],
    ["schema"],
    ["completion", "bash"],
)


def say(text: str) -> None:
    print(text, flush=True)


def call(argv: list[str], folder: Path, environment: dict[str, str]) -> float:
    started = time.monotonic()
    done = subprocess.run(  # noqa: S603
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds


def main() -> int:
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    for old in dist.glob("*.whl"):
        old.unlink()
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(dist), str(ROOT)]
    say(f"built in {call(build, ROOT, clean):.0f} s")
    (wheel,) = dist.glob("*.whl")
    say(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        binaries = folder / "env" / "bin"
        install = [str(binaries / "python"), "-m", "pip", "install", "-q", str(wheel)]
        say(f"installed in {call(install, folder, clean):.0f} s")
        work = folder / "elsewhere"
        work.mkdir()
        example = ROOT / "examples" / "my_scheduler.py"
        (work / example.name).write_bytes(example.read_bytes())
        for argv in COMMANDS:
            seconds = call([str(binaries / "specsim"), *argv], work, clean)
            say(f"{seconds:6.1f} s  specsim {' '.join(argv)}")
        (run,) = (work / "runs").iterdir()
        for argv in (["report", str(run)], ["rerun", str(run)]):
            say(
                f"{call([str(binaries / 'specsim'), *argv], work, clean):6.1f} s  specsim {argv[0]}"
            )
    say("the wheel works outside the repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
