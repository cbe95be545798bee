"""The seeded battery that every scheduler is tried on: worlds to enumerate, and runs of views.

p = target law, q = draft law. Worlds cover ties, confidences of exactly 0 and 1, one to three
requests, flat and jagged step tables, requests that join and leave, and several rounds, so that
lags are felt. Views cover larger batches, where only the plan is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specsim.lossless import leaks
from specsim.lossless.probe import frozen_array, survival
from specsim.lossless.random_worlds import chooser, random_world, tempting_world
from specsim.lossless.worlds import World
from specsim.rng import stream
from specsim.schedulers.base import BatchView, FloatArray, History, IntArray, LaggedSurvival, Reads

SATURATED = np.array([0.0, 1.0])
TIED = np.array([0.25, 0.5, 0.5, 1.0])
CROWDS = (8, 12, 24, 64)
LONGEST_RUN = 30
TABLES = ("flat", "linear", "jagged", "humped", "humped", "humped", "shelf", "cliff")


def worlds(*, seed: int, count: int, post_token: bool = False) -> Iterator[World]:
    """Yield small known leaks first, then tempting and random worlds, smaller batches first.

    Args:
        seed: of the random worlds.
        count: how many tempting, and how many random worlds.
        post_token: yield worlds whose confidences read x[k].
    """
    if post_token:
        yield from (leaks.post_token(), leaks.tetris(), leaks.dcut())
    else:
        yield from (
            leaks.appendix_a(),
            leaks.nested(),
            leaks.deep(),
            leaks.tie(),
            leaks.cross(),
        )
    choose = chooser(stream(seed, "lossless/battery"))
    made = [tempting_world(choose, post_token=post_token) for _ in range(count)]
    made += [random_world(choose, post_token=post_token) for _ in range(count)]
    yield from sorted(made, key=lambda w: (len(w.requests), w.gamma, w.vocabulary, w.name))


def tokens_for(world: World) -> int:
    """Return how many output tokens to follow: enough for lags, few enough to be quick."""
    outcomes = world.vocabulary ** (world.gamma * len(world.requests))
    if len(world.requests) == 1:
        return 3 if outcomes <= 27 else 2
    return 2 if outcomes <= 16 or (len(world.requests) == 2 and outcomes <= 64) else 1


def _table(kind: str, size: int, base: int, rng: np.random.Generator) -> FloatArray:
    """Return a step table; what happens in it happens past `base` tokens."""
    batch = np.arange(size, dtype=np.float64)
    if kind == "flat":
        return np.ones(size)
    if kind == "linear":
        return 1.0 + 0.1 * batch
    if kind == "jagged":
        return np.asarray(np.cumsum(rng.integers(0, 3, size)) * 0.25 + 0.5, dtype=np.float64)
    if kind == "humped":
        # A hump right after a few anchors and cheap tokens behind it tempt a plan to look ahead.
        return np.where(batch <= base + rng.integers(1, 4), 1.0, rng.choice([1.6, 2.0, 2.5]))
    edge = base + int(rng.integers(1, size - base))
    if kind == "shelf":
        return np.where(batch <= edge, 1.0, 2.0)
    return np.where(batch <= edge, 1.0 + 0.01 * batch, 5.0)


def confidences(rng: np.random.Generator, num_requests: int, gamma: int) -> FloatArray:
    """Return confidences: smooth, tied, saturated, rounded to float16, or sure until they break."""
    shape = (num_requests, gamma)
    kind = int(rng.integers(8))
    if kind == 0:
        return rng.random(shape)
    if kind == 1:
        return rng.choice(TIED, shape)
    if kind == 2:
        return rng.choice(SATURATED, shape)
    if kind == 3:
        return rng.random(shape).astype(np.float16).astype(np.float64)
    break_at = rng.integers(1, gamma + 2, (num_requests, 1))
    return np.where(np.arange(gamma) < break_at, 0.95, 0.02)


class ViewRun:
    """One run of steps as an engine would show them, requests joining and leaving in between.

    Attributes:
        gamma: drafts a request.
        prefill: prompt tokens in every forward beside the anchors.
        steps: (request ids, confidences) of each step.
    """

    def __init__(
        self, rng: np.random.Generator, *, num_steps: int, crowd: int = 0, prefill: int = 0
    ) -> None:
        """Draw a run of at most 5 requests, or of about `crowd` of them."""
        self.gamma, self.prefill = int(rng.integers(1, 8)), prefill
        table, most = TABLES[int(rng.integers(len(TABLES)))], max(crowd, 5)
        size = prefill + most * (self.gamma + 1) + 1
        self.verify_s_B = frozen_array(_table(table, size, prefill + crowd, rng), np.float64)
        self.fixed_s = float(rng.choice([0.0, 0.5]))
        running = list(range(crowd or int(rng.integers(1, 4))))
        following = len(running)
        self.steps: list[tuple[IntArray, FloatArray]] = []
        self.histories: list[IntArray] = []
        self.sampled: list[FloatArray] = []
        for _ in range(num_steps):
            ids = np.array(running, dtype=np.int64)
            self.steps.append((ids, confidences(rng, len(running), self.gamma)))
            self.sampled.append(rng.random((len(running), self.gamma)))
            counts = np.sort(rng.integers(0, 9, (3, len(running))), axis=0)
            self.histories.append(counts[[0, 2, 1]].astype(np.int64))
            if len(running) > 1 and rng.random() < 0.4:
                running.pop(int(rng.integers(len(running))))
            if len(running) < most and rng.random() < 0.4:
                running.append(following)
                following += 1

    def views(
        self,
        reads: frozenset[Reads],
        lag: int,
        *,
        last: FloatArray | None = None,
        last_sampled: FloatArray | None = None,
    ) -> list[BatchView]:
        """Return the view of each step for a scheduler that reads this.

        Args:
            reads: declared reads; the rest of the view is left out.
            lag: the scheduler's lag.
            last: live confidences of the last step, to be shown instead of its own.
            last_sampled: the same for q of the sampled tokens.
        """
        past = LaggedSurvival(lag if "lagged" in reads else 0)
        made = []
        for step, (ids, own_RG) in enumerate(self.steps):
            at_end = step == len(self.steps) - 1
            shown_RG = last if last is not None and at_end else own_RG
            sampled_RG = self.sampled[step]
            if last_sampled is not None and at_end:
                sampled_RG = last_sampled
            confidence_RG = frozen_array(shown_RG, np.float64)
            survival_RG = survival(confidence_RG)
            lagged_RG = past.aligned(ids, survival_RG)
            past.push(ids, survival_RG)
            live = "live" in reads
            made.append(
                BatchView(
                    step=step,
                    gamma=self.gamma,
                    request_id_R=frozen_array(ids, np.int64),
                    base_tokens=len(ids) + self.prefill,
                    verify_s_B=self.verify_s_B,
                    fixed_s=self.fixed_s,
                    confidence_RG=confidence_RG if live else None,
                    survival_RG=survival_RG if live else None,
                    lagged_survival_RG=(
                        frozen_array(lagged_RG, np.float64) if "lagged" in reads else None
                    ),
                    history=(
                        History(*(frozen_array(row, np.int64) for row in self.histories[step]))
                        if "history" in reads
                        else None
                    ),
                    sampled_RG=(
                        frozen_array(sampled_RG, np.float64) if "sampled" in reads else None
                    ),
                )
            )
        return made


def view_runs(*, seed: int, count: int) -> Iterator[ViewRun]:
    """Yield runs of one to five steps.

    Every twentieth is of thirty, for rules that learn; every eighth is of a crowd of 8 to 64
    requests, for rules that look ahead only under load; every fifth has prefill tokens.
    """
    rng = stream(seed, "lossless/views")
    for index in range(count):
        yield ViewRun(
            rng,
            num_steps=LONGEST_RUN if index % 20 == 19 else 1 + index % 5,
            crowd=CROWDS[index // 8 % len(CROWDS)] if index % 8 == 6 else 0,
            prefill=37 if index % 5 == 3 else 0,
        )
