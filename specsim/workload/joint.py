"""Prompt and output lengths that go together: resampled pairs, or correlated lognormals."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config
from specsim.workload.formats import read_columns
from specsim.workload.lengths import Locate, LognormalLengthConfig
from specsim.workload.replay import ReplayConfig

IntArray = NDArray[np.int64]


class ResampledPairs:
    """Draws whole pairs, with replacement.

    Args:
        prompt_tokens_N: int64 `[N]`.
        output_tokens_N: the outputs that belong to them.
    """

    def __init__(self, prompt_tokens_N: IntArray, output_tokens_N: IntArray) -> None:
        self._prompt_N, self._output_N = prompt_tokens_N, output_tokens_N

    @property
    def longest_output(self) -> int:
        """The longest answer that can come, tokens."""
        return int(self._output_N.max())

    def sample(self, rng: np.random.Generator, size: int) -> tuple[IntArray, IntArray]:
        """Return `size` pairs."""
        at = rng.integers(0, len(self._prompt_N), size)
        return self._prompt_N[at], self._output_N[at]


class TracePairsConfig(Config):
    """Pairs of a recorded trace or of two columns of a CSV file, drawn anew; no times are used."""

    kind: Literal["pairs"]
    replay: ReplayConfig | None = Field(default=None, description="A trace, as replay takes it.")
    file: str | None = Field(default=None, description="Or a CSV file beside the scenario,")
    prompt_column: str | None = Field(default=None, description="its column of prompt lengths,")
    output_column: str | None = Field(default=None, description="and its column of outputs.")

    @model_validator(mode="after")
    def _one_source(self) -> TracePairsConfig:
        of_file = (self.file, self.prompt_column, self.output_column)
        if (self.replay is None) != all(part is not None for part in of_file) or (
            self.replay is not None and any(part is not None for part in of_file)
        ):
            raise PydanticCustomError(
                "cross_field",
                "needs either replay, or file with prompt_column and output_column",
                {"at": "replay"},
            )
        return self

    def build(self, locate: Locate) -> ResampledPairs:
        """Return the law.

        Raises:
            InputError: the file is missing or wrong.
        """
        if self.replay is not None:
            table = self.replay.load(locate)
            return ResampledPairs(table.prompt_tokens_N, table.output_tokens_N)
        assert self.file is not None
        assert self.prompt_column is not None
        assert self.output_column is not None
        path = locate("workloads", self.file)
        return ResampledPairs(*read_columns(path, (self.prompt_column, self.output_column)))


class CorrelatedPairsConfig(Config):
    """Two lognormals whose logarithms are correlated, each cut to its own [min, max]."""

    kind: Literal["correlated"]
    prompt: LognormalLengthConfig
    output: LognormalLengthConfig
    correlation: float = Field(gt=-1, lt=1, description="Of the two logarithms, before the cuts.")

    @property
    def longest_output(self) -> int:
        """The longest answer that can come, tokens."""
        return self.output.longest

    def build(self, locate: Locate) -> CorrelatedPairsConfig:
        """Return the law itself; it needs no file."""
        return self

    def sample(self, rng: np.random.Generator, size: int) -> tuple[IntArray, IntArray]:
        """Return `size` pairs."""
        one_N, two_N = rng.standard_normal((2, size))
        two_N = self.correlation * one_N + np.sqrt(1 - self.correlation**2) * two_N
        return self.prompt.at(one_N), self.output.at(two_N)


CONFIGS: tuple[type[Config], ...] = (TracePairsConfig, CorrelatedPairsConfig)
