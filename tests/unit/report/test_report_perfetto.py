"""A timeline is read back, and says what the run said."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from specsim.engine.faults import Patience
from specsim.engine.kv import KvSpec
from specsim.engine.lockstep import Lockstep
from specsim.engine.prefill import MixedPrefill
from specsim.engine.run import Batch, RunColumns, Stop
from specsim.errors import InputError
from specsim.report.perfetto import COUNTERS, timeline, write_timeline
from specsim.study.run import run_scenario
from tests.engine_world import small_run

pb2 = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the extra trace"
)


def fleet() -> RunColumns:
    return small_run(
        load=Batch(20),
        ranks=2,
        capacity=4,
        stop=Stop(),
        lockstep=Lockstep(),
        router="round_robin",
        prefill=MixedPrefill(32),
        kv=KvSpec(200, 4),
        patience=Patience(total_s=1.0),
    )


class Read:
    """A parsed trace: tracks by id, slices and counts by track."""

    def __init__(self, content: bytes) -> None:
        trace = pb2.Trace()
        trace.ParseFromString(content)
        self.names: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.slices: dict[int, list[tuple[int, int, str, dict[str, object]]]] = defaultdict(list)
        self.counts: dict[int, list[tuple[int, float]]] = defaultdict(list)
        opened: dict[int, tuple[int, str, dict[str, object]]] = {}
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.names
                self.names[track.uuid] = track.name or track.process.process_name
                self.parents[track.uuid] = track.parent_uuid
                continue
            event = packet.track_event
            at = event.track_uuid
            assert at in self.names, "an event before its track"
            if event.type == pb2.TrackEvent.TYPE_SLICE_BEGIN:
                assert at not in opened, "slices of a track overlap"
                said = {
                    note.name: note.string_value or note.int_value
                    for note in event.debug_annotations
                }
                opened[at] = (packet.timestamp, event.name, said)
            elif event.type == pb2.TrackEvent.TYPE_SLICE_END:
                start, name, said = opened.pop(at)
                assert packet.timestamp >= start
                self.slices[at].append((start, packet.timestamp, name, said))
            else:
                assert event.type == pb2.TrackEvent.TYPE_COUNTER
                self.counts[at].append((packet.timestamp, event.double_counter_value))
        assert not opened

    def track(self, name: str, parent: str = "") -> int:
        (found,) = (
            at
            for at, said in self.names.items()
            if said == name and (not parent or self.names[self.parents[at]] == parent)
        )
        return found


def test_a_timeline_reads_back_as_the_run() -> None:
    out = fleet()
    read = Read(b"".join(timeline(out.requests, out.steps)))
    for rank in (0, 1):
        mine = out.steps["rank"] == rank
        slices = read.slices[read.track("steps", f"rank {rank}")]
        steps = [s for s in slices if s[2] != "wait"]
        assert len(steps) == mine.sum()
        for name in ("verified", "accepted", "emitted", "prefill_tokens"):
            assert [s[3][name] for s in steps] == out.steps[name][mine].tolist()
        ends = np.array([s[1] for s in steps]) * 1e-9
        own_end_s = (out.steps["end_s"] - out.steps["duration_s"] + out.steps["own_s"])[mine]
        np.testing.assert_allclose(ends, own_end_s, atol=2e-9)
        waits = (out.steps["own_s"] < out.steps["duration_s"])[mine].sum()
        assert len(slices) - len(steps) == waits
        for name in COUNTERS:
            counts = read.counts[read.track(name, f"rank {rank}")]
            assert len(counts) == mine.sum()
            if name != "budget_tokens":
                assert [value for _, value in counts] == out.steps[name][mine].tolist()
    names: Counter[str] = Counter()
    for index, status in zip(out.requests["request"], out.requests["status"], strict=True):
        for start, end, name, said in read.slices[read.track(f"request {index}")]:
            names[name] += 1
            assert said["status"] == ("finished" if status == 2 else "timed_out")
            assert end > start
    assert names["decode"] == np.isfinite(out.requests["first_token_s"]).sum()
    assert names["prefill"] > 0
    assert names["waiting"] > 0


def test_a_stretch_is_shorter() -> None:
    out = fleet()
    whole = list(timeline(out.requests, out.steps))
    part = list(timeline(out.requests, out.steps, until_s=0.1))
    assert 0 < len(part) < len(whole) / 2


def test_a_stored_run_gives_its_timeline(tmp_path: Path) -> None:
    stored = run_scenario("hello", overrides=["stop.num_requests=30"], out=tmp_path).directory
    path = tmp_path / "out.pftrace"
    packets = write_timeline(stored, path, policy="fixed_2", concurrency=32)
    read = Read(path.read_bytes())
    assert packets > 500
    assert sum(map(len, read.slices.values())) > 100
    with pytest.raises(InputError, match="several values of policy"):
        write_timeline(stored, path)
    with pytest.raises(InputError, match="no policy fixd; legal are"):
        write_timeline(stored, path, policy="fixd")
    with pytest.raises(InputError, match="holds no run"):
        write_timeline(tmp_path / "nowhere", path)
