"""Coverage-guided fuzzing of every loader with atheris: `pip install atheris`, then

    python scripts/fuzz.py npz --seconds 600 --corpus fuzz      # one target, in fuzz/npz
    python scripts/fuzz.py all --seconds 600 --corpus fuzz      # one after the other
    python scripts/fuzz.py scenario --longest 700               # short inputs, many a second

A killed session goes on from its corpus. Faults are counted by type and place, the first input of
each is kept in `<corpus>/<target>/faults`, and fuzzing goes on; `report.json` has the figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}specsim{os.sep}" in f.filename] or list(frames)
    last = ours[-1]
    return f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {last.name}"


def one(name: str, seconds: int, folder: Path, *, longest: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["specsim"]):
        from tests.fuzz_targets import TARGETS, fault_of
    target = TARGETS[name]
    corpus, faults = folder / "corpus", folder / "faults"
    for made in (corpus, faults):
        made.mkdir(parents=True, exist_ok=True)
    seeds = [seed for seed in target.seeds() if len(seed) <= longest]
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    scratch = Path(tempfile.mkdtemp(prefix="fuzz"))
    known: dict[str, int] = {}
    # The first input imports modules; those must be instrumented as well.
    with atheris.instrument_imports(include=["specsim"]):
        for seed in seeds:
            fault_of(target, seed, scratch)
    started, runs, slowest, saved_at = time.monotonic(), 0, 0.0, 0.0

    def save() -> None:
        body = {
            "target": name,
            "inputs": runs,
            "seconds": round(time.monotonic() - started, 1),
            "corpus": sum(1 for _ in corpus.iterdir()),
            "slowest_input_s": round(slowest, 3),
            "faults": known,
        }
        (folder / "report.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    def test(data: bytes) -> None:
        nonlocal runs, slowest, saved_at
        before = time.monotonic()
        error = fault_of(target, data, scratch)
        after = time.monotonic()
        runs += 1
        if after - before > slowest:
            slowest = after - before
            (folder / "slowest").write_bytes(data)
        if error is not None:
            place = place_of(error)
            if place not in known:
                (faults / hashlib.sha256(place.encode()).hexdigest()[:12]).write_bytes(data)
                print(f"FAULT {place}: {str(error)[:200]}", flush=True)
            known[place] = known.get(place, 0) + 1
        if after - saved_at > 5:
            saved_at = after
            save()

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={longest}",
        "-timeout=60",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=4096", str(corpus)], test)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help="a target of tests/fuzz_targets.py, or all")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--longest", type=int, default=65536, help="bytes of an input")
    parser.add_argument("--corpus", type=Path, default=Path("fuzz"))
    given = parser.parse_args()
    if given.target != "all":
        one(given.target, given.seconds, given.corpus / given.target, longest=given.longest)
        return 0
    from tests.fuzz_targets import TARGETS

    for name in TARGETS:
        command = [sys.executable, __file__, name, "--seconds", str(given.seconds)]
        command += ["--longest", str(given.longest)]
        code = subprocess.run([*command, "--corpus", str(given.corpus)], check=False).returncode  # noqa: S603
        print(f"{name}: ended with {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
