"""From a typed scenario to the objects of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from specsim.acceptance.blocks import Blocks, lay_out
from specsim.acceptance.trace import DenseTrace
from specsim.cost.model import StepCost
from specsim.cost.table import worst_label
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.engine.run import RunInput, Stop
from specsim.errors import InputError, UnsafeSchedulerError
from specsim.scenario.locate import Locator
from specsim.scenario.schema import (
    ClusterConfig,
    PolicyConfig,
    Scenario,
    StopAtRequests,
    StopAtSeconds,
    StopAtTokens,
)
from specsim.scenario.workload import BuiltWorkload, build_workload
from specsim.schedulers import UserConfig

_NOT_FROM_MEASUREMENT = ("fitted", "assumed", "synthetic")
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """One policy, built: everything of it that does not depend on the load.

    Attributes:
        name: the policy's name.
        config: its config.
        trace: the acceptance trace behind it.
        blocks: the same, cut to the policy's gamma.
        cost: what its steps cost.
        prefill: where prompts are read, and what that costs; None if it takes no time.
        workload: who comes with what, files read.
        lossless: whether its scheduler leaves the target distribution alone.
        profiles: the files behind it.
    """

    name: str
    config: PolicyConfig
    trace: DenseTrace
    blocks: Blocks
    cost: StepCost
    prefill: MixedPrefill | DisaggregatedPrefill | None
    workload: BuiltWorkload
    lossless: bool
    profiles: tuple[Path, ...]

    @property
    def tilted(self) -> bool:
        """Whether the acceptances were moved from where they were recorded."""
        return bool(self.blocks.gamma and self.trace.metadata.get("tilted"))

    def labels(self) -> list[str]:
        """Return the marks that must stand beside every number of this arm.

        Of costs and of acceptances the worst label that any of them bears, if worse than derived.
        """
        marks = [] if self.lossless else ["unsafe"]
        if self.tilted:
            marks.append("tilted trace")
        status = self.trace.metadata.get("status")
        if self.blocks.gamma and status in _NOT_FROM_MEASUREMENT:
            marks.append(f"{status} acceptance")
        costs = [self.cost.label]
        if isinstance(self.prefill, DisaggregatedPrefill):
            prefill = self.prefill.cost
            costs += [prefill.label] if isinstance(prefill, StepCost) else []
        cost = worst_label(costs)
        if cost in _NOT_FROM_MEASUREMENT:
            marks.append(f"{cost} cost")
        return marks


def profiles_of(arms: Iterable[Arm]) -> list[Path]:
    """Name every file behind some arms once: what they hold is part of what a run is."""
    return list(dict.fromkeys(path for arm in arms for path in arm.profiles))


def build_arm(scenario: Scenario, name: str, *, folder: Path) -> Arm:
    """Build the policy `name` of `scenario`, whose file lies in `folder`.

    Raises:
        InputError: a profile is missing or wrong, gamma is larger than the trace's, a term of the
            cost is missing, or the lengths leave nothing to decode.
        UnsafeSchedulerError: the scheduler biases the output and the policy does not say so.
    """
    policy = scenario.policies[name]
    where = f"policies.{name}"
    scheduler = policy.scheduler.build()
    if not scheduler.lossless and not policy.unsafe:
        raise UnsafeSchedulerError(
            f'{where}.scheduler: "{policy.scheduler.kind}" changes the distribution of the output '
            "(it lets a token's own value decide whether it is verified); to study it all the "
            f"same, say `{where}.unsafe: true`"
        )
    locate = Recorder(Locator(folder))
    workload = build_workload(scenario.workload, locate)
    try:
        config = policy.acceptance or scenario.acceptance
        key = (json.dumps(config.model_dump(mode="json"), sort_keys=True), type(config))
        source = (*key, scenario.seed, max(policy.gamma, 1), folder, Path.cwd())
        trace, trace_files, stamp = _trace(*source)
        if stamp != _stamp(trace_files):  # a file was written anew while this process lives
            _trace.cache_clear()
            _blocks.cache_clear()
            trace, trace_files, _ = _trace(*source)
        blocks = _blocks(policy.gamma, *source)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    cluster = scenario.cluster
    capacity = cluster.max_requests_per_rank
    cost = scenario.cost.build(
        locate=locate,
        max_requests=capacity,
        max_tokens=_longest_forward(cluster, policy.gamma),
        draft="none" if policy.gamma == 0 else policy.draft,
        gamma=policy.gamma,
    )
    prefill = cluster.prefill
    return Arm(
        name=name,
        config=policy,
        trace=trace,
        blocks=blocks,
        cost=cost,
        prefill=prefill.build(cost=scenario.cost, locate=locate) if prefill is not None else None,
        workload=workload,
        lossless=scheduler.lossless,
        profiles=(*trace_files, *locate.found, *_own_files(policy)),
    )


def _longest_forward(cluster: ClusterConfig, gamma: int) -> int:
    """Return the most tokens that one forward can hold under any plan."""
    longest = cluster.max_requests_per_rank * (1 + gamma)
    if cluster.prefill is not None:
        longest += cluster.prefill.extra_tokens
    if cluster.lockstep is not None:
        longest = max(longest, *cluster.lockstep.tiers, 1)
    return longest


def _own_files(policy: PolicyConfig) -> tuple[Path, ...]:
    """Name the file of a user's scheduler: a run with another version of it is another run."""
    config = policy.scheduler
    return (config.module_file(),) if isinstance(config, UserConfig) else ()


@dataclass(frozen=True, slots=True)
class Recorder:
    """A locator that remembers what it found."""

    locate: Locator
    found: list[Path] = field(default_factory=list)

    def __call__(self, group: str, name: str) -> Path:
        """Find a profile, and remember it."""
        path = self.locate(group, name)
        self.found.append(path)
        return path


@lru_cache(maxsize=16)
def _trace(
    text: str, kind: type[Any], seed: int, gamma: int, folder: Path, here: Path
) -> tuple[DenseTrace, tuple[Path, ...], Stamp]:
    """Build an acceptance config; policies and loads that share it share the trace.

    Returns the files behind it and their stamp too.
    """
    del here  # part of the cache's key: profiles are also looked for, and named, from there
    locate = Recorder(Locator(folder))
    trace = kind.model_validate_json(text).build(seed=seed, gamma=gamma, locate=locate)
    trace = replace(trace, accept_rate_NG=None)  # statistics of traces need it, replay does not
    return trace, tuple(locate.found), _stamp(locate.found)


def _stamp(paths: Iterable[Path]) -> Stamp:
    """Return what changes with the content of files: when each was written, and its size."""
    return tuple(
        (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else (0, 0)
        for path in paths
    )


@lru_cache(maxsize=16)
def _blocks(
    cut: int, text: str, kind: type[Any], seed: int, gamma: int, folder: Path, here: Path
) -> Blocks:
    """Lay a trace out for replay of `cut` drafts, once for all that share it."""
    trace, _, _ = _trace(text, kind, seed, gamma, folder, here)  # type: ignore[arg-type]  # a class is hashable
    return lay_out(trace, gamma=cut, seed=seed)


def run_input(scenario: Scenario, arm: Arm, *, concurrency: int | None) -> RunInput:
    """Return what the engine needs to run `arm` under one load.

    Args:
        scenario: the scenario.
        arm: the built policy.
        concurrency: closed-loop users a rank; None for other arrivals.
    """
    workload, cluster = scenario.workload, scenario.cluster
    lockstep, kv, patience = cluster.lockstep, cluster.kv, workload.patience
    return RunInput(
        blocks=arm.blocks,
        scheduler=arm.config.scheduler.build,
        cost=arm.cost,
        load=arm.workload.load(ranks=cluster.ranks, concurrency=concurrency),
        prompt=arm.workload.prompt,
        output=arm.workload.output,
        pairs=arm.workload.pairs,
        domain_weights_D=arm.blocks.domain_shares(),
        ranks=cluster.ranks,
        capacity=cluster.max_requests_per_rank,
        router=cluster.router,
        seed=scenario.seed,
        stop=_stop(scenario),
        lockstep=lockstep.build(arm.config.lockstep_budget) if lockstep is not None else None,
        kv=kv.build() if kv is not None else None,
        prefill=arm.prefill,
        patience=patience.build() if patience is not None else None,
        priority_shares_C=workload.priorities,
        deaths=tuple(death.build() for death in cluster.deaths),
    )


def _stop(scenario: Scenario) -> Stop:
    match scenario.stop:
        case StopAtRequests(num_requests=count):
            return Stop(requests=count)
        case StopAtTokens(output_tokens=count):
            return Stop(tokens=count)
        case StopAtSeconds(simulated_s=seconds):
            return Stop(seconds=seconds)
    return Stop()  # all_done: the arrivals say when
