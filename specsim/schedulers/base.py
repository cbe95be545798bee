"""The scheduler protocol: one method over a read-only view of one step of one rank.

p = target law, q = draft law. `c[r, k]` is the confidence that draft k of request r is accepted
given that drafts 1..k-1 were; `a[r, k] = c[r, 1] * .. * c[r, k]` is its survival.

The law of the land (docs/decisions/0003): the event that a
plan is l may depend on load, on the past, and on the drafts that l itself admits (of all requests
together), never on a draft that it leaves out and never on what follows. `c[r, k]` is a function of
x[r, <k], so reading *up to* a[r, k] to admit x[r, k] is allowed, and reading a[r, k+1] is not.
Reading another request's unverified drafts leaves each output's own law alone and still correlates
the two outputs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.errors import SchedulerFault, SpecsimError, in_one_line

Reads = Literal["live", "lagged", "history", "sampled", "oracle"]
"""Parts of a view. The last two are never lossless ground: `sampled` is q(x[r, k]) itself, which
some published rules rank by, and `oracle` what verification would accept, for upper bounds."""
FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]


class UndeclaredReadError(SchedulerFault):
    """A scheduler touched a part of the view that its `reads` does not declare."""


@dataclass(frozen=True, slots=True)
class History:
    """What verification has shown so far of each running request; never of unverified tokens.

    Attributes:
        rounds_R: decode rounds done, int64 `[R]`.
        verified_R: draft tokens verified in them, int64 `[R]`.
        accepted_R: draft tokens accepted in them, int64 `[R]`.
    """

    rounds_R: IntArray
    verified_R: IntArray
    accepted_R: IntArray


class BatchView:
    """What a scheduler may see when it plans one step of one rank. Arrays are read-only.

    Attributes:
        step: index of the step on this rank, from 0.
        gamma: draft tokens proposed a request.
        request_id_R: id of each running request, int64 `[R]`; row order breaks the last ties.
        base_tokens: B of the forward if nothing is admitted: R anchors plus prefill tokens.
        verify_s_B: seconds of one target forward at B = 0, 1, .. tokens, float64, long enough for
            `base_tokens + R * gamma`; already read as the engine reads its table.
        fixed_s: seconds of this step that no plan can trim (attention, draft, host).
    """

    __slots__ = (
        "_confidence_RG",
        "_history",
        "_lagged_survival_RG",
        "_num_accepted_R",
        "_sampled_RG",
        "_survival_RG",
        "base_tokens",
        "fixed_s",
        "gamma",
        "request_id_R",
        "step",
        "verify_s_B",
    )

    def __init__(
        self,
        *,
        step: int,
        gamma: int,
        request_id_R: IntArray,
        base_tokens: int,
        verify_s_B: NDArray[np.float64],
        fixed_s: float,
        confidence_RG: FloatArray | Callable[[], FloatArray] | None = None,
        survival_RG: FloatArray | None = None,
        lagged_survival_RG: FloatArray | None = None,
        history: History | None = None,
        sampled_RG: FloatArray | None = None,
        num_accepted_R: IntArray | None = None,
    ) -> None:
        self.step = step
        self.gamma = gamma
        self.request_id_R = request_id_R
        self.base_tokens = base_tokens
        self.verify_s_B = verify_s_B
        self.fixed_s = fixed_s
        self._confidence_RG = confidence_RG
        self._survival_RG = survival_RG
        self._lagged_survival_RG = lagged_survival_RG
        self._history = history
        self._sampled_RG = sampled_RG
        self._num_accepted_R = num_accepted_R

    def replaced(
        self,
        *,
        confidence_RG: FloatArray | None = None,
        survival_RG: FloatArray | None = None,
        lagged_survival_RG: FloatArray | None = None,
    ) -> BatchView:
        """Return a view with other scores and all else the same; None keeps what there is."""
        return BatchView(
            step=self.step,
            gamma=self.gamma,
            request_id_R=self.request_id_R,
            base_tokens=self.base_tokens,
            verify_s_B=self.verify_s_B,
            fixed_s=self.fixed_s,
            confidence_RG=self._confidence_RG if confidence_RG is None else confidence_RG,
            survival_RG=self._survival_RG if survival_RG is None else survival_RG,
            lagged_survival_RG=(
                self._lagged_survival_RG if lagged_survival_RG is None else lagged_survival_RG
            ),
            history=self._history,
            sampled_RG=self._sampled_RG,
            num_accepted_R=self._num_accepted_R,
        )

    @property
    def num_requests(self) -> int:
        """R: requests decoding on this rank in this step."""
        return len(self.request_id_R)

    @property
    def confidence_RG(self) -> FloatArray:
        """Live conditional confidences c, `[R, gamma]`, in [0, 1]. Needs `live`."""
        if self._confidence_RG is None:
            raise UndeclaredReadError(_undeclared("confidence_RG", "live"))
        if callable(self._confidence_RG):  # few schedulers look: gathered for those that do
            self._confidence_RG = self._confidence_RG()
        return self._confidence_RG

    @property
    def survival_RG(self) -> FloatArray:
        """Live survivals a, `[R, gamma]`, non-increasing along gamma. Needs `live`."""
        if self._survival_RG is None:
            raise UndeclaredReadError(_undeclared("survival_RG", "live"))
        return self._survival_RG

    @property
    def lagged_survival_RG(self) -> FloatArray:
        """Survivals of `lag` steps ago, `[R, gamma]`: rows matched by request id, 1 for rows that
        were not running then. Needs `lagged`.
        """
        if self._lagged_survival_RG is None:
            raise UndeclaredReadError(_undeclared("lagged_survival_RG", "lagged"))
        return self._lagged_survival_RG

    @property
    def history(self) -> History:
        """Counts of what verification has shown. Needs `history`."""
        if self._history is None:
            raise UndeclaredReadError(_undeclared("history", "history"))
        return self._history

    @property
    def sampled_RG(self) -> FloatArray:
        """q(x[r, k]): the draft law's probability of each proposed token, `[R, gamma]`.

        Needs `sampled`. It reads the token itself, so a rule that ranks by it is not lossless.
        """
        if self._sampled_RG is None:
            raise UndeclaredReadError(_undeclared("sampled_RG", "sampled"))
        return self._sampled_RG

    @property
    def num_accepted_R(self) -> IntArray:
        """Drafts that full verification of this block would accept, int64 `[R]`.

        Needs `oracle`; no policy can know it.
        """
        if self._num_accepted_R is None:
            raise UndeclaredReadError(_undeclared("num_accepted_R", "oracle"))
        return self._num_accepted_R


def _undeclared(name: str, needed: Reads) -> str:
    return (
        f'the scheduler read view.{name} without declaring it: add "{needed}" to its `reads`, '
        "so that its losslessness can be judged"
    )


@runtime_checkable
class Scheduler(Protocol):
    """Chooses how many draft tokens of each request one step verifies.

    Attributes:
        reads: which parts of the view `plan` looks at; the others raise `UndeclaredReadError`.
        lag: how many steps old `lagged_survival_RG` is; 0 if `lagged` is not read.
        lossless: whether the rule leaves the target distribution alone (proven in `lossless/`).
    """

    @property
    def reads(self) -> frozenset[Reads]:
        """Parts of the view that `plan` looks at."""
        ...

    @property
    def lag(self) -> int:
        """Age of the lagged survivals, steps."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the output law stays the target's."""
        ...

    def plan(self, view: BatchView) -> IntArray:
        """Return `verify_len_R`, int64 `[R]` in 0..gamma: drafts of each request to verify."""
        ...


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one verified step showed, for schedulers that learn; of verified drafts only.

    Attributes:
        step: index of the step on this rank.
        request_id_R: the batch of the step, int64 `[R]`.
        verify_len_R: drafts verified of each, int64 `[R]`.
        num_accepted_R: drafts accepted of those, int64 `[R]`.
        duration_s: how long the step took, seconds.
    """

    step: int
    request_id_R: IntArray
    verify_len_R: IntArray
    num_accepted_R: IntArray
    duration_s: float


@runtime_checkable
class Learner(Protocol):
    """A scheduler that is told what its steps showed. It needs `history` among its `reads`."""

    def observe(self, outcome: StepOutcome) -> None:
        """Take note of one finished step; called once a step, before the next `plan`."""
        ...


@njit(cache=True, nogil=True)
def first_outside(verify_len_R: Any, gamma: int) -> int:
    """Return the first row whose verify length is not in 0..gamma, -1 if there is none."""
    for row in range(len(verify_len_R)):
        if verify_len_R[row] < 0 or verify_len_R[row] > gamma:
            return row
    return -1


SchedulerFactory = Callable[[], Scheduler]
"""Makes a fresh scheduler; each rank gets its own, so that no state is shared between ranks."""


def checked_plan(scheduler: Scheduler, view: BatchView) -> IntArray:
    """Ask a scheduler for its plan and hold it to its contract.

    Raises:
        SchedulerFault: it raised, or returned something else than an int64 array `[R]` with values
            in 0..gamma.
    """
    try:
        verify_len_R = scheduler.plan(view)
    except SpecsimError:
        raise
    except (Exception, SystemExit) as error:
        raise _blamed(scheduler, "plan", view.step, error) from error
    if (
        not isinstance(verify_len_R, np.ndarray)
        or verify_len_R.shape != (view.num_requests,)
        or verify_len_R.dtype != np.int64
    ):
        found = (
            f"{verify_len_R.dtype} array of shape {verify_len_R.shape}"
            if isinstance(verify_len_R, np.ndarray)
            else type(verify_len_R).__name__
        )
        raise SchedulerFault(
            f"step {view.step}: the scheduler returned {found}; an int64 array of shape "
            f"({view.num_requests},) is needed, one verify length a request"
        )
    row = first_outside(verify_len_R, view.gamma)
    if row >= 0:
        raise SchedulerFault(
            f"step {view.step}, request {int(view.request_id_R[row])} (row {row}): verify length "
            f"{int(verify_len_R[row])} is outside 0..{view.gamma}"
        )
    return verify_len_R


def checked_observe(learner: Learner, outcome: StepOutcome) -> None:
    """Tell a scheduler what its step showed.

    Raises:
        SchedulerFault: it raised.
    """
    try:
        learner.observe(outcome)
    except SpecsimError:
        raise
    except (Exception, SystemExit) as error:
        raise _blamed(learner, "observe", outcome.step, error) from error


def _blamed(scheduler: object, method: str, step: int, error: BaseException) -> SchedulerFault:
    """Make a fault of whatever a scheduler raised, which names the step and the line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return SchedulerFault(
        f"step {step}: {type(scheduler).__name__}.{method} raised "
        f"{in_one_line(error)} ({frame.filename}:{frame.lineno})"
    )


class LaggedSurvival:
    """Survivals of the last `lag` steps, matched to the present rows by request id.

    Departed rows are dropped; rows that were not running `lag` steps ago count as survival 1, as
    vLLM, SGLang and TensorRT-LLM assume (verify everything until something is known).
    """

    def __init__(self, lag: int) -> None:
        if lag < 0:
            raise ValueError(f"lag must be at least 0, not {lag}")
        self.lag = lag
        self._past: list[tuple[IntArray, FloatArray]] = []

    def aligned(self, request_id_R: IntArray, survival_RG: FloatArray) -> FloatArray:
        """Return the survivals of `lag` steps ago for the present rows, `[R, gamma]`.

        With lag 0 these are the live ones. Does not record the present step: see `push`.
        """
        if self.lag == 0:
            return survival_RG
        lagged_RG = np.ones_like(survival_RG)
        if len(self._past) == self.lag:
            past_id_P, past_PG = self._past[0]
            row_of = {int(request_id): row for row, request_id in enumerate(past_id_P)}
            for row, request_id in enumerate(request_id_R):
                past_row = row_of.get(int(request_id))
                if past_row is not None:
                    lagged_RG[row] = past_PG[past_row]
        return lagged_RG

    def push(self, request_id_R: IntArray, survival_RG: FloatArray) -> None:
        """Record the present step's survivals; call once a step, after `aligned`."""
        if self.lag == 0:
            return
        self._past.append((request_id_R.copy(), survival_RG.copy()))
        del self._past[: -self.lag]
