"""Requests from ServeGen's client statistics: each client a bursty process, with its own lengths.

A folder holds, for each client N, `chunk-N-trace.csv` (no header: window start s, rate req/s, CV of
the gaps, `Gamma` or `Weibull` or nothing, shape, scale) and `chunk-N-dataset.json` (for each longer
window, histograms of input and output tokens, each a string that holds a Python dict). Here a
client is a renewal process whose gaps have the window's family and shape, on a clock that runs at
the window's rate: the recorded `scale` is not used, since for Weibull fits it does not reproduce
the recorded rate. Input and output lengths are independent given the window, as only their
marginals were published.
"""

from __future__ import annotations

import ast
import csv
import heapq
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.errors import InputError
from specsim.jsontext import read_json
from specsim.rng import stream
from specsim.workload.feed import Arrival, FeedFactory
from specsim.workload.processes import UnitGaps
from specsim.workload.replay import SliceConfig
from specsim.workload.trace_file import MAX_TOKENS, RowReport, numbered_lines

_TRACE = re.compile(r"^chunk-(\d+)-trace\.csv$")
_FAMILY = {"Gamma": "gamma", "Weibull": "weibull"}
_LEAST_SHAPE = 0.05
"""Shapes below are raised to it: gaps would differ by more orders than a run can hold."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of a client's time at one rate.

    Attributes:
        start_s: where it begins.
        rate_per_s: requests a second, may be 0.
        gaps: the law of its gaps; None if it has no requests.
    """

    start_s: float
    rate_per_s: float
    gaps: UnitGaps | None


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Token counts and the cumulative probabilities of them."""

    tokens_H: NDArray[np.int64]
    cumulative_H: NDArray[np.float64]

    def draw(self, u: float) -> int:
        """Return the count at the quantile `u` in [0, 1)."""
        at = int(np.searchsorted(self.cumulative_H, u, side="right"))
        return int(self.tokens_H[min(at, len(self.tokens_H) - 1)])


@dataclass(frozen=True, slots=True)
class Client:
    """One client's statistics.

    Attributes:
        number: N of its files.
        windows: rates, in order.
        window_s: length of each.
        lengths: (start, input, output) of each window with lengths, in order.
    """

    number: int
    windows: tuple[Window, ...]
    window_s: float
    lengths: tuple[tuple[float, Histogram, Histogram], ...]

    @property
    def end_s(self) -> float:
        """Where its statistics end."""
        return self.windows[-1].start_s + self.window_s


class ServeGenConfig(SliceConfig):
    """Requests drawn from ServeGen's statistics of real clients; lengths come with them."""

    kind: Literal["servegen"]
    folder: str = Field(
        min_length=1, description="Folder of chunk-N files, a path beside the scenario."
    )
    clients: tuple[int, ...] | None = Field(
        default=None, min_length=1, description="The N of the clients to take; all if left out."
    )

    def build(self, locate: Callable[[str, str], Path]) -> tuple[FeedFactory, RowReport]:
        """Return the feed, and the account of the files.

        Raises:
            InputError: the folder or a file is missing or wrong.
        """
        # A folder cannot be located as such; its first client's file can.
        number = self.clients[0] if self.clients else None
        folder = _folder(self.folder, number, locate)
        clients, report = load_clients(folder, self.clients)
        for number in self.clients or _numbers(folder):
            for name in ("trace.csv", "dataset.json"):  # so that `locate` knows all that was read
                locate("workloads", f"{self.folder}/chunk-{number}-{name}")

        def feed(seed: int) -> Iterator[Arrival]:
            return generated(
                clients,
                seed=seed,
                from_s=self.from_s,
                to_s=self.to_s,
                rate_scale=self.rate_scale,
            )

        return feed, report


def _folder(folder: str, number: int | None, locate: Callable[[str, str], Path]) -> Path:
    if number is not None:
        return locate("workloads", f"{folder}/chunk-{number}-trace.csv").parent
    for candidate in range(10_000):
        try:
            return locate("workloads", f"{folder}/chunk-{candidate}-trace.csv").parent
        except InputError:
            continue
    raise InputError(f"{folder}: holds no chunk-N-trace.csv of a client")


def load_clients(
    folder: Path, numbers: tuple[int, ...] | None = None
) -> tuple[tuple[Client, ...], RowReport]:
    """Read the clients of a folder.

    Args:
        folder: holds the chunk files.
        numbers: which clients; all if None.

    Raises:
        InputError: a file is missing, or says something that makes no sense.
    """
    there = _numbers(folder)
    for number in numbers or ():
        if number not in there:
            listed = ", ".join(map(str, there)) or "none"
            raise InputError(f"{folder}: no client {number}; there are {listed}")
    report = RowReport()
    clients = []
    for number in numbers or there:
        windows, window_s = _windows(folder / f"chunk-{number}-trace.csv", report)
        lengths = _lengths(folder / f"chunk-{number}-dataset.json", report)
        busy = any(window.rate_per_s for window in windows)
        if not busy or not lengths:
            report.mended["clients without any request (left out)"] += 1
            continue
        clients.append(Client(number, windows, window_s, lengths))
    if not clients:
        raise InputError(f"{folder}: no client has a request")
    return tuple(clients), report


def _numbers(folder: Path) -> list[int]:
    return sorted(int(m[1]) for p in folder.iterdir() if (m := _TRACE.match(p.name)))


def _windows(path: Path, report: RowReport) -> tuple[tuple[Window, ...], float]:
    windows: list[Window] = []
    for line, text in numbered_lines(path, report):
        report.rows += 1
        cells = next(csv.reader([text]))
        if len(cells) != 6:
            raise InputError(f"{path}:{line}: has {len(cells)} cells; 6 are due")
        try:
            start_s, rate, _, shape, _ = (float(cells[i]) for i in (0, 1, 2, 4, 5))
        except ValueError as error:
            raise InputError(f"{path}:{line}: {error}") from error
        if not (np.isfinite([start_s, rate, shape]).all() and start_s >= 0 and rate >= 0):
            raise InputError(f"{path}:{line}: start and rate must be finite and at least 0: {text}")
        if windows and start_s <= windows[-1].start_s:
            raise InputError(
                f"{path}:{line}: window start {start_s:g} does not come after "
                f"{windows[-1].start_s:g}"
            )
        report.kept += 1
        windows.append(Window(start_s, rate, _gaps(path, line, cells[3], rate, shape, report)))
    if len(windows) < 2:
        raise InputError(f"{path}: {len(windows)} windows; their length needs at least 2")
    return tuple(windows), windows[1].start_s - windows[0].start_s


def _gaps(
    path: Path, line: int, family: str, rate: float, shape: float, report: RowReport
) -> UnitGaps | None:
    if rate == 0:
        return None
    if family == "" or shape <= 0:
        report.mended["windows with requests but without a law (taken as Poisson)"] += 1
        return UnitGaps("gamma", 1.0)
    if family not in _FAMILY:
        raise InputError(f'{path}:{line}: law "{family}"; Gamma, Weibull or nothing is legal')
    if shape < _LEAST_SHAPE:
        report.mended[f"windows with a shape below {_LEAST_SHAPE} (raised to it)"] += 1
        shape = _LEAST_SHAPE
    return UnitGaps("gamma" if family == "Gamma" else "weibull", shape)


def _lengths(path: Path, report: RowReport) -> tuple[tuple[float, Histogram, Histogram], ...]:
    text = "\n".join(line for _, line in numbered_lines(path, RowReport()))
    windows, problem = read_json(text, where=str(path))
    if problem is not None:
        raise InputError(str(problem))
    if not isinstance(windows, dict):
        raise InputError(f"{path}: a JSON object of windows is needed")
    found = []
    for start, entry in windows.items():
        if not isinstance(entry, dict) or not {"input_tokens", "output_tokens"} <= set(entry):
            raise InputError(f'{path}: window "{start}": needs input_tokens and output_tokens')
        try:
            start_s = float(start)
        except ValueError as error:
            raise InputError(f'{path}: window "{start}" is no number of seconds') from error
        where = f'{path}: window "{start}", '
        prompt = _histogram(where + "input_tokens", entry["input_tokens"], report)
        output = _histogram(where + "output_tokens", entry["output_tokens"], report)
        if prompt is not None and output is not None:
            found.append((start_s, prompt, output))
    return tuple(sorted(found, key=lambda window: window[0]))


def _histogram(where: str, text: Any, report: RowReport) -> Histogram | None:
    """Read a Python dict from a string, without running it; None if it is empty."""
    try:
        value = ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"{where}: is no dict of counts: {error}") from error
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: a dict of tokens to probability is needed")
    mass: dict[int, float] = {}
    for count, share in value.items():
        numbers = isinstance(count, int) and isinstance(share, int | float)
        if not numbers or not (0 <= count <= MAX_TOKENS and 0 <= share < float("inf")):
            raise InputError(f"{where}: {count!r}: {share!r} is no token count with its share")
        if count == 0 and share > 0:
            report.mended["histogram entries of 0 tokens (left out)"] += 1
        elif share > 0:
            mass[count] = float(share)
    if not mass:
        return None
    tokens_H = np.array(sorted(mass), dtype=np.int64)
    share_H = np.array([mass[count] for count in tokens_H.tolist()])
    return Histogram(tokens_H, np.cumsum(share_H) / share_H.sum())


def generated(
    clients: tuple[Client, ...],
    *,
    seed: int,
    from_s: float = 0.0,
    to_s: float | None = None,
    rate_scale: float = 1.0,
) -> Iterator[Arrival]:
    """Yield the clients' requests in the order of arrival; the client is the session.

    Args:
        clients: their statistics.
        seed: each client has a stream of its own under it.
        from_s: start of the stretch, in the statistics' time; becomes 0.
        to_s: its end; None for the statistics' own.
        rate_scale: how fast the clock of arrivals runs; 2 plays the stretch in half the time.
    """
    feeds = [_client(client, seed, from_s, to_s) for client in clients]
    for arrival in heapq.merge(*feeds, key=lambda arrival: (arrival.at_s, arrival.session)):
        yield Arrival(
            (arrival.at_s - from_s) / rate_scale,
            arrival.prompt_tokens,
            arrival.output_tokens,
            session=arrival.session,
        )


def _client(client: Client, seed: int, from_s: float, to_s: float | None) -> Iterator[Arrival]:
    rng = stream(seed, f"servegen/{client.number}")
    end_s = client.end_s if to_s is None else min(to_s, client.end_s)
    left: float | None = None  # operational time to the next arrival
    at_lengths = 0
    for window in client.windows:
        now_s, stop_s = max(window.start_s, from_s), min(window.start_s + client.window_s, end_s)
        if now_s >= stop_s or window.gaps is None:
            continue
        if left is None:
            left = window.gaps.residual(rng)
        while now_s + left / window.rate_per_s < stop_s:
            now_s += left / window.rate_per_s
            left = float(window.gaps.sample(rng, 1)[0])
            lengths = client.lengths
            while at_lengths + 1 < len(lengths) and lengths[at_lengths + 1][0] <= now_s:
                at_lengths += 1
            _, prompt, output = lengths[at_lengths]
            yield Arrival(
                now_s, prompt.draw(rng.random()), output.draw(rng.random()), session=client.number
            )
        left -= (stop_s - now_s) * window.rate_per_s
