"""Replay against the trace it replays, and against speculative decoding that never saw a trace.

Two comparisons. (1) On the shipped real trace, the engine's fixed-k rounds of every request equal
an independent walk over the recorded acceptances, exactly. (2) In a toy world of Markov chains,
where speculative decoding can be run for real, a dense coupled trace replayed by the engine's rules
gives the acceptance length of the true rollout: within its interval for fixed lengths, and with a
measured gap for the lagged scheduler, which reads unverified suffixes that a trace keeps coupled to
the text (docs/decisions/0001).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.blocks import Blocks, lay_out
from specsim.acceptance.trace import DenseTrace, load_trace
from specsim.engine.run import Batch, ClosedLoop, RunInput, Stop, run
from specsim.errors import InputError
from specsim.rng import stream
from specsim.scenario.locate import shipped
from specsim.schedulers.base import BatchView, LaggedSurvival, Scheduler
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK
from specsim.stats.intervals import Interval, ratio_interval
from specsim.study.validation import Check, Validation
from specsim.workload.lengths import FixedLengthConfig

FloatArray = NDArray[np.float64]

REQUESTS = 300
TOKENS = 129


class _AffineCost:
    """base + slope * tokens: enough of a trade-off for a scheduler to have an opinion."""

    def __init__(self, base_s: float, slope_s: float, longest: int) -> None:
        self.verify_s_B = base_s + slope_s * np.arange(longest + 1, dtype=np.float64)

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        return 0.0

    def charged_tokens(self, verify_len_R: NDArray[np.int64]) -> int:
        return len(verify_len_R) + int(verify_len_R.sum())


def walk(blocks: Blocks, sequence: int, verify_len: int, tokens: int) -> tuple[int, int]:
    """Return (rounds, accepted drafts) of one request at a fixed length, row by row.

    Args:
        blocks: the trace.
        sequence: where the request starts.
        verify_len: drafts verified every round.
        tokens: decode tokens to emit.
    """
    row = int(blocks.first_row_S[sequence])
    rounds = accepted_sum = 0
    while tokens > 0:
        accepted = min(verify_len, int(blocks.num_accepted_N[row]))
        rounds += 1
        accepted_sum += accepted
        tokens -= accepted + 1
        row += accepted + 1
        if row >= blocks.end_row_S[sequence]:
            sequence = int(blocks.next_sequence_S[sequence])
            row = int(blocks.first_row_S[sequence])
    return rounds, accepted_sum


def engine_against_walk(trace: DenseTrace, verify_len: int, *, seed: int) -> tuple[float, int]:
    """Run a batch at a fixed length; return (acceptance length, requests that differ)."""
    blocks = lay_out(trace, gamma=trace.gamma, seed=seed)
    starts: list[int] = []

    class Recording(Blocks):
        """Blocks that remember where each request started."""

        __slots__ = ()

        def sequence(self, domain: int, u: float) -> int:
            starts.append(Blocks.sequence(self, domain, u))
            return starts[-1]

    fields = {name: getattr(blocks, name) for name in Blocks.__dataclass_fields__}
    out = run(
        RunInput(
            blocks=Recording(**fields),
            scheduler=partial(FixedLength, verify_len),
            cost=_AffineCost(1e-3, 1e-5, 64 * (1 + trace.gamma)),
            load=Batch(REQUESTS),
            prompt=FixedLengthConfig(kind="fixed", tokens=16),
            output=FixedLengthConfig(kind="fixed", tokens=TOKENS),
            domain_weights_D=blocks.domain_shares(),
            ranks=1,
            capacity=64,
            router="least_loaded",
            seed=seed,
            stop=Stop(),
        )
    )
    expected = np.array([walk(blocks, start, verify_len, TOKENS - 1) for start in starts])
    found = np.stack([out.requests["rounds"], out.requests["accepted"]], axis=1)
    differ = int((expected != found).any(axis=1).sum())
    return float(1 + found[:, 1].sum() / found[:, 0].sum()), differ


@dataclass(frozen=True, slots=True)
class ToyWorld:
    """Markov target and draft over V tokens; the confidence is the exact acceptance rate.

    Attributes:
        p_VV: target law of the next token after each token, `[V, V]`.
        q_VV: draft law, likewise.
        confidence_V: sum of min(p, q) after each token: P(the next draft is accepted), `[V]`.
    """

    p_VV: FloatArray
    q_VV: FloatArray
    confidence_V: FloatArray

    @classmethod
    def draw(cls, rng: np.random.Generator, vocabulary: int) -> ToyWorld:
        """Draw laws whose overlap varies from token to token."""
        p_VV = rng.dirichlet(np.full(vocabulary, 0.6), vocabulary)
        noise_VV = rng.dirichlet(np.full(vocabulary, 0.6), vocabulary)
        trust_V = rng.beta(3, 1, vocabulary)[:, None]
        q_VV = trust_V * p_VV + (1 - trust_V) * noise_VV
        return cls(p_VV, q_VV, np.minimum(p_VV, q_VV).sum(axis=1))

    def draft(
        self, anchor_R: NDArray[np.int64], gamma: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Draw gamma drafts after each anchor; return (drafts, confidences), both `[R, gamma]`."""
        draft_RG = np.empty((len(anchor_R), gamma), dtype=np.int64)
        confidence_RG = np.empty((len(anchor_R), gamma))
        last_R = anchor_R
        for k in range(gamma):
            confidence_RG[:, k] = self.confidence_V[last_R]
            last_R = _choose(self.q_VV[last_R], rng)
            draft_RG[:, k] = last_R
        return draft_RG, confidence_RG


def _choose(law_RV: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one token from each row's law."""
    u_R = rng.random((len(law_RV), 1)) * law_RV.sum(axis=1, keepdims=True)
    index_R = (np.cumsum(law_RV, axis=1) < u_R).sum(axis=1)
    found_R: NDArray[np.int64] = np.minimum(index_R, law_RV.shape[1] - 1).astype(np.int64)
    return found_R


def true_rollout(
    world: ToyWorld,
    scheduler: Scheduler,
    cost: _AffineCost,
    *,
    requests: int,
    gamma: int,
    steps: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Run speculative decoding by rejection sampling; return tokens committed a step, `[steps]`."""
    anchor_R = rng.integers(0, len(world.p_VV), requests)
    request_id_R = np.arange(requests)
    lagged = LaggedSurvival(scheduler.lag)
    committed = np.zeros(steps, dtype=np.int64)
    for step in range(steps):
        draft_RG, confidence_RG = world.draft(anchor_R, gamma, rng)
        survival_RG = np.cumprod(confidence_RG, axis=1)
        view = BatchView(
            step=step,
            gamma=gamma,
            request_id_R=request_id_R,
            base_tokens=requests,
            verify_s_B=cost.verify_s_B,
            fixed_s=0.0,
            confidence_RG=confidence_RG,
            survival_RG=survival_RG,
            lagged_survival_RG=lagged.aligned(request_id_R, survival_RG),
        )
        verify_len_R = scheduler.plan(view)
        lagged.push(request_id_R, survival_RG)
        for r in range(requests):
            last = int(anchor_R[r])
            taken = 0
            while taken < verify_len_R[r]:
                x = int(draft_RG[r, taken])
                p, q = world.p_VV[last], world.q_VV[last]
                if rng.random() * q[x] >= p[x]:
                    last = int(_choose(np.maximum(p - q, 0.0)[None], rng)[0])
                    break
                last = x
                taken += 1
            else:
                last = int(_choose(world.p_VV[last][None], rng)[0])
            anchor_R[r] = last
            committed[step] += taken + 1
    return committed


def coupled_trace(
    world: ToyWorld, *, sequences: int, anchors: int, gamma: int, rng: np.random.Generator
) -> DenseTrace:
    """Let the target write texts and draw at every anchor the block given the text.

    Draft k agrees with the text with probability min(1, q(y) / p(y)); otherwise it is drawn from
    (q - p)+ normalised, and the rest of the block goes on from that wrong token.
    """
    text_SN = np.empty((sequences, anchors + 1), dtype=np.int64)
    text_SN[:, 0] = rng.integers(0, len(world.p_VV), sequences)
    for i in range(1, anchors + 1):
        text_SN[:, i] = _choose(world.p_VV[text_SN[:, i - 1]], rng)
    padded_SN = np.concatenate([text_SN, np.zeros((sequences, gamma), dtype=np.int64)], axis=1)
    count = sequences * anchors
    last_N = text_SN[:, :-1].reshape(count)
    alive_N = np.ones(count, dtype=bool)
    accepted_N = np.zeros(count, dtype=np.uint8)
    confidence_NG = np.empty((count, gamma), dtype=np.float32)
    for k in range(gamma):
        confidence_NG[:, k] = world.confidence_V[last_N]
        y_N = padded_SN[:, k + 1 : k + 1 + anchors].reshape(count)
        p_NV, q_NV = world.p_VV[last_N], world.q_VV[last_N]
        row_N = np.arange(count)
        with np.errstate(divide="ignore"):
            agree_N = rng.random(count) * p_NV[row_N, y_N] < q_NV[row_N, y_N]
        wrong_N = _choose(np.maximum(q_NV - p_NV, 1e-300), rng)
        free_N = _choose(q_NV, rng)
        last_N = np.where(alive_N, np.where(agree_N, y_N, wrong_N), free_N)
        alive_N = alive_N & agree_N
        accepted_N += alive_N.astype(np.uint8)
    return DenseTrace(
        confidence_NG=confidence_NG,
        num_accepted_N=accepted_N,
        sequence_offset_S1=np.arange(sequences + 1, dtype=np.int64) * anchors,
        sequence_domain_S=np.zeros(sequences, dtype=np.uint8),
        domain_names=("toy",),
        metadata={"status": "synthetic"},
    )


def _tau(committed_T: NDArray[np.int64], requests: int) -> Interval:
    steps = np.full(len(committed_T), float(requests))
    return ratio_interval(committed_T.astype(np.float64), steps, batches=30, level=0.99)


def toy_gap(
    scheduler: Scheduler, *, requests: int, gamma: int, steps: int, seed: int
) -> tuple[Interval, Interval]:
    """Return the acceptance length of the true rollout and of the replay, with 99 % intervals."""
    world = ToyWorld.draw(stream(seed, "toy/world"), 8)
    cost = _AffineCost(1.0, 0.25 / requests, requests * (1 + gamma))
    committed = true_rollout(
        world,
        scheduler,
        cost,
        requests=requests,
        gamma=gamma,
        steps=steps,
        rng=stream(seed, "toy/rollout"),
    )
    trace = coupled_trace(
        world, sequences=64, anchors=4_000, gamma=gamma, rng=stream(seed, "toy/trace")
    )
    blocks = lay_out(trace, gamma=gamma, seed=seed)
    out = run(
        RunInput(
            blocks=blocks,
            scheduler=lambda: scheduler,
            cost=cost,
            load=ClosedLoop(requests),
            prompt=FixedLengthConfig(kind="fixed", tokens=1),
            output=FixedLengthConfig(kind="fixed", tokens=9_000_000),
            domain_weights_D=blocks.domain_shares(),
            ranks=1,
            capacity=requests,
            router="least_loaded",
            seed=seed,
            stop=Stop(tokens=int(committed.sum())),
        )
    )
    return _tau(committed, requests), _tau(out.steps["emitted"], requests)


def validate() -> Validation:
    """Compare the engine's replay with the trace and with true speculative decoding."""
    path = shipped("profiles") / "traces" / "smollm2_markov_t1.npz"
    if not path.exists():
        raise InputError(f"{path}: the shipped trace is missing; install specsim again")
    trace = load_trace(path)
    checks: list[Check] = []
    for k in range(1, trace.gamma + 1):
        tau, differ = engine_against_walk(trace, k, seed=1)
        checks += [
            Check(f"real_trace_tau_fixed_{k}", tau),
            Check(f"real_trace_requests_differing_fixed_{k}", differ, high=0),
        ]
    for k in (1, 2, 4):
        rollout, replay = toy_gap(FixedLength(k), requests=4, gamma=4, steps=12_000, seed=k)
        allowed = float(np.hypot(rollout.half_width, replay.half_width))
        checks += [
            Check(f"toy_tau_rollout_fixed_{k}", rollout.mean),
            Check(
                f"toy_tau_replay_fixed_{k}",
                replay.mean,
                rollout.mean - allowed,
                rollout.mean + allowed,
            ),
        ]
    for requests in (1, 4):
        rollout, replay = toy_gap(AsyncTopK(2), requests=requests, gamma=4, steps=16_000, seed=7)
        gap = replay.mean / rollout.mean - 1
        noise = float(np.hypot(rollout.half_width, replay.half_width)) / rollout.mean
        checks += [
            Check(f"toy_tau_gap_async_topk_{requests}_requests", gap, -0.01 - noise, 0.01 + noise),
            Check(f"toy_tau_gap_async_topk_{requests}_requests_ci99", noise, high=0.02),
        ]
    return Validation(
        "replay",
        checks,
        fitted_on="",
        predicted="acceptance lengths of the engine from recorded acceptances (exact), and of true "
        "speculative decoding in a toy world (99 % intervals)",
    )
