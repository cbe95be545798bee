"""A stored run as a timeline for ui.perfetto.dev: requests as tracks, steps as slices, counters.

Times are simulated: nanoseconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specsim.errors import InputError
from specsim.metrics.record import Columns, Status

COUNTERS = ("num_requests", "budget_tokens", "waiting", "kv_tokens", "kv_blocks")
"""Counters of every rank, sampled at the ends of its steps."""

_SEQUENCE = 1
_FRESH = 1  # SEQ_INCREMENTAL_STATE_CLEARED


def write_timeline(
    run: Path,
    out: Path,
    *,
    policy: str | None = None,
    concurrency: int | None = None,
    until_s: float | None = None,
) -> int:
    """Write the timeline of one policy under one load of a stored run; return its packets.

    Args:
        run: the folder of a run.
        out: the file, usually `*.pftrace`.
        policy: which policy; may be left out if there is one.
        concurrency: which load; may be left out if there is one.
        until_s: leave out what begins later; None for the whole run.

    Raises:
        InputError: there is no such run, policy or load, or the file cannot be written.
    """
    requests = _columns(run / "requests.parquet", policy, concurrency)
    steps = _columns(run / "steps.parquet", policy, concurrency)
    count = 0
    try:
        with out.open("wb") as file:
            for packet in timeline(requests, steps, until_s=until_s):
                file.write(packet)
                count += 1
    except OSError as error:
        raise InputError(
            f"{out}: the timeline cannot be written: {error.strerror or error}"
        ) from error
    return count


def _columns(path: Path, policy: str | None, concurrency: int | None) -> Columns:
    if path.parent.is_dir() and not path.is_file():
        raise InputError(
            f"{path.parent}: has no {path.name}, which a timeline is made of; run the scenario "
            "again with --set record=steps"
        )
    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path.parent}: holds no run ({path.name}: {error})") from error
    for name, wanted in (("policy", policy), ("concurrency", concurrency)):
        found = [v for v in table[name].unique().to_pylist() if v is not None]
        if wanted is None and len(found) > 1:
            raise InputError(
                f"{path.parent}: holds several values of {name} ({', '.join(map(str, found))}); "
                "choose one"
            )
        if wanted is not None:
            if wanted not in found:
                raise InputError(
                    f"{path.parent}: has no {name} {wanted}; legal are {', '.join(map(str, found))}"
                )
            table = table.filter(pc.equal(table[name].cast("string"), str(wanted)))
    return {
        name: table[name].to_numpy()
        for name in table.column_names
        if name not in ("policy", "concurrency")
    }


def timeline(requests: Columns, steps: Columns, *, until_s: float | None = None) -> Iterator[bytes]:
    """Yield the packets of a trace, each a serialised `Trace` of one packet; their joint is one.

    A rank is a process with a track of steps (the wait for a lockstep group's slowest rank is a
    slice of its own) and one track a counter; a request is a track with slices `waiting`,
    `prefill` and `decode`. A request that was preempted or moved shows so in its arguments.

    Args:
        requests: the ledger.
        steps: the step log.
        until_s: leave out what begins later.
    """
    writer = _Writer()
    yield from writer.steps(_before(steps, steps["end_s"] - steps["duration_s"], until_s))
    yield from writer.requests(_before(requests, requests["arrival_s"], until_s))


def _before(columns: Columns, start_s: Any, until_s: float | None) -> Columns:
    if until_s is None:
        return columns
    return {name: column[start_s <= until_s] for name, column in columns.items()}


class _Writer:
    """Makes packets; tracks get their ids in the order of their making."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

        self._trace, self._event = Trace, TrackEvent
        self._tracks = 0
        self._fresh = True

    def _packet(self) -> tuple[Any, Any]:
        trace = self._trace()
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if self._fresh:
            packet.sequence_flags = _FRESH
            self._fresh = False
        return trace, packet

    def _track(
        self, name: str, *, parent: int = 0, counter: str = "", process: int = 0
    ) -> tuple[int, bytes]:
        self._tracks += 1
        trace, packet = self._packet()
        track = packet.track_descriptor
        track.uuid = self._tracks
        if process:
            track.process.pid = process
            track.process.process_name = name
        else:
            track.name = name
            track.parent_uuid = parent
        if counter:
            track.counter.unit_name = counter
        return self._tracks, trace.SerializeToString()

    def _slice(
        self, track: int, name: str, start_s: float, end_s: float, **said: int | str
    ) -> Iterator[bytes]:
        trace, packet = self._packet()
        packet.timestamp = round(start_s * 1e9)
        event = packet.track_event
        event.type, event.track_uuid = self._event.TYPE_SLICE_BEGIN, track
        event.name = name
        for key, value in said.items():
            note = event.debug_annotations.add()
            note.name = key
            if isinstance(value, str):
                note.string_value = value
            else:
                note.int_value = value
        yield trace.SerializeToString()
        trace, packet = self._packet()
        packet.timestamp = round(end_s * 1e9)
        packet.track_event.type = self._event.TYPE_SLICE_END
        packet.track_event.track_uuid = track
        yield trace.SerializeToString()

    def _count(self, track: int, at_s: float, value: float) -> bytes:
        trace, packet = self._packet()
        packet.timestamp = round(at_s * 1e9)
        packet.track_event.type = self._event.TYPE_COUNTER
        packet.track_event.track_uuid = track
        packet.track_event.double_counter_value = value
        found: bytes = trace.SerializeToString()
        return found

    def steps(self, steps: Columns) -> Iterator[bytes]:
        """Yield ranks, their steps and their counters."""
        count_T = np.maximum(steps["num_requests"], 1)
        budget_T = np.where(steps["num_requests"] > 0, 1 + steps["verified"] / count_T, 0.0)
        for rank in np.unique(steps["rank"]).tolist():
            process, packet = self._track(f"rank {rank}", process=rank + 1)
            yield packet
            track, packet = self._track("steps", parent=process)
            yield packet
            counters = {}
            for name in COUNTERS:
                unit = "tokens" if name.endswith("tokens") else "count"
                counters[name], packet = self._track(name, parent=process, counter=unit)
                yield packet
            for at in np.flatnonzero(steps["rank"] == rank).tolist():
                row = {name: column[at].item() for name, column in steps.items()}
                row["budget_tokens"] = float(budget_T[at])
                yield from self._step(track, row)
                for name, counter in counters.items():
                    yield self._count(counter, row["end_s"], row[name])

    def _step(self, track: int, row: dict[str, Any]) -> Iterator[bytes]:
        start_s = row["end_s"] - row["duration_s"]
        said = {
            name: int(row[name])
            for name in (
                "num_requests",
                "verified",
                "accepted",
                "emitted",
                "charged",
                "prefill_tokens",
                "preempted",
            )
        }
        name = f"R={said['num_requests']} K={said['verified']}"
        if said["prefill_tokens"]:
            name += f" P={said['prefill_tokens']}"
        yield from self._slice(track, name, start_s, start_s + row["own_s"], **said)
        if row["own_s"] < row["duration_s"]:
            yield from self._slice(track, "wait", start_s + row["own_s"], row["end_s"])

    def requests(self, requests: Columns) -> Iterator[bytes]:
        """Yield a track a request, with the parts of its life; what is not over has no slice."""
        if len(requests["request"]) == 0:
            return
        process, packet = self._track("requests", process=1_000_000)
        yield packet
        for at in range(len(requests["request"])):
            row = {name: column[at].item() for name, column in requests.items()}
            track, packet = self._track(f"request {row['request']}", parent=process)
            yield packet
            said: dict[str, int | str] = {
                name: row[name]
                for name in (
                    "rank",
                    "prompt_tokens",
                    "output_tokens",
                    "emitted",
                    "preemptions",
                    "reroutes",
                )
            }
            said["status"] = Status(row["status"]).name.lower()
            marks = [row["arrival_s"], row["admitted_s"], row["first_token_s"], row["closed_s"]]
            for name, start_s, end_s in zip(
                ("waiting", "prefill", "decode"), marks, marks[1:], strict=False
            ):
                if not np.isfinite(end_s):  # it left before, or it is not over
                    end_s = row["closed_s"]
                if np.isfinite(start_s) and np.isfinite(end_s) and end_s > start_s:
                    yield from self._slice(track, name, start_s, end_s, **said)
