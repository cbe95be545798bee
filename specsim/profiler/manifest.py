"""What was timed, on what: written beside the rows, and held against a resumed sweep."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specsim import __version__
from specsim.errors import InputError
from specsim.inputs import why
from specsim.jsontext import read_json

DEVICE_SAME = (
    "device",
    "shape",
    "tensor_parallel",
    "dtype",
    "kv",
    "gamma",
    "draft_layers",
    "threads",
    "clock",
    "seed",
)
"""Fields that must agree before rows of a device may be added to a file."""
SERVER_SAME = ("server", "model", "load")
"""The same of a server."""


def device_facts(torch: Any, device: str) -> dict[str, Any]:
    """Describe the device: name, memory, versions, and on CUDA the clocks if they can be read."""
    facts: dict[str, Any] = {
        "specsim": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
    }
    if device == "cpu":
        facts["name"] = _processor()
        facts["threads"] = int(torch.get_num_threads())
        facts["cores"] = os.cpu_count()
        return facts
    properties = torch.cuda.get_device_properties(0)
    facts["name"] = str(properties.name)
    facts["memory_bytes"] = int(properties.total_memory)
    facts["cuda"] = str(torch.version.cuda)
    facts["clocks"] = _clocks()
    return facts


def manifest_path(rows: Path) -> Path:
    """Return where the manifest of a file of rows lies."""
    return rows.with_name(rows.name + ".manifest.json")


def read_manifest(rows: Path) -> dict[str, Any] | None:
    """Return the manifest beside `rows`, or None.

    Raises:
        InputError: it cannot be read.
    """
    path = manifest_path(rows)
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {why(error)}") from error
    data, problem = read_json(text, where=str(path))
    if problem is not None:
        raise InputError(str(problem))
    if not isinstance(data, dict):
        raise InputError(f"{path}: must be an object")
    return data


def check_same(
    rows: Path, found: Mapping[str, Any], now: Mapping[str, Any], same: Sequence[str]
) -> None:
    """Refuse to add rows of one set-up to those of another.

    Raises:
        InputError: one of the fields `same` differs.
    """
    for name in same:
        before, after = found.get(name), now.get(name)
        if name == "device":
            before, after = (found.get(name) or {}).get("name"), (now.get(name) or {}).get("name")
        if json.loads(json.dumps(before)) != json.loads(json.dumps(after)):
            raise InputError(
                f"{rows} was begun with {name} {json.dumps(before)}, and this is "
                f"{json.dumps(after)}; give another --out, or remove the file"
            )


def write_manifest(rows: Path, data: Mapping[str, Any]) -> None:
    """Write the manifest beside `rows`, whole or not at all."""
    path = manifest_path(rows)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _clocks() -> str:
    """Clocks and power limit as nvidia-smi says them; a remark where it cannot be run."""
    command = [
        "nvidia-smi",
        "--query-gpu=clocks.sm,clocks.mem,clocks.max.sm,power.limit,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return f"not read: {type(error).__name__}"
    return done.stdout.strip()


def described(manifest: Mapping[str, Any]) -> str:
    """Return in words what a manifest says was timed, on what."""
    if "server" in manifest:
        return (
            f"specsim profile run --server: {manifest.get('model')} at {manifest['server']}, whole "
            f"steps read off {manifest.get('load', {}).get('repeats')} batches of streams"
        )
    device, shape = manifest.get("device", {}), manifest.get("shape", {})
    experts = f", {shape['experts']} experts" if shape.get("experts") else ""
    return (
        f"specsim profile run on {device.get('name', 'an unnamed device')} (torch "
        f"{device.get('torch', 'unknown')}, {manifest.get('dtype')}), random weights: "
        f"{shape.get('layers')} layers of width {shape.get('d_model')}{experts}, tensor parallel "
        f"{manifest.get('tensor_parallel')}, {manifest.get('kv')} KV, "
        f"{manifest.get('repeats')} interleaved repeats"
    )
