"""Step times of a running OpenAI-compatible server (vLLM, SGLang), read off its streams.

Under a decode engine every running request gets one chunk a step, so the gaps between a stream's
chunks are step times. At each concurrency that many requests stream at once; only the stretch where
all of them are decoding counts, and a stream's step time is that stretch over its gaps (which
forgives chunks that arrive in clumps). The rows are whole steps: queueing apart, everything the
server does between two tokens is in them.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from specsim import __version__
from specsim.cost.rows import Row
from specsim.errors import InputError, SpecsimError, in_one_line
from specsim.inputs import Node, parse_json
from specsim.profiler.manifest import SERVER_SAME, write_manifest
from specsim.profiler.rowfile import kept_rows, row_writer
from specsim.profiler.sweep import Progress, SweepResult
from specsim.profiler.timer import now

_LEAST_STEPS = 32
"""Gaps of every stream that must lie inside the common stretch, as in SGLang's profiler."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What is sent.

    Attributes:
        prompt: text of every request.
        max_tokens: output tokens asked for; end-of-sequence is ignored where the server can.
        tokens_per_request: tokens that the server verifies a request and step, anchor included: 1
            without speculation, 1 + k with k drafts.
        repeats: batches at each concurrency.
        timeout_s: longest silence of a stream.
    """

    prompt: str = "Count upwards from one, one number a line."
    max_tokens: int = 256
    tokens_per_request: int = 1
    repeats: int = 3
    timeout_s: float = 60.0


@dataclass(slots=True)
class _Stream:
    """One request's chunk times, or what went wrong."""

    chunk_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    error: str = ""


def measure_server(
    url: str,
    concurrencies: Sequence[int],
    load: ServerLoad,
    *,
    model: str | None = None,
    clock: Callable[[], float] = now,
    progress: Progress = lambda done, total, what: None,
    done: Iterable[Row] = (),
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Measure the step time at every concurrency.

    Args:
        url: base of the server, such as `http://localhost:8000`.
        concurrencies: numbers of requests that stream at once.
        load: what to send.
        model: name of the model; the server's first one if None.
        clock: seconds, monotonic.
        progress: told `(done, total, what)`.
        done: rows of an earlier, interrupted run; their batches are not streamed again.
        on_row: gets each row as it is measured.

    Returns:
        One `step` row for each stream of each batch; its context is the prompt and half of the
        output where the server reports the prompt's tokens, and 0 where it does not.

    Raises:
        InputError: the server cannot be reached, answers with an error, does not stream, or its
            streams are too short or do not overlap.
    """
    if not concurrencies or min(concurrencies) < 1:
        raise InputError(f"concurrencies must be at least 1, not {list(concurrencies)}")
    if load.max_tokens <= _LEAST_STEPS:
        raise InputError(
            f"max_tokens must be above {_LEAST_STEPS}, the steady steps needed, not "
            f"{load.max_tokens}"
        )
    host = _Host.of(url, load.timeout_s)
    name = model or host.first_model()
    batches = {(row.num_requests, row.repeat // row.num_requests) for row in done}
    rows: list[Row] = []
    total = len(concurrencies) * load.repeats
    for at, count in enumerate(concurrencies):
        for repeat in range(load.repeats):
            progress(at * load.repeats + repeat, total, f"{count} streams")
            if (count, repeat) in batches:
                continue
            streams = _stream_all(host, name, count, load, clock)
            for row in _steps(streams, count, repeat, load):
                rows.append(row)
                on_row(row)
    return rows


def profile_server(
    url: str,
    concurrencies: Sequence[int],
    load: ServerLoad,
    out: Path,
    *,
    model: str | None = None,
    progress: Progress = lambda done, total, what: None,
) -> SweepResult:
    """Measure a server into a file of rows; batches of streams already there are kept.

    Raises:
        InputError: see `measure_server`; or `out` has rows of another server, model or load.
    """
    name = model or _Host.of(url, load.timeout_s).first_model()
    manifest = {
        "specsim": __version__,
        "server": url,
        "model": name,
        "load": asdict(load),
        "left_out": ["queueing"],
    }
    done = _whole_batches(kept_rows(out, manifest, SERVER_SAME))
    with row_writer(out, manifest) as on_row:
        rows = measure_server(
            url, concurrencies, load, model=name, progress=progress, done=done, on_row=on_row
        )
    write_manifest(out, {**manifest, "complete": True})
    return SweepResult(timed=len(rows), resumed=len(done))


def _whole_batches(rows: Sequence[Row]) -> list[Row]:
    """Leave out the rows of a batch that was not written down to its last stream."""
    streams: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in rows:
        streams[row.num_requests, row.repeat // row.num_requests].add(row.repeat)
    whole = {batch for batch, repeats in streams.items() if len(repeats) == batch[0]}
    return [row for row in rows if (row.num_requests, row.repeat // row.num_requests) in whole]


def _stream_all(
    host: _Host, model: str, count: int, load: ServerLoad, clock: Callable[[], float]
) -> list[_Stream]:
    streams = [_Stream() for _ in range(count)]
    threads = [
        threading.Thread(target=host.stream, args=(model, load, stream, clock), daemon=True)
        for stream in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [stream.error for stream in streams if stream.error]
    if failed:
        raise InputError(
            f"{len(failed)} of {count} streams of {host.url} failed; the first: {failed[0]}"
        )
    return streams


def _steps(streams: Sequence[_Stream], count: int, repeat: int, load: ServerLoad) -> list[Row]:
    start = max(stream.chunk_s[0] for stream in streams)
    end = min(stream.chunk_s[-1] for stream in streams)
    rows = []
    for index, stream in enumerate(streams):
        inside = [moment for moment in stream.chunk_s if start <= moment <= end]
        if len(inside) <= _LEAST_STEPS:
            raise InputError(
                f"at {count} streams only {max(0, len(inside) - 1)} steps lie where all of them "
                f"decode ({_LEAST_STEPS} are needed): raise --max-tokens, or the server runs fewer "
                "requests at once than that"
            )
        context = stream.prompt_tokens + load.max_tokens // 2 if stream.prompt_tokens else 0
        rows.append(
            Row(
                part="step",
                batch_tokens=count * load.tokens_per_request,
                num_requests=count,
                context_tokens=context,
                seconds=(inside[-1] - inside[0]) / (len(inside) - 1),
                mode="graph",
                repeat=repeat * count + index,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Host:
    url: str
    scheme: str
    netloc: str
    path: str
    timeout_s: float

    @classmethod
    def of(cls, url: str, timeout_s: float) -> _Host:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(f'"{url}" is no http:// or https:// address of a server')
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(url, parts.scheme, parts.netloc, path, timeout_s)

    def connect(self) -> http.client.HTTPConnection:
        """Return a fresh connection; a stream holds it to its end."""
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.netloc, timeout=self.timeout_s)

    def first_model(self) -> str:
        """Ask the server which model it serves."""
        connection = self.connect()
        try:
            connection.request("GET", f"{self.path}/v1/models")
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace") if answer.status == 200 else "{}"
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"cannot reach {self.url}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        place = f"{self.url}/v1/models"
        models = Node(parse_json(body, place), place).maybe("data")
        if models is None or not models.items():
            raise InputError(f"{place} lists no model; give --model-name")
        return models.items()[0].get("id").text()

    def stream(
        self, model: str, load: ServerLoad, into: _Stream, clock: Callable[[], float]
    ) -> None:
        """Send one request and note when each chunk with text arrives; errors go into `into`."""
        body = {
            "model": model,
            "prompt": load.prompt,
            "max_tokens": load.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        connection = self.connect()
        try:
            connection.request(
                "POST",
                f"{self.path}/v1/completions",
                json.dumps(body),
                {"Content-Type": "application/json", "Accept": "text/event-stream"},
            )
            answer = connection.getresponse()
            if answer.status != 200:
                into.error = f"HTTP {answer.status}: {answer.read()[:200].decode(errors='replace')}"
                return
            kind = answer.headers.get("Content-Type", "")
            if "text/event-stream" not in kind:
                into.error = f"the answer is {kind or 'untyped'}, no event stream"
                return
            for raw in answer:
                line = raw.strip()
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    break
                moment = clock()
                _note(Node(parse_json(payload.decode(), "stream"), "stream"), into, moment)
        except SpecsimError as error:
            into.error = str(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            into.error = in_one_line(error)
        finally:
            connection.close()
        if not into.error and len(into.chunk_s) < 2:
            into.error = f"{len(into.chunk_s)} chunks with text; nothing to time"


def _note(chunk: Node, into: _Stream, moment: float) -> None:
    """Note one chunk of a stream; what is not of OpenAI's form is an error of the server."""
    if chunk.has("error"):
        raise chunk.error(f"the server says {chunk.get('error').value!r:.200}")
    usage, choices = chunk.maybe("usage"), chunk.maybe("choices")
    if usage is not None and usage.maybe("prompt_tokens") is not None:
        into.prompt_tokens = usage.get("prompt_tokens").whole()
    texts = [choice.get("text").text() for choice in (choices.items() if choices else ())]
    if any(texts):
        into.chunk_s.append(moment)
