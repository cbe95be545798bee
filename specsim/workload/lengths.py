"""How long prompts and outputs are, in tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config
from specsim.workload.formats import read_columns

MAX_TOKENS = 10_000_000
Locate = Callable[[str, str], Path]


class FixedLengthConfig(Config):
    """Every request the same."""

    kind: Literal["fixed"]
    tokens: int = Field(ge=1, le=MAX_TOKENS, description="Tokens of every request.")

    @property
    def longest(self) -> int:
        """The longest that can come, tokens."""
        return self.tokens

    def build(self, locate: Locate) -> Self:
        """Return the law itself; it needs no file."""
        return self

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

    def build(self, locate: Locate) -> Self:
        """Return the law itself; it needs no file."""
        return self

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        variance = np.log1p(self.cv**2)
        drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), size)
        return self._cut(drawn)

    def at(self, normal_N: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the lengths that belong to standard normals."""
        variance = np.log1p(self.cv**2)
        return self._cut(np.exp(np.log(self.mean) - variance / 2 + np.sqrt(variance) * normal_N))

    def _cut(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
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

    def build(self, locate: Locate) -> Self:
        """Return the law itself; it needs no file."""
        return self

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        return rng.integers(self.min, self.max, size, dtype=np.int64, endpoint=True)


class EmpiricalLengthConfig(Config):
    """Lengths as they were counted: given here, or one column of a CSV file with a header."""

    kind: Literal["empirical"]
    tokens: tuple[int, ...] | None = Field(
        default=None, min_length=1, max_length=100_000, description="Lengths, each at least 1."
    )
    weights: tuple[float, ...] | None = Field(
        default=None, description="How often each of `tokens` comes; equally often if left out."
    )
    file: str | None = Field(default=None, description="CSV file, a path beside the scenario.")
    column: str | None = Field(default=None, description="Its column of lengths.")

    @model_validator(mode="after")
    def _one_source(self) -> EmpiricalLengthConfig:
        if (self.tokens is None) == (self.file is None):
            raise PydanticCustomError(
                "cross_field", "needs either tokens or a file", {"at": "tokens"}
            )
        if (self.file is None) != (self.column is None):
            raise PydanticCustomError(
                "cross_field",
                "and file belong together: which column of which file",
                {"at": "column"},
            )
        for tokens in self.tokens or ():
            if not 1 <= tokens <= MAX_TOKENS:
                raise PydanticCustomError(
                    "cross_field",
                    "holds {tokens}; 1 .. {most} tokens are legal",
                    {"at": "tokens", "tokens": tokens, "most": MAX_TOKENS},
                )
        self._check_weights()
        return self

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if self.tokens is None or len(self.weights) != len(self.tokens):
            raise PydanticCustomError(
                "cross_field", "needs one weight for each of tokens", {"at": "weights"}
            )
        if min(self.weights) < 0 or sum(self.weights) <= 0:
            raise PydanticCustomError(
                "cross_field", "must be at least 0 and not all 0", {"at": "weights"}
            )

    def build(self, locate: Locate) -> Empirical:
        """Return the law.

        Raises:
            InputError: the file is missing or wrong.
        """
        if self.tokens is not None:
            return empirical(np.array(self.tokens, dtype=np.int64), self.weights)
        assert self.file is not None
        assert self.column is not None
        (found_N,) = read_columns(locate("workloads", self.file), (self.column,))
        return empirical(found_N)


@dataclass(frozen=True, slots=True, eq=False)
class Empirical:
    """Draws from counted lengths.

    Attributes:
        tokens_N: the lengths, int64 `[N]`.
        cumulative_N: cumulative probability of each, float64 `[N]`.
    """

    tokens_N: NDArray[np.int64]
    cumulative_N: NDArray[np.float64]

    @property
    def longest(self) -> int:
        """The longest that can come, tokens."""
        return int(self.tokens_N.max())

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64 tokens."""
        at = np.searchsorted(self.cumulative_N, rng.random(size), side="right")
        return self.tokens_N[np.minimum(at, len(self.tokens_N) - 1)]


def empirical(tokens_N: NDArray[np.int64], weights: tuple[float, ...] | None = None) -> Empirical:
    """Return the law of the given lengths, equally likely or by weight; weight 0 never comes."""
    weight_N = np.ones(len(tokens_N)) if weights is None else np.array(weights)
    kept_N = weight_N > 0
    cumulative_N = np.cumsum(weight_N[kept_N])
    return Empirical(tokens_N[kept_N], cumulative_N / cumulative_N[-1])


CONFIGS: tuple[type[Config], ...] = (
    FixedLengthConfig,
    LognormalLengthConfig,
    UniformLengthConfig,
    EmpiricalLengthConfig,
)
