"""One target forward: the tokens that it holds, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specsim.engine.batch import Batch
from specsim.engine.costs import StepCost
from specsim.engine.prefill import FORBIDDEN_S, Chunk, MixedPrefill, take_chunks
from specsim.engine.request import Request
from specsim.errors import InputError, SchedulerFault
from specsim.schedulers.base import BatchView, Scheduler, checked_plan

IntArray = NDArray[np.int64]
NOTHING: IntArray = np.zeros(0, dtype=np.int64)


@runtime_checkable
class Gate(Protocol):
    """A scheduler that says for whom to draft, before anything is drafted. It reads `history`."""

    def drafting(self, view: BatchView) -> NDArray[np.bool_]:
        """Return for whom to draft, bool `[R]`; the others verify nothing in this step."""
        ...


class DraftingCost(Protocol):
    """A cost whose drafting time can be told apart, as a gate needs."""

    def draft_s(self, num_requests: int) -> float:
        """Return the seconds of drafting for that many requests, inside `fixed_s`."""
        ...


class Forward:
    """The next forward of one rank: `view`, then `adopt` a plan (or `plan`, which does both).

    Args:
        batch: the requests that decode.
        scheduler: whose plan it is.
        cost: what it costs.
        mixed: how prefill shares it; None if no prefill runs here.

    Attributes:
        verify_s_B: the cost's, with `FORBIDDEN_S` past the token budget.
        most_requests: requests that fit under the token budget; None without one.
        verify_len_R: the plan.
        chunks: what it reads of prompts.
        prefill_tokens: prompt tokens that it holds.
        trimmed: planned drafts that the token budget cut.
        charged: tokens that it is charged for.
        fixed_s: seconds that no plan can trim.
        own_s: how long it takes, on a rank that waits for no other.
    """

    def __init__(
        self,
        batch: Batch,
        scheduler: Scheduler,
        cost: StepCost,
        *,
        gamma: int,
        mixed: MixedPrefill | None,
    ) -> None:
        self.verify_s_B = cost.verify_s_B
        self.most_requests: int | None = None
        self.verify_len_R = NOTHING
        self.chunks: list[Chunk] = []
        self.prefill_tokens = self.trimmed = self.charged = 0
        self.fixed_s = self.own_s = 0.0
        self._batch, self._scheduler, self._cost, self._gamma = batch, scheduler, cost, gamma
        self._step = 0
        self._waiting: Sequence[Request] = ()
        layout = getattr(cost, "layout", "ragged")
        self._even = layout != "ragged"
        self._tokens, self._by_plan = 0, False
        if mixed is not None:
            self._tokens = mixed.tokens_per_step
            # Everything is verified whatever the plan under `cap_accept`.
            self._by_plan = mixed.reserve == "plan" and layout != "cap_accept"
            self.most_requests = self._tokens // (1 if self._by_plan else 1 + gamma)
            self.verify_s_B = cost.verify_s_B.copy()
            self.verify_s_B[self._tokens + 1 :] = FORBIDDEN_S
            self.verify_s_B.flags.writeable = False
        self._gate = scheduler if isinstance(scheduler, Gate) else None
        if self._gate is not None and not hasattr(cost, "draft_s"):
            raise InputError("a scheduler that gates drafts needs a cost with a drafting time")
        self._drafting_R: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def plan(self, step: int, waiting: Sequence[Request], extra_s: float) -> None:
        """Ask the scheduler for its plan and go by it; see `view`."""
        view = self.view(step, waiting, extra_s)
        self.adopt(NOTHING if view is None else checked_plan(self._scheduler, view))

    def view(self, step: int, waiting: Sequence[Request], extra_s: float) -> BatchView | None:
        """Choose the prefill; return what the scheduler may see, None without a batch.

        Args:
            step: index of the step.
            waiting: requests in prefill, first come first.
            extra_s: seconds that the step lasts longer, such as for swapping KV.
        """
        batch, cost = self._batch, self._cost
        self._step, self._waiting = step, waiting
        if waiting or self.prefill_tokens:
            self._read(max(1, self._tokens - batch.count * (1 + self._gamma)))
        self.fixed_s = cost.fixed_s(batch.count, batch.kv_tokens) + extra_s
        if batch.count == 0:
            return None
        if self._gate is not None:
            self.fixed_s -= self._undrafted(self._gate)
        return batch.view(
            step=step,
            prefill_tokens=self.prefill_tokens,
            verify_s_B=self.verify_s_B,
            fixed_s=self.fixed_s,
        )

    def _read(self, tokens: int) -> None:
        self.chunks = take_chunks(self._waiting, tokens)
        self.prefill_tokens = sum(taken for _, taken in self.chunks)

    def _undrafted(self, gate: Gate) -> float:
        """Ask for whom to draft; return the drafting time that the others save, seconds."""
        cost: DraftingCost = self._cost  # type: ignore[assignment]  # seen to in `__init__`
        view = self._batch.past(step=self._step, verify_s_B=self.verify_s_B, fixed_s=self.fixed_s)
        self._drafting_R = gate.drafting(view)
        return cost.draft_s(self._batch.count) - cost.draft_s(int(self._drafting_R.sum()))

    def full_plan(self) -> IntArray:
        """Return the plan that verifies every draft of this step."""
        return self.gated(np.full(self._batch.count, self._gamma, dtype=np.int64))

    def gated(self, verify_len_R: IntArray) -> IntArray:
        """Return that plan without the requests that nothing is drafted for."""
        if self._gate is None or len(verify_len_R) == 0:
            return verify_len_R
        return np.where(self._drafting_R, verify_len_R, 0)

    def adopt(self, verify_len_R: IntArray) -> None:
        """Go by this plan: keep to the token budget, give prefill what is left, price the step."""
        self.trimmed = 0
        if self._gate is not None and len(verify_len_R):
            self._hold_to_gate(verify_len_R)
        charged = self._cost.charged_tokens(verify_len_R) if len(verify_len_R) else 0
        if self._tokens:
            room = self._tokens - self.prefill_tokens
            if charged > room:
                fitted_R = fit(verify_len_R, room, even=self._even)
                self.trimmed = int(verify_len_R.sum() - fitted_R.sum())
                verify_len_R = fitted_R
                charged = self._cost.charged_tokens(verify_len_R)
            if self._by_plan and self._waiting:
                self._read(self._tokens - charged)
        self.verify_len_R = verify_len_R
        self._batch.remember(self._step)
        self.price(charged + self.prefill_tokens)

    def _hold_to_gate(self, verify_len_R: IntArray) -> None:
        wrong_R = (verify_len_R > 0) & ~self._drafting_R
        if wrong_R.any():
            row = int(np.argmax(wrong_R))
            raise SchedulerFault(
                f"step {self._step}, row {row}: the scheduler verifies {int(verify_len_R[row])} "
                "drafts of a request that it did not draft for"
            )

    def price(self, tokens: int) -> None:
        """Set `own_s` to what this step lasts if its forward is charged for that many tokens."""
        self.charged = tokens
        self.own_s = float(self._cost.verify_s_B[tokens]) + self.fixed_s

    def dummy(self) -> None:
        """Hold one dummy row, as an idle rank of a lockstep group does."""
        self.verify_len_R = NOTHING
        self.chunks, self.prefill_tokens, self.trimmed = [], 0, 0
        self.fixed_s = self._cost.fixed_s(1, 0)
        self.price(1)


def fit(verify_len_R: IntArray, room: int, *, even: bool) -> IntArray:
    """Cut a plan to a token budget: requests keep what they were given, in order, while it lasts.

    Whether a draft is cut depends on the plans of the requests before its own, so that a rule
    which judges each request by itself stays lossless. Rules that read step times never come
    here: the forward past the budget was shown to them as `FORBIDDEN_S`.

    Args:
        verify_len_R: the plan.
        room: tokens of the forward, anchors included; at least R.
        even: cut everyone to the same length instead, for layouts that pay for the longest.
    """
    count = len(verify_len_R)
    if even:
        shortened_R: IntArray = np.minimum(verify_len_R, room // count - 1)
        return shortened_R
    before_R = np.cumsum(verify_len_R) - verify_len_R
    fitted_R: IntArray = np.minimum(verify_len_R, np.maximum(room - count - before_R, 0))
    return fitted_R
