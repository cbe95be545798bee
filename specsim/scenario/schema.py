"""What a scenario file can say: frozen models and unions over `kind`.

Each component declares its own config beside itself; here they are put together. What no single
value shows (a baseline that is no policy) is in `rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from specsim import acceptance, schedulers
from specsim.acceptance.trace import DenseTrace
from specsim.cost.model import CostConfig, TermChoice
from specsim.engine.config import (
    PREFILL_CONFIGS,
    DeathConfig,
    DisaggregatedPrefillConfig,
    KvConfig,
    LockstepBudget,
    LockstepConfig,
    MixedPrefillConfig,
    PatienceLimitsConfig,
)
from specsim.engine.router import RouterKind
from specsim.registry import Config, is_user_kind
from specsim.schedulers import Scheduler
from specsim.workload import arrivals, joint, lengths
from specsim.workload.feed import PairLaw

USER_TAG = "module:Class"
MAX_GAMMA = 64
MAX_POINTS = 256


def kind_of(value: Any) -> str | None:
    """Return the tag that picks a member of a union: its `kind`, or `USER_TAG` for a user's."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if not isinstance(kind, str):
        return None
    return USER_TAG if is_user_kind(kind) else kind


def _own_kind(config: type[Config]) -> str:
    literal: Any = config.model_fields["kind"].annotation
    return str(literal.__args__[0])


def scheduler_kinds() -> list[tuple[str, str]]:
    """Return the kind of every scheduler and the first line of what it does."""
    kinds = [(_own_kind(config), config.__doc__ or "") for config in schedulers.CONFIGS]
    kinds.append((USER_TAG, schedulers.UserConfig.__doc__ or ""))
    return [(kind, text.strip().partition("\n")[0]) for kind, text in kinds]


def one_of(*configs: type[Config], user: type[Config] | None = None) -> Any:
    """Make the union of `configs` by their `kind`; `user` takes every `module:Class`."""
    members = [Annotated[config, Tag(_own_kind(config))] for config in configs]
    if user is not None:
        members.append(Annotated[user, Tag(USER_TAG)])
    return Annotated[reduce(or_, members), Discriminator(kind_of)]


if TYPE_CHECKING:
    # What a type checker may rely on; the unions below are put together at run time.
    class _Arrival(Config):
        kind: str

    class _Length(Config):
        kind: str

        @property
        def longest(self) -> int: ...

        def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]: ...

    class _Joint(Config):
        kind: str

        def build(self, locate: Callable[[str, str], Path]) -> PairLaw: ...

    class _Acceptance(Config):
        kind: str

        def build(
            self, *, seed: int, gamma: int, locate: Callable[[str, str], Path]
        ) -> DenseTrace: ...

    class _Scheduler(Config):
        kind: str

        def build(self) -> Scheduler: ...

    ArrivalConfig = _Arrival
    LengthConfig = _Length
    JointConfig = _Joint
    AcceptanceConfig = _Acceptance
    SchedulerConfig = _Scheduler
    PrefillConfig = MixedPrefillConfig | DisaggregatedPrefillConfig
else:
    ArrivalConfig = one_of(*arrivals.CONFIGS)
    LengthConfig = one_of(*lengths.CONFIGS)
    JointConfig = one_of(*joint.CONFIGS)
    AcceptanceConfig = one_of(*acceptance.CONFIGS)
    SchedulerConfig = one_of(*schedulers.CONFIGS, user=schedulers.UserConfig)
    PrefillConfig = one_of(*PREFILL_CONFIGS)


def _plain_name(name: str) -> str:
    if not name or len(name) > 64 or not all(c.isalnum() or c in "_-+" for c in name):
        raise PydanticCustomError(
            "plain_name", "a name of 1 to 64 letters, digits, _, - and + is needed"
        )
    return name


def _increasing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for before, after in pairwise(values):
        if after <= before:
            raise PydanticCustomError(
                "increasing",
                "{after} follows {before}; strictly increasing values are needed",
                {"after": after, "before": before},
            )
    return values


Name = Annotated[str, AfterValidator(_plain_name)]
"""Names become folder names, columns and parts of `--set` paths."""

Users = Annotated[int, Field(ge=1, le=65_536)]
Speed = Annotated[float, Field(gt=0, le=1e6)]


class PointQuestion(Config):
    """What does each policy do under this one load?"""

    kind: Literal["point"]
    concurrency: Users | None = Field(
        default=None, description="Users a rank; with closed_loop arrivals only, and needed there."
    )


class FrontierQuestion(Config):
    """How much throughput does each policy hold at a given speed of one user?"""

    kind: Literal["frontier"]
    concurrency: Annotated[
        tuple[Users, ...],
        AfterValidator(_increasing),
        Field(min_length=2, max_length=MAX_POINTS, description="Users a rank, increasing."),
    ]
    slo_tok_s_user: Annotated[
        tuple[Speed, ...],
        AfterValidator(_increasing),
        Field(
            min_length=1,
            max_length=16,
            description="Speeds of one user, tok/s, at which throughputs are compared.",
        ),
    ]
    headline_slo: Speed = Field(description="The one of slo_tok_s_user that the answer is about.")
    baseline: str = Field(description="The policy that the others are compared with.")


class StopAtTokens(Config):
    """Stop when the cluster has emitted this many output tokens, warm-up included."""

    kind: Literal["tokens"]
    output_tokens: int = Field(ge=1, le=10**12)


class StopAtSeconds(Config):
    """Stop at this simulated time."""

    kind: Literal["seconds"]
    simulated_s: float = Field(gt=0, le=1e9)


class StopAtRequests(Config):
    """Stop when this many requests have finished."""

    kind: Literal["requests"]
    num_requests: int = Field(ge=1, le=10**9)


class StopWhenDone(Config):
    """Stop when every request of a batch has finished."""

    kind: Literal["all_done"]


class ClusterConfig(Config):
    """The machines: data-parallel ranks, who sends them requests, and what limits them."""

    ranks: int = Field(default=1, ge=1, le=4096, description="Data-parallel ranks.")
    gpus_per_rank: int = Field(ge=1, le=4096, description="GPUs that share one rank's step.")
    max_requests_per_rank: int = Field(
        ge=1, le=65_536, description="Requests that a rank decodes at once; the others wait."
    )
    router: RouterKind = Field(
        default="least_loaded",
        description="Where an arriving request goes. least_loaded: the rank with the fewest "
        "requests; central_queue: one queue, to whichever rank has room first; round_robin; "
        "least_kv: fewest KV tokens; shortest_work: fewest decode tokens expected; power_of_two: "
        "the better of two at random; session_affinity: where its session or user was last.",
    )
    lockstep: LockstepConfig | None = Field(
        default=None, description="Ranks that wait for the slowest; left out, they do not."
    )
    kv: KvConfig | None = Field(
        default=None, description="KV memory of every rank; left out, it has no limit."
    )
    prefill: PrefillConfig | None = Field(
        default=None, description="Where prompts are read; left out, that takes no time."
    )
    deaths: tuple[DeathConfig, ...] = Field(
        default=(), max_length=4096, description="Ranks that die during the run."
    )


class WorkloadConfig(Config):
    """Who comes when, with how much to read and to write."""

    arrivals: ArrivalConfig
    prompt_tokens: LengthConfig | None = Field(
        default=None, description="Tokens of the prompts; of what a turn adds, with sessions."
    )
    output_tokens: LengthConfig | None = Field(default=None, description="Tokens of the answers.")
    lengths: JointConfig | None = Field(
        default=None, description="Prompts and answers that go together, in place of the two."
    )
    patience: PatienceLimitsConfig | None = Field(
        default=None, description="When users give up; left out, they never do."
    )
    priorities: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...],
        Field(max_length=16, description="Share of each priority class, the first served first."),
    ] = ()

    @model_validator(mode="after")
    def _lengths_once(self) -> WorkloadConfig:
        given = [n for n in ("prompt_tokens", "output_tokens", "lengths") if getattr(self, n)]
        if isinstance(self.arrivals, arrivals.RECORDED):
            if given:
                raise PydanticCustomError(
                    "cross_field",
                    'is given, but the requests of "{kind}" arrivals bring their own lengths; '
                    "leave it out",
                    {"at": given[0], "kind": self.arrivals.kind},
                )
            return self
        if given == ["lengths"]:
            return self
        for name in ("prompt_tokens", "output_tokens"):
            if name not in given and "lengths" not in given:
                raise PydanticCustomError(
                    "cross_field",
                    'is missing: "{kind}" arrivals need prompt and output lengths, or joint ones',
                    {"at": name, "kind": self.arrivals.kind},
                )
        if "lengths" in given:
            raise PydanticCustomError(
                "cross_field",
                "is given beside {other}; either of them says how long requests are",
                {"at": "lengths", "other": given[0]},
            )
        return self


class PolicyConfig(Config):
    """One arm of the comparison."""

    scheduler: SchedulerConfig
    gamma: int = Field(
        ge=0, le=MAX_GAMMA, description="Draft tokens proposed a request and step; 0 for none."
    )
    acceptance: AcceptanceConfig | None = Field(
        default=None, description="This policy's own drafter; the scenario's if left out."
    )
    draft: TermChoice | Literal["none"] | None = Field(
        default=None, description="This policy's own draft cost; the scenario's if left out."
    )
    lockstep_budget: LockstepBudget | None = Field(
        default=None, description="This policy's own cluster.lockstep.budget."
    )
    unsafe: bool = Field(
        default=False, description="Run a scheduler that biases the output all the same."
    )


if TYPE_CHECKING:
    Question = PointQuestion | FrontierQuestion
    Stop = StopAtTokens | StopAtSeconds | StopAtRequests | StopWhenDone
else:
    Question = one_of(PointQuestion, FrontierQuestion)
    Stop = one_of(StopAtTokens, StopAtSeconds, StopAtRequests, StopWhenDone)


class Scenario(Config):
    """One question about one fleet, and the policies that it is asked of."""

    name: Name
    description: str = Field(default="", max_length=2000)
    question: Question
    seed: int = Field(ge=0, lt=2**63, description="Same scenario and seed: the same bytes.")
    stop: Stop = Field(
        description="When one run (one policy under one load) ends. The warm-up is found, not set."
    )
    record: Literal["steps", "requests", "none"] = Field(
        default="steps",
        description="What is stored beside the summary: a row a step and a row a request, the "
        "latter alone, or neither. The summary does not depend on it.",
    )
    cluster: ClusterConfig
    workload: WorkloadConfig
    acceptance: AcceptanceConfig
    cost: CostConfig
    policies: dict[Name, PolicyConfig] = Field(min_length=1, max_length=64)
