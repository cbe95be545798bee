"""What a scenario can say about the engine: memory, prefill, lockstep, patience and deaths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from specsim.cost.model import CostConfig
from specsim.engine.faults import Death, Patience
from specsim.engine.kv import KvSpec
from specsim.engine.lockstep import Lockstep
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.registry import Config

Locate = Callable[[str, str], Path]
LockstepBudget = Literal["per_rank", "max_tier", "group"]


class KvConfig(Config):
    """The KV memory of every rank, in blocks. Left out, memory has no limit."""

    blocks_per_rank: int = Field(ge=1, le=10**9, description="Blocks of one rank.")
    block_tokens: int = Field(default=16, ge=1, le=65_536, description="Tokens of a block.")
    admission: Literal["worst_case", "optimistic"] = Field(
        default="worst_case",
        description="worst_case: a request comes in when all that it can need is free; "
        "optimistic: when what it needs now is, and others are put back when memory runs out.",
    )
    preemption: Literal["recompute", "swap"] = Field(
        default="recompute",
        description="Of a request that is put back: prefill it again, or move its KV to the host.",
    )
    swap_us_per_token: float = Field(
        default=0.0, ge=0, description="Swap time a KV token and way, on top of the next step."
    )
    watermark: float = Field(
        default=0.01, ge=0, lt=1, description="Share of the blocks that optimistic admission keeps."
    )
    prefix_reuse: bool = Field(
        default=False, description="Equal leading blocks of prompts are held, and read, once."
    )
    spiral_after: int = Field(
        default=1000,
        ge=1,
        description="Preemptions of a rank without a finished request that end the run.",
    )

    @model_validator(mode="after")
    def _swap_costs(self) -> KvConfig:
        swaps = self.admission == "optimistic" and self.preemption == "swap"
        if swaps != (self.swap_us_per_token > 0):
            raise PydanticCustomError(
                "cross_field",
                "is {value}; swapping takes time, and nothing else does: give it with admission "
                "optimistic and preemption swap, and only there",
                {"at": "swap_us_per_token", "value": self.swap_us_per_token},
            )
        return self

    def build(self) -> KvSpec:
        """Make the engine's spec."""
        return KvSpec(
            blocks=self.blocks_per_rank,
            block_tokens=self.block_tokens,
            admission=self.admission,
            preemption=self.preemption,
            swap_s_per_token=self.swap_us_per_token * 1e-6,
            watermark=self.watermark,
            prefix_reuse=self.prefix_reuse,
            spiral_after=self.spiral_after,
        )


class MixedPrefillConfig(Config):
    """Prompts are read in chunks inside the forwards of the decoding ranks."""

    kind: Literal["mixed"]
    tokens_per_step: int = Field(
        ge=1, le=10**6, description="Most tokens of a forward: anchors, drafts and prompts."
    )
    reserve: Literal["full", "plan"] = Field(
        default="full",
        description="What decoding requests keep of them: 1 + gamma each, or what is planned.",
    )

    @property
    def extra_tokens(self) -> int:
        """Prompt tokens that a decode forward can hold at most."""
        return self.tokens_per_step

    def build(self, *, cost: CostConfig, locate: Locate) -> MixedPrefill:
        """Make the engine's spec."""
        del cost, locate  # the decoding ranks' own cost
        return MixedPrefill(self.tokens_per_step, self.reserve)


class DisaggregatedPrefillConfig(Config):
    """Prompts are read on ranks of their own, which send the KV to the decoding ranks."""

    kind: Literal["disaggregated"]
    ranks: int = Field(ge=1, le=4096, description="Prefill ranks; they share one queue.")
    tokens_per_step: int = Field(ge=1, le=10**6, description="Most prompt tokens of a forward.")
    cost: CostConfig | None = Field(
        default=None, description="What their forwards cost; as the scenario's cost if left out."
    )
    transfer_ms: float = Field(ge=0, le=1e6, description="Time of every KV transfer.")
    transfer_us_per_token: float = Field(
        default=0.0, ge=0, le=1e6, description="Time more a token of KV."
    )
    first_round: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Factor on conditional acceptances in the first round after a transfer.",
    )

    @property
    def extra_tokens(self) -> int:
        """Prompt tokens that a decode forward can hold at most."""
        return 0

    def build(self, *, cost: CostConfig, locate: Locate) -> DisaggregatedPrefill:
        """Make the engine's spec; see `CostConfig.build` for what it raises."""
        step_cost = (self.cost or cost).build(
            locate=locate, max_requests=1, max_tokens=self.tokens_per_step, draft="none"
        )
        return DisaggregatedPrefill(
            ranks=self.ranks,
            tokens_per_step=self.tokens_per_step,
            cost=step_cost,
            transfer_s=self.transfer_ms * 1e-3,
            transfer_s_per_token=self.transfer_us_per_token * 1e-6,
            first_round=self.first_round,
        )


PREFILL_CONFIGS: tuple[type[Config], ...] = (MixedPrefillConfig, DisaggregatedPrefillConfig)


class LockstepConfig(Config):
    """Ranks step together and wait for the slowest (attention-DP with expert parallelism)."""

    budget: LockstepBudget = Field(
        default="per_rank",
        description="per_rank: each rank plans alone; max_tier: all ranks pad to the largest "
        "forward; group: one budget for all. A policy may have its own.",
    )
    tiers: tuple[int, ...] = Field(
        default=(), max_length=1024, description="Captured forward sizes, tokens, for max_tier."
    )

    @field_validator("tiers")
    @classmethod
    def _rising(cls, tiers: tuple[int, ...]) -> tuple[int, ...]:
        for before, following in pairwise((0, *tiers)):
            if following <= before:
                raise PydanticCustomError(
                    "increasing",
                    "{after} follows {before}; strictly increasing values are needed",
                    {"after": following, "before": before},
                )
        return tiers

    def build(self, budget: LockstepBudget | None) -> Lockstep:
        """Make the engine's spec, with a policy's own budget if it has one."""
        budget = budget or self.budget
        return Lockstep(budget, self.tiers if budget == "max_tier" else ())


class DeathConfig(Config):
    """A rank that dies: its requests start again on the others."""

    rank: int = Field(ge=0, description="Its index, from 0.")
    at_s: float = Field(ge=0, le=1e9, description="When, simulated seconds.")
    back_s: float | None = Field(
        default=None, ge=0, le=1e9, description="When it serves again; never if left out."
    )

    def build(self) -> Death:
        """Make the engine's spec."""
        return Death(self.rank, self.at_s, self.back_s)


class PatienceLimitsConfig(Config):
    """When users give up: they cancel, or time out."""

    first_token_s: float | None = Field(
        default=None, gt=0, le=1e9, description="Longest wait for the first token."
    )
    total_s: float | None = Field(
        default=None, gt=0, le=1e9, description="Longest wait for the last token."
    )
    cancel_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of the requests that their users cancel."
    )
    cancel_after_s: float | None = Field(
        default=None, gt=0, le=1e9, description="Mean time until they do (exponential)."
    )

    @model_validator(mode="after")
    def _whole(self) -> PatienceLimitsConfig:
        if (self.cancel_share > 0) != (self.cancel_after_s is not None):
            raise PydanticCustomError(
                "cross_field",
                "is {value}; cancel_share and cancel_after_s go together",
                {"at": "cancel_after_s", "value": str(self.cancel_after_s)},
            )
        return self

    def build(self) -> Patience:
        """Make the engine's spec."""
        return Patience(
            self.first_token_s, self.total_s, self.cancel_share, self.cancel_after_s or 1.0
        )
