"""How long prompts and outputs are, in tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config

MAX_TOKENS = 10_000_000


class FixedLengthConfig(Config):
    """Every request the same."""

    kind: Literal["fixed"]
    tokens: int = Field(ge=1, le=MAX_TOKENS, description="Tokens of every request.")

    @property
    def longest(self) -> int:
        """The longest that can come, tokens."""
        return self.tokens

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        return np.full(size, self.tokens, dtype=np.int64)


class LognormalLengthConfig(Config):
    """Lognormal with a given mean and coefficient of variation, rounded and cut to [min, max].

    `mean` and `cv` are those of the law before it is cut.
    """

    kind: Literal["lognormal"]
    mean: float = Field(ge=1, le=MAX_TOKENS, description="Mean tokens, before the cut.")
    cv: float = Field(gt=0, le=100, description="Standard deviation over mean, before the cut.")
    min: int = Field(default=1, ge=1, le=MAX_TOKENS, description="Shortest, tokens.")
    max: int = Field(default=MAX_TOKENS, ge=1, le=MAX_TOKENS, description="Longest, tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> LognormalLengthConfig:
        if not self.min <= self.mean <= self.max:
            raise PydanticCustomError(
                "cross_field",
                "{mean} lies outside [min, max] = [{min}, {max}]",
                {"at": "mean", "mean": self.mean, "min": self.min, "max": self.max},
            )
        return self

    @property
    def longest(self) -> int:
        """The longest that can come, tokens."""
        return self.max

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        variance = np.log1p(self.cv**2)
        drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), size)
        return np.clip(np.rint(drawn), self.min, self.max).astype(np.int64)


class UniformLengthConfig(Config):
    """Whole numbers from min to max, both included, all equally likely."""

    kind: Literal["uniform"]
    min: int = Field(ge=1, le=MAX_TOKENS, description="Shortest, tokens.")
    max: int = Field(ge=1, le=MAX_TOKENS, description="Longest, tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> UniformLengthConfig:
        if self.min > self.max:
            raise PydanticCustomError(
                "cross_field",
                "{min} is above max = {max}",
                {"at": "min", "min": self.min, "max": self.max},
            )
        return self

    @property
    def longest(self) -> int:
        """The longest that can come, tokens."""
        return self.max

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        return rng.integers(self.min, self.max, size, dtype=np.int64, endpoint=True)


CONFIGS: tuple[type[Config], ...] = (FixedLengthConfig, LognormalLengthConfig, UniformLengthConfig)
