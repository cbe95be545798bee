"""What no single value of a scenario shows: the rules between its parts.

They read whichever parts are right by themselves, so that a wrong number elsewhere does not hide
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.engine.config import DisaggregatedPrefillConfig, MixedPrefillConfig
from specsim.errors import InputError, nearest
from specsim.scenario.schema import (
    ClusterConfig,
    FrontierQuestion,
    PointQuestion,
    PolicyConfig,
    StopWhenDone,
)
from specsim.scenario.source import Keys, show
from specsim.schedulers import UserConfig
from specsim.schedulers.feedback import AdaptiveStepsConfig
from specsim.schedulers.static import FixedConfig, NoneConfig
from specsim.workload.arrivals import RECORDED, BatchConfig, ClosedLoopConfig


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken rule: where, what, and what to do."""

    keys: Keys
    message: str
    hint: str = ""


def breaches(
    data: Mapping[str, Any], parts: Mapping[str, Any], policies: Mapping[str, PolicyConfig]
) -> Iterator[Breach]:
    """Yield every broken rule.

    Args:
        data: the file's plain data, right or wrong.
        parts: the scenario's valid top-level values by name.
        policies: those policies that are valid by themselves.
    """
    yield from _load(parts)
    yield from _engine(parts.get("cluster"), policies)
    yield from _choices(data.get("question"), data.get("policies"))
    for name, policy in policies.items():
        yield from _policy(name, policy)


def _choices(question: Any, policies: Any) -> Iterator[Breach]:
    """The baseline is a policy and the headline one of the SLOs; read from plain data."""
    if not isinstance(question, dict) or question.get("kind") != "frontier":
        return
    baseline, headline = question.get("baseline"), question.get("headline_slo")
    slos = question.get("slo_tok_s_user")
    if isinstance(policies, dict) and isinstance(baseline, str) and baseline not in policies:
        yield Breach(
            ("question", "baseline"),
            f'is "{baseline}", which is no policy; legal are {", ".join(policies)}',
            nearest(baseline, policies),
        )
    if (
        isinstance(slos, list)
        and slos
        and isinstance(headline, int | float)
        and headline not in slos
    ):
        yield Breach(
            ("question", "headline_slo"),
            f"is {show(headline)}, which is not among slo_tok_s_user; legal are "
            f"{', '.join(map(show, slos))}",
        )


def _load(parts: Mapping[str, Any]) -> Iterator[Breach]:
    """Arrivals, the question's users, the cap and the stop rule fit each other."""
    question = parts.get("question")
    cluster, workload = parts.get("cluster"), parts.get("workload")
    arrivals = workload.arrivals if workload is not None else None
    closed = isinstance(arrivals, ClosedLoopConfig)
    kind = arrivals.kind if arrivals is not None else ""
    if isinstance(question, FrontierQuestion) and arrivals is not None and not closed:
        yield Breach(
            ("workload", "arrivals", "kind"),
            f'is "{kind}"; a frontier is drawn over the number of users, which only closed_loop '
            "arrivals have",
            "use closed_loop, or ask a point question",
        )
    if isinstance(question, PointQuestion) and arrivals is not None:
        if closed and question.concurrency is None:
            yield Breach(
                ("question", "concurrency"),
                "is missing: closed_loop arrivals need the number of users a rank",
            )
        if not closed and question.concurrency is not None:
            yield Breach(
                ("question", "concurrency"),
                f'is {question.concurrency}, but "{kind}" arrivals have no fixed number of users',
                "leave it out, or use closed_loop arrivals",
            )
    if question is not None and cluster is not None and question.concurrency is not None:
        grid = question.concurrency
        values = list(enumerate(grid)) if isinstance(grid, tuple) else [(None, grid)]
        cap = cluster.max_requests_per_rank
        for index, users in values:
            if users > cap:
                keys: Keys = ("question", "concurrency")
                yield Breach(
                    keys if index is None else (*keys, index),
                    f"is {users}, more users than cluster.max_requests_per_rank = {cap}; the "
                    "others would only wait",
                    "raise the cap or ask for fewer users",
                )
    ends = arrivals is None or isinstance(arrivals, (BatchConfig, *RECORDED))
    if isinstance(parts.get("stop"), StopWhenDone) and not ends:
        yield Breach(
            ("stop", "kind"),
            f'is "all_done", but "{kind}" arrivals never end',
            "use tokens, seconds or requests, or arrivals that end: batch, replay, servegen",
        )


def _engine(
    cluster: ClusterConfig | None, policies: Mapping[str, PolicyConfig]
) -> Iterator[Breach]:
    """Memory, prefill, lockstep and deaths fit each other and the policies."""
    if cluster is None:
        return
    kv, prefill = cluster.kv, cluster.prefill
    if kv is not None and kv.admission == "optimistic":
        if kv.preemption == "recompute" and prefill is None:
            yield Breach(
                ("cluster", "kv", "preemption"),
                'is "recompute", which would be free: without cluster.prefill, prefill takes no '
                "time",
                "give cluster.prefill, or use swap, or worst_case admission",
            )
        if kv.preemption == "swap" and cluster.router == "central_queue":
            yield Breach(
                ("cluster", "kv", "preemption"),
                'is "swap", which keeps a request\'s KV on its rank, but from the central queue '
                "another may take it",
                "use recompute, or another router",
            )
    if kv is not None and kv.prefix_reuse and isinstance(prefill, DisaggregatedPrefillConfig):
        yield Breach(
            ("cluster", "kv", "prefix_reuse"),
            "is true, but the caches of disaggregated prefill ranks are not modelled",
            "use mixed prefill, or leave it out",
        )
    seen: set[int] = set()
    for index, death in enumerate(cluster.deaths):
        at: Keys = ("cluster", "deaths", index)
        if death.rank >= cluster.ranks or death.rank in seen:
            why = "dies twice" if death.rank in seen else f"there are {cluster.ranks} ranks"
            yield Breach((*at, "rank"), f"is {death.rank}, but {why}; legal are 0 to ranks - 1")
        if death.back_s is not None and death.back_s <= death.at_s:
            yield Breach((*at, "back_s"), f"is {death.back_s:g}, not after at_s = {death.at_s:g}")
        seen.add(death.rank)
    for name, policy in policies.items():
        yield from _engine_policy(name, policy, cluster)


def _engine_policy(name: str, policy: PolicyConfig, cluster: ClusterConfig) -> Iterator[Breach]:
    prefill, budget = cluster.prefill, policy.lockstep_budget
    if isinstance(policy.scheduler, AdaptiveStepsConfig) and cluster.lockstep is not None:
        yield Breach(
            ("policies", name, "scheduler", "kind"),
            'is "adaptive_steps", which no engine runs under attention data parallelism: each rank '
            "would settle on lengths of its own",
            "use another scheduler, or leave cluster.lockstep out",
        )
    step = 1 + policy.gamma
    if isinstance(prefill, MixedPrefillConfig) and prefill.tokens_per_step < step:
        yield Breach(
            ("cluster", "prefill", "tokens_per_step"),
            f"is {prefill.tokens_per_step}, less than the {step} tokens of one request's step of "
            f"the policy {name} (gamma {policy.gamma})",
        )
    if budget is not None and cluster.lockstep is None:
        yield Breach(
            ("policies", name, "lockstep_budget"),
            f'is "{budget}", but the ranks are not in lockstep',
            "give cluster.lockstep, or leave it out",
        )
    elif cluster.lockstep is not None and (budget or cluster.lockstep.budget) == "group":
        try:
            reads = policy.scheduler.build().reads
        except Exception:  # said by `_policy`
            return
        if not {"live", "lagged"} <= reads:
            yield Breach(
                ("policies", name, "scheduler"),
                f'is "{policy.scheduler.kind}", but the lockstep budget group shares out live '
                "survivals under a budget from lagged ones, which it does not read",
                "use async_topk, or the lockstep_budget per_rank or max_tier",
            )


def _policy(name: str, policy: PolicyConfig) -> Iterator[Breach]:
    keys: Keys = ("policies", name)
    scheduler = policy.scheduler
    speculates = not isinstance(scheduler, NoneConfig)
    if speculates and policy.gamma == 0:
        yield Breach(
            (*keys, "gamma"),
            f'is 0, but the scheduler "{scheduler.kind}" needs drafts',
            "give at least 1, or the scheduler {kind: none}",
        )
    if not speculates and policy.gamma > 0:
        yield Breach(
            (*keys, "gamma"),
            f'is {policy.gamma}, but the scheduler "none" verifies no draft, and drafting would be '
            "paid for all the same",
            "give 0",
        )
    if isinstance(scheduler, FixedConfig) and scheduler.k > policy.gamma > 0:
        yield Breach(
            (*keys, "scheduler", "k"),
            f"is {scheduler.k}, more than the policy's gamma = {policy.gamma}",
            "lower k or raise gamma",
        )
    if isinstance(scheduler, UserConfig) and not _finite(scheduler.params):
        yield Breach(
            (*keys, "scheduler", "params"), "holds .nan or .inf; finite numbers are needed"
        )
    try:
        lossless = scheduler.build().lossless
    except InputError as error:
        yield Breach((*keys, "scheduler"), str(error))
        return
    except Exception as error:
        if not isinstance(scheduler, UserConfig):
            raise
        # The user's own code: whatever it raises is the user's to put right.
        message = f'"{scheduler.kind}" fails when it is made: {type(error).__name__}: {error}'
        yield Breach((*keys, "scheduler"), message)
        return
    if not lossless and not policy.unsafe:
        yield Breach(
            (*keys, "scheduler", "kind"),
            f'is "{scheduler.kind}", which biases the output: it reads what a lossless rule may '
            "not",
            f"add `unsafe: true` to policies.{name} to run it all the same",
        )


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    return all(_finite(v) for v in inner)
