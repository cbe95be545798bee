"""Profiling a real HTTP server on localhost whose step times are known to the server itself."""

from __future__ import annotations

import json
import queue
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specsim.cost.fit import fit_table
from specsim.cost.table import Provenance
from specsim.errors import InputError
from specsim.profiler.manifest import described, read_manifest
from specsim.profiler.server import ServerLoad, measure_server, profile_server

TOKENS = 48


class Engine:
    """A decode engine: all running requests get a token a step, and it notes how long steps took.

    A step sleeps 8 ms plus 3 ms for each request, or longer if the machine is busy; either way the
    noted time is what a client must find.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[int, tuple[queue.Queue[bool], list[int]]] = {}
        self.steps: dict[int, list[float]] = defaultdict(list)
        self.stop = False
        self.ids = 0
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def add(self, tokens: int) -> queue.Queue[bool]:
        out: queue.Queue[bool] = queue.Queue()
        with self.lock:
            self.ids += 1
            self.running[self.ids] = (out, [tokens])
        return out

    def serve(self) -> None:
        last = time.perf_counter()
        while not self.stop:
            with self.lock:
                batch = dict(self.running)
            time.sleep(8e-3 + 3e-3 * len(batch))
            with self.lock:
                for key, (out, left) in batch.items():
                    left[0] -= 1
                    out.put(left[0] > 0)
                    if left[0] == 0:
                        del self.running[key]
            now = time.perf_counter()
            self.steps[len(batch)].append(now - last)
            last = now


class Server(ThreadingHTTPServer):
    daemon_threads = True
    behaviour = "stream"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = Engine()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.behaviour == "fail":
            self.reply(503, {"error": "overloaded"})
            return
        if self.server.behaviour == "whole" or not asked["stream"]:
            self.reply(200, {"choices": [{"text": "all at once"}]})
            return
        assert asked["model"] == "toy"
        assert asked["ignore_eos"] is True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        if self.server.behaviour in ("error", "junk"):
            self.event(
                {"error": "out of memory"} if self.server.behaviour == "error" else {"choices": 3}
            )
            return
        tokens = 3 if self.server.behaviour == "short" else asked["max_tokens"]
        out = self.server.engine.add(tokens)
        more = True
        while more:
            more = out.get()
            self.event({"choices": [{"text": " x"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 10}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.engine.stop = True
    found.shutdown()
    found.server_close()
    thread.join()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


LOAD = ServerLoad(max_tokens=TOKENS, repeats=2, timeout_s=20)


def test_step_times_are_those_that_the_server_took(server: Server) -> None:
    rows = measure_server(url(server), [1, 6], LOAD)
    assert len(rows) == 2 * (1 + 6)
    measured = {}
    for count in (1, 6):
        mine = [row.seconds for row in rows if row.num_requests == count]
        measured[count] = statistics.mean(mine)
        took = statistics.mean(server.engine.steps[count])
        assert measured[count] == pytest.approx(took, rel=0.15), count
    # 26 ms against 11 ms as meant; whatever the machine adds, more requests cost more.
    assert measured[6] > 1.4 * measured[1]
    assert {row.context_tokens for row in rows} == {10 + TOKENS // 2}
    provenance = Provenance(
        status="measured", source="a test", date="2026-11-29", licence="Apache-2.0"
    )
    table = fit_table(rows, name="t", provenance=provenance).table
    assert table.verify.probes_N.tolist() == [1, 6]
    assert table.includes == {"attention", "host"}  # one token a request: nothing was drafted


def test_speculation_widens_the_forward(server: Server) -> None:
    load = ServerLoad(max_tokens=TOKENS, tokens_per_request=4, repeats=1, timeout_s=20)
    rows = measure_server(url(server) + "/v1", [2], load, model="toy")
    assert {row.batch_tokens for row in rows} == {8}


def test_a_run_that_was_interrupted_goes_on(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    first = profile_server(url(server), [1, 2], LOAD, out)
    assert (first.timed, first.resumed) == (2 * (1 + 2), 0)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))  # one stream of the last batch is not there
    again = profile_server(url(server), [1, 2], LOAD, out)
    assert (again.timed, again.resumed) == (2, 4)
    assert profile_server(url(server), [1, 2], LOAD, out).timed == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["complete"] is True
    assert "toy at http://127.0.0.1" in described(manifest)
    with pytest.raises(InputError, match="was begun with load"):
        profile_server(url(server), [1], replace(LOAD, tokens_per_request=4), out)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("fail", "HTTP 503: .*overloaded"),
        ("whole", "no event stream"),
        ("error", "the server says 'out of memory'"),
        ("junk", "choices: must be a list, not 3"),
        ("short", r"steps lie where all of them decode \(32 are needed\)"),
    ],
)
def test_a_server_that_cannot_be_measured_is_named(
    server: Server, behaviour: str, expected: str
) -> None:
    server.behaviour = behaviour
    with pytest.raises(InputError, match=expected):
        measure_server(url(server), [2], LOAD, model="toy")


def test_nobody_is_listening() -> None:
    with pytest.raises(InputError, match=r"cannot reach http://127\.0\.0\.1:9"):
        measure_server("http://127.0.0.1:9", [1], LOAD)
    with pytest.raises(InputError, match="1 of 1 streams"):
        measure_server("http://127.0.0.1:9", [1], LOAD, model="toy")


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(InputError, match="is no http"):
        measure_server("localhost:8000", [1], LOAD, model="toy")
    with pytest.raises(InputError, match="concurrencies must be at least 1"):
        measure_server("http://localhost", [0], LOAD, model="toy")
    with pytest.raises(InputError, match="max_tokens must be above 32"):
        measure_server("http://localhost", [1], ServerLoad(max_tokens=16), model="toy")
