"""vLLM on B300 as the simulator sees it: measured steps, prompts in them, and vLLM's planner.

Prompts share the forwards with the decoding requests, as in vLLM: a step that would have fitted the
captured graphs can so pass the graph limit, which is what happens at 1,024 decode tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.blocks import lay_out
from specsim.acceptance.trace import DenseTrace
from specsim.cost.table import StepTable
from specsim.engine.prefill import MixedPrefill
from specsim.engine.run import Batch, RunInput, Stop, run
from specsim.schedulers.base import BatchView, IntArray, Reads, Scheduler
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, allocate, ascending, capacity
from specsim.workload.lengths import FixedLengthConfig, LognormalLengthConfig

FloatArray = NDArray[np.float64]

MAX_REQUESTS = 256
PROMPTS = 880
PROMPTS_ALONE = 240
"""Prompts of the sweep, and at c = 1, as the draft's command says."""
LONGEST_OUTPUT = 512
"""`--output-len` of that command; an end-of-sequence token ends a request before it."""
STEP_TOKENS = 8192
"""vLLM's default budget of tokens a step, prompts and reserved draft slots together."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the benchmark's requests.

    Attributes:
        prompt_tokens: every prompt.
        output_mean: mean output tokens before the cut at 512; fitted.
        output_cv: standard deviation over mean; fitted.
    """

    prompt_tokens: int
    output_mean: float
    output_cv: float


class VllmPlanner:
    """vLLM's adaptive verification: argmax of expected tokens over draft + verify time, no host.

    The budget comes from the survivals of the step before, the split from the live ones.
    """

    reads: frozenset[Reads] = frozenset({"live", "lagged"})
    lag = 1
    lossless = True

    def __init__(self, table: StepTable, max_tokens: int) -> None:
        # What vLLM installs: the running maximum of the medians, read upwards.
        self._verify_s_B = table.dense("ceil", max_tokens, running_max=True)
        self._draft_s_R = _draft_s_R(table)

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        requests = view.num_requests
        admitted = capacity(
            ascending(view.lagged_survival_RG),
            requests,
            view.base_tokens,  # prompt tokens of the step included
            self._verify_s_B,
            float(self._draft_s_R[requests]),
            NO_PATIENCE_LIMIT,
        )
        return allocate(view.survival_RG, admitted)


@dataclass(frozen=True, slots=True)
class PaidSteps:
    """What steps really take: the medians themselves, read upwards.

    Attributes:
        verify_s_B: seconds of a forward of B tokens.
        fixed_s_R: seconds of draft and host by requests; attention is inside the verify medians.
    """

    verify_s_B: FloatArray
    fixed_s_R: FloatArray

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        """Draft and host time of a step."""
        return float(self.fixed_s_R[num_requests])

    def charged_tokens(self, verify_len_R: IntArray) -> int:
        """Anchors and drafts of a plan."""
        return len(verify_len_R) + int(verify_len_R.sum())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm does under one load.

    Attributes:
        user_tok_s: 1 over the median request's TPOT.
        aggregate_tok_s: output tokens over the whole run's time, the tail included.
        prefill_share: share of steps that prompts joined.
        acceptance_length: tokens a step commits for a request.
        budget: tokens verified a request and step, anchor included.
    """

    user_tok_s: float
    aggregate_tok_s: float
    prefill_share: float
    acceptance_length: float
    budget: float


def simulate(
    table: StepTable,
    trace: DenseTrace,
    *,
    gamma: int,
    scheduler: Callable[[], Scheduler],
    concurrency: int,
    host_s_R: FloatArray,
    lengths: Lengths,
    seed: int = 0,
    prompts_alone: int = PROMPTS_ALONE,
) -> Outcome:
    """Serve the benchmark's prompts, at most `concurrency` at a time, until the last is done.

    Args:
        table: measured verify and draft times; the medians are paid, read upwards.
        trace: acceptance.
        gamma: drafts a request; 0 drafts nothing and pays no draft time.
        scheduler: makes the planner.
        concurrency: requests in flight.
        host_s_R: host seconds by requests, `[257]`.
        lengths: lengths of prompts and outputs.
        seed: of all randomness.
        prompts_alone: prompts at c = 1, where one after the other is served.
    """
    prompts = PROMPTS if concurrency > 1 else prompts_alone
    most = concurrency * (1 + gamma) + STEP_TOKENS
    blocks = lay_out(trace, gamma=gamma, seed=seed)
    cost = PaidSteps(
        verify_s_B=table.dense("ceil", most),
        fixed_s_R=host_s_R + (_draft_s_R(table) if gamma else 0.0),
    )
    out = run(
        RunInput(
            blocks=blocks,
            scheduler=scheduler,
            cost=cost,
            load=Batch(prompts),
            prompt=FixedLengthConfig(kind="fixed", tokens=lengths.prompt_tokens),
            output=LognormalLengthConfig(
                kind="lognormal",
                mean=lengths.output_mean,
                cv=lengths.output_cv,
                min=2,
                max=LONGEST_OUTPUT,
            ),
            domain_weights_D=blocks.domain_shares(),
            ranks=1,
            capacity=concurrency,
            router="central_queue",
            seed=seed,
            stop=Stop(requests=prompts),
            prefill=MixedPrefill(tokens_per_step=STEP_TOKENS, reserve="full"),
        )
    )
    requests, steps = out.requests, out.steps
    decoded = requests["output_tokens"] - 1
    tpot_s = (requests["finish_s"] - requests["first_token_s"]) / decoded
    rounds = int(steps["num_requests"].sum())
    return Outcome(
        user_tok_s=1.0 / float(np.median(tpot_s)),
        aggregate_tok_s=float(requests["output_tokens"].sum()) / out.end_s,
        prefill_share=float(np.mean(steps["prefill_tokens"] > 0)),
        acceptance_length=1.0 + float(steps["accepted"].sum()) / rounds,
        budget=1.0 + float(steps["verified"].sum()) / rounds,
    )


def step_s(table: StepTable, gamma: int, host_s: float) -> float:
    """Seconds of a step of one request: verify, draft and host."""
    draft_s = float(_draft_s_R(table)[1]) if gamma else 0.0
    return float(table.dense("ceil", 1 + gamma)[1 + gamma]) + draft_s + host_s


def host_curve(loads: Sequence[int], host_s: Sequence[float]) -> FloatArray:
    """Host seconds at R = 0 .. 256, linear between the loads, `[257]`."""
    return np.interp(np.arange(MAX_REQUESTS + 1), loads, host_s)


def _draft_s_R(table: StepTable) -> FloatArray:
    if table.draft is None:
        return np.zeros(MAX_REQUESTS + 1)
    return table.draft.dense("ceil", MAX_REQUESTS, running_max=True)
