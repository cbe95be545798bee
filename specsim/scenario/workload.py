"""From the workload of a scenario to the laws and feeds that the engine takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specsim.engine.run import Batch, ClosedLoop, Feed, Load, Poisson
from specsim.errors import InputError
from specsim.workload.arrivals import (
    RECORDED,
    TIMED,
    BatchConfig,
    ClosedLoopConfig,
    PoissonConfig,
    SessionsConfig,
)
from specsim.workload.feed import (
    FeedFactory,
    LengthLaw,
    LengthPairs,
    PairLaw,
    independent_lengths,
    joint_lengths,
    with_lengths,
)
from specsim.workload.lengths import FixedLengthConfig
from specsim.workload.trace_file import RowReport

Locate = Callable[[str, str], Path]


class Workload(Protocol):
    """What this module needs of a scenario's workload (`schema.WorkloadConfig`)."""

    @property
    def arrivals(self) -> Any:
        """Config of the arrivals."""
        ...

    @property
    def prompt_tokens(self) -> Any:
        """Config of prompt lengths, or None."""
        ...

    @property
    def output_tokens(self) -> Any:
        """Config of output lengths, or None."""
        ...

    @property
    def lengths(self) -> Any:
        """Config of joint lengths, or None."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltWorkload:
    """A workload with its files read.

    Attributes:
        arrivals: the config of the arrivals.
        prompt: law of prompt lengths; of no meaning where requests bring their own.
        output: law of output lengths; likewise.
        pairs: joint law of both, or None.
        feed: makes the requests of a run, if they bring their own times and lengths.
        report: what became of a trace's rows, or None.
    """

    arrivals: Any
    prompt: LengthLaw
    output: LengthLaw
    pairs: PairLaw | None = None
    feed: FeedFactory | None = None
    report: RowReport | None = None

    def load(self, *, ranks: int, concurrency: int | None) -> Load:
        """Return who sends work.

        Args:
            ranks: ranks of the cluster.
            concurrency: closed-loop users a rank; None for other arrivals.
        """
        if self.feed is not None:
            return Feed(self.feed)
        match self.arrivals:
            case ClosedLoopConfig(think_time_s=think_s):
                assert concurrency is not None  # checked by the schema's rules
                return ClosedLoop(users=concurrency * ranks, think_s=think_s)
            case PoissonConfig(rate_per_s=rate):
                return Poisson(rate)
            case BatchConfig(num_requests=count):
                return Batch(count)
        raise AssertionError(f"unknown arrivals {self.arrivals!r}")


def build_workload(workload: Workload, locate: Locate) -> BuiltWorkload:
    """Read the workload's files and put its laws together.

    Raises:
        InputError: a file is missing or wrong, or no request has anything to decode.
    """
    arrivals = workload.arrivals
    if isinstance(arrivals, RECORDED):
        feed, report = arrivals.build(locate)  # type: ignore[attr-defined]
        one = FixedLengthConfig(kind="fixed", tokens=2)
        return BuiltWorkload(arrivals, one, one, feed=feed, report=report)
    if workload.lengths is not None:
        pairs = workload.lengths.build(locate)
        _decodes("lengths", pairs.longest_output)
        one = FixedLengthConfig(kind="fixed", tokens=2)
        built = BuiltWorkload(arrivals, one, one, pairs=pairs)
    else:
        prompt = workload.prompt_tokens.build(locate)
        output = workload.output_tokens.build(locate)
        _decodes("output_tokens", output.longest)
        built = BuiltWorkload(arrivals, prompt, output)
    if not isinstance(arrivals, (*TIMED, SessionsConfig)):
        return built
    return BuiltWorkload(
        arrivals, built.prompt, built.output, built.pairs, _feed(arrivals, built), None
    )


def _decodes(name: str, longest: int) -> None:
    if longest < 2:
        raise InputError(
            f"workload.{name}: every request ends with its first token, which belongs to the "
            "prefill, so there is nothing to decode; use lengths of 2 or more"
        )


def _feed(arrivals: Any, built: BuiltWorkload) -> FeedFactory:
    def lengths(seed: int) -> LengthPairs:
        if built.pairs is not None:
            return joint_lengths(built.pairs, seed=seed)
        return independent_lengths(built.prompt, built.output, seed=seed)

    if isinstance(arrivals, SessionsConfig):
        return lambda seed: arrivals.arrivals(seed, lengths(seed))
    return lambda seed: with_lengths(arrivals.times(seed), lengths(seed))
