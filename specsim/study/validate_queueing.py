"""The engine as a queue: closed forms of M/M/c, M/D/1 and machine repair, and Little's law.

Each model is run as independent replications after a warm-up; the closed form must lie within
the 99 % interval of their mean, and the interval must be narrow enough to mean something.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.blocks import Blocks, lay_out
from specsim.acceptance.trace import DenseTrace
from specsim.engine.rank import StepCost
from specsim.engine.run import ClosedLoop, Poisson, RunColumns, RunInput, Stop, run
from specsim.rng import stream
from specsim.schedulers.static import FixedLength
from specsim.stats.intervals import mean_interval
from specsim.study.validation import Check, Validation
from specsim.workload.lengths import FixedLengthConfig

REPLICATIONS = 32
REQUESTS = 20_000
WARMUP_REQUESTS = 2_000
LEVEL = 0.99
WIDEST = 0.05
"""Largest half-width, as a share of the closed form."""


class _ServiceLaw:
    """A cost whose steps take a random or constant time, whatever is in them."""

    def __init__(self, mean_s: float, rng: np.random.Generator | None) -> None:
        self._mean_s, self._rng = mean_s, rng
        self.verify_s_B: NDArray[np.float64] = np.zeros(2)

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        return self._mean_s if self._rng is None else float(self._rng.exponential(self._mean_s))

    def charged_tokens(self, verify_len_R: NDArray[np.int64]) -> int:
        return len(verify_len_R)


def _one_token_blocks() -> Blocks:
    trace = DenseTrace(
        confidence_NG=np.ones((4, 1), dtype=np.float32),
        num_accepted_N=np.zeros(4, dtype=np.uint8),
        sequence_offset_S1=np.array([0, 4]),
        sequence_domain_S=np.zeros(1, dtype=np.uint8),
        domain_names=("none",),
    )
    return lay_out(trace, gamma=0, seed=0)


def simulate(
    load: Poisson | ClosedLoop,
    *,
    servers: int,
    mean_s: float,
    exponential: bool,
    seed: int,
    requests: int = REQUESTS,
) -> RunColumns:
    """Run one replication: `servers` ranks of one slot behind one queue, one step a request."""
    rng = stream(seed, "service") if exponential else None
    cost: StepCost = _ServiceLaw(mean_s, rng)
    blocks = _one_token_blocks()
    return run(
        RunInput(
            blocks=blocks,
            scheduler=lambda: FixedLength(0),
            cost=cost,
            load=load,
            prompt=FixedLengthConfig(kind="fixed", tokens=1),
            output=FixedLengthConfig(kind="fixed", tokens=2),
            domain_weights_D=blocks.domain_shares(),
            ranks=servers,
            capacity=1,
            router="central_queue",
            seed=seed,
            stop=Stop(requests=requests),
        )
    )


def erlang_c_wait(rate: float, mean_s: float, servers: int) -> float:
    """Return the mean wait in queue of M/M/c, seconds (Erlang C)."""
    offered = rate * mean_s
    share = offered / servers
    top = offered**servers / factorial(servers) / (1 - share)
    waits = top / (sum(offered**n / factorial(n) for n in range(servers)) + top)
    return waits * mean_s / (servers - offered)


def md1_wait(rate: float, mean_s: float) -> float:
    """Return the mean wait in queue of M/D/1, seconds (Pollaczek-Khinchine)."""
    share = rate * mean_s
    return share * mean_s / (2 * (1 - share))


def machine_repair_rate(users: int, think_s: float, mean_s: float) -> float:
    """Return the throughput of `users` that think and one exponential server, per second."""
    weights = [
        factorial(users) / factorial(users - n) * (mean_s / think_s) ** n for n in range(users + 1)
    ]
    return (1 - weights[0] / sum(weights)) / mean_s


def _mean_wait(out: RunColumns) -> float:
    wait_s = out.requests["first_token_s"] - out.requests["arrival_s"]
    return float(np.nanmean(wait_s[WARMUP_REQUESTS:REQUESTS]))


def _rate(out: RunColumns) -> float:
    finished = np.sort(out.requests["finish_s"][np.isfinite(out.requests["finish_s"])])
    counted = len(finished) - 1 - WARMUP_REQUESTS
    return float(counted / (finished[-1] - finished[WARMUP_REQUESTS]))


def little_gap(out: RunColumns) -> float:
    """Return how far Little's law is off over the whole run, relative (an identity: 0).

    The integral of the number in the system, counted as requests come and go, against the time in
    the system of every ledger row up to the end of the run.
    """
    until = np.where(np.isfinite(out.requests["finish_s"]), out.requests["finish_s"], out.end_s)
    spent = float((until - out.requests["arrival_s"]).sum())
    return abs(spent - out.request_seconds) / max(out.request_seconds, 1e-300)


def validate() -> Validation:
    """Compare the engine with three closed forms, and check Little's law on every run."""
    checks: list[Check] = []
    gaps: list[float] = []
    models = (
        ("mm3_wait_s", Poisson(2.4), 3, True, _mean_wait, erlang_c_wait(2.4, 1.0, 3)),
        ("md1_wait_s", Poisson(0.8), 1, False, _mean_wait, md1_wait(0.8, 1.0)),
        (
            "machine_repair_per_s",
            ClosedLoop(8, think_s=6.0, thinking="exponential"),
            1,
            True,
            _rate,
            machine_repair_rate(8, 6.0, 1.0),
        ),
    )
    for name, load, servers, exponential, statistic, exact in models:
        found = []
        for seed in range(REPLICATIONS):
            out = simulate(load, servers=servers, mean_s=1.0, exponential=exponential, seed=seed)
            found.append(statistic(out))
            gaps.append(little_gap(out))
        interval = mean_interval(np.array(found), level=LEVEL)
        checks += [
            Check(
                name,
                interval.mean,
                exact - interval.half_width,
                exact + interval.half_width,
            ),
            Check(f"{name}_closed_form", exact),
            Check(f"{name}_ci99_relative", interval.half_width / exact, high=WIDEST),
        ]
    checks.append(Check("little_relative_gap_max", max(gaps), high=1e-9))
    return Validation(
        "queueing",
        checks,
        fitted_on="",
        predicted=f"closed forms, {REPLICATIONS} replications of {REQUESTS} requests each",
    )
