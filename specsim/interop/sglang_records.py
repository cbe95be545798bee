"""SGLang's per-step DSpark records (`/server_info`, 0.5.23): acceptance, traces, scheduler replay.

Its counts include a token that ours leave out: `verify_len` is the window with the anchor in, so a
request with window w has w - 1 drafts verified; `acc_len` has the bonus in; `correct_drafts` has
neither. Where a window cut a block, that all its drafts were accepted says only "at least so many":
such rounds are censored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.inputs import Node
from specsim.interop.results import number, opened
from specsim.schedulers.base import BatchView, LaggedSurvival, Scheduler, checked_plan

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step of one rank.

    Attributes:
        forward: the engine's count of forwards.
        request_R: ids of the requests, `[R]`.
        verify_len_R: drafts verified, the anchor not counted, `[R]`.
        accepted_R: drafts accepted, the bonus not counted, `[R]`.
        confidence_RG: conditional confidences, `[R, G]`.
        step_s: measured length; NaN if unknown.
    """

    forward: int
    request_R: tuple[str, ...]
    verify_len_R: IntArray
    accepted_R: IntArray
    confidence_RG: FloatArray
    step_s: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A server's records.

    Attributes:
        gamma: drafts a block.
        mode: `static`, `cap-accept` or `compact`.
        steps: in order.
        left_out: request rows without confidences.
    """

    gamma: int
    mode: str
    steps: tuple[Step, ...]
    left_out: int


def parse_records(text: str, *, where: str) -> Recording:
    """Read `dspark_info_record`, alone or inside the whole `/server_info`.

    Raises:
        InputError: it is no such record, or contradicts itself; says which step and request.
    """
    data: Node | None = opened(text, where)
    if data is not None and data.has("internal_states"):
        states = [s.maybe("dspark_info_record") for s in data.get("internal_states").items()]
        data = next((state for state in states if state is not None), None)
    if data is None or not data.has("records") or not data.has("gamma"):
        raise InputError(
            f'{where}: no dspark_info_record with "gamma" and "records"; start the server with '
            "SGLANG_DSPARK_ENABLE_SPS_RECORD=1"
        )
    gamma, mode = data.get("gamma").whole(least=1, most=64), data.get("mode").text()
    steps: list[Step] = []
    left_out = 0
    for record in data.get("records").items():
        reqs = record.maybe("reqs")
        rows = []
        for req in () if reqs is None else reqs.items():
            if not req.get("confidence").value:
                left_out += 1
            else:
                rows.append(_row(req, gamma))
        if not rows:
            continue
        names = [row[0] for row in rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise record.error(f'request "{twice[0]}" is there twice in one step')
        took_ms = number(record, "step_gpu_ms") or number(record, "step_cpu_ms")
        forward = record.maybe("forward_ct")
        steps.append(
            Step(
                len(steps) if forward is None else forward.whole(),
                tuple(names),
                np.array([row[1] for row in rows], dtype=np.int64),
                np.array([row[2] for row in rows], dtype=np.int64),
                np.array([row[3] for row in rows], dtype=np.float64),
                float("nan") if took_ms is None else took_ms * 1e-3,
            )
        )
    if not steps:
        raise InputError(f"{where}: no step has confidences ({left_out} request rows without)")
    return Recording(gamma, mode, tuple(steps), left_out)


def _row(req: Node, gamma: int) -> tuple[str, int, int, list[float]]:
    """Return name, drafts verified, drafts accepted and confidences of one request of a step."""
    confidence = [c.number(least=0.0, most=1.0) for c in req.get("confidence").items()]
    if len(confidence) != gamma:
        raise req.error(f"{len(confidence)} confidences, but gamma is {gamma}")
    window, correct = req.get("verify_len").whole(), req.get("correct_drafts").whole()
    if not 1 <= window <= gamma + 1:
        raise req.error(f"verify_len {window}, but a window is 1 to {gamma + 1}")
    if correct > gamma:
        raise req.error(f"correct_drafts {correct} of {gamma}")
    name = req.get("rid").value
    return (
        str(req.get("req_pool_index").value if name is None else name),
        window - 1,
        correct,
        confidence,
    )


def conditional_acceptance(recording: Recording) -> tuple[FloatArray, IntArray]:
    """Return P(draft k accepted | earlier ones were), and on how many drafts it rests, both `[G]`.

    Draft k counts where it was verified and drafts 1..k-1 were accepted, so cut windows bias
    nothing by themselves. NaN where no such draft was.
    """
    good, tried = np.zeros(recording.gamma), np.zeros(recording.gamma, dtype=np.int64)
    for step in recording.steps:
        verified_R = _known(recording, step)
        for k in range(recording.gamma):
            reached_R = (verified_R > k) & (step.accepted_R >= k)
            tried[k] += int(reached_R.sum())
            good[k] += float((step.accepted_R[reached_R] > k).sum())
    with np.errstate(invalid="ignore"):
        return np.where(tried > 0, good / np.maximum(tried, 1), np.nan), tried


def _known(recording: Recording, step: Step) -> IntArray:
    """Return how many drafts of each request were looked at.

    In the modes that verify the whole block (static, cap-accept) that is all of them, whatever the
    window committed.
    """
    if recording.mode in ("static", "cap-accept"):
        return np.full(len(step.request_R), recording.gamma, dtype=np.int64)
    return step.verify_len_R


def trace_of(recording: Recording) -> DenseTrace:
    """Make a trace of the records: one anchor a recorded round, in the order of each request.

    The positions between two rounds were never anchors, so they get the block that is left of the
    round's own: the drafts behind the accepted ones move up, and the last confidence goes on. A
    policy that verifies as the recorded one did replays the records; another one reads these
    stand-ins, and the trace says so.

    Raises:
        InputError: rounds were cut by their window (censored).
    """
    gamma = recording.gamma
    by_request: dict[str, list[tuple[FloatArray, int]]] = {}
    for step in recording.steps:
        cut_R = (_known(recording, step) < gamma) & (step.accepted_R >= _known(recording, step))
        if cut_R.any():
            raise InputError(
                f"forward {step.forward}: {int(cut_R.sum())} rounds were cut by their window and "
                "accepted all of it, so how many more were right is unknown; record with "
                "SGLANG_RAGGED_VERIFY_MODE=static or cap-accept"
            )
        for name, confidence_G, accepted in zip(
            step.request_R, step.confidence_RG, step.accepted_R, strict=True
        ):
            by_request.setdefault(name, []).append((confidence_G, int(accepted)))
    rows: list[FloatArray] = []
    accepted_N: list[int] = []
    offsets = [0]
    for rounds in by_request.values():
        for confidence_G, accepted in rounds:
            for moved in range(accepted + 1):
                rows.append(np.append(confidence_G[moved:], np.full(moved, confidence_G[-1])))
                accepted_N.append(accepted - moved)
        offsets.append(len(rows))
    return DenseTrace(
        confidence_NG=np.array(rows, dtype=np.float32),
        num_accepted_N=np.array(accepted_N, dtype=np.uint8),
        sequence_offset_S1=np.array(offsets, dtype=np.int64),
        sequence_domain_S=np.zeros(len(by_request), dtype=np.uint8),
        domain_names=("served",),
        metadata={
            "status": "measured",
            "source": "SGLang per-step records; positions between rounds are stand-ins",
            "rounds": sum(len(rounds) for rounds in by_request.values()),
        },
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """A scheduler against the recorded plans.

    Attributes:
        planned: drafts that it plans, by step.
        recorded: drafts that were verified, by step.
        equal_share: share of request rows with the same length.
    """

    planned: IntArray
    recorded: IntArray
    equal_share: float


def replay(
    recording: Recording, scheduler: Scheduler, *, verify_s_B: FloatArray, fixed_s: float
) -> Replayed:
    """Ask a scheduler what it would have planned in every recorded step.

    Each step is shown as it was; that the scheduler's own plan would have led elsewhere is left
    out, so this compares rules and not outcomes.

    Args:
        recording: the records.
        scheduler: fresh.
        verify_s_B: seconds of a forward of B tokens, for every B that can come up.
        fixed_s: what no plan can trim.
    """
    lagged = LaggedSurvival(scheduler.lag)
    number: dict[str, int] = {}
    planned, recorded, equal, rows = [], [], 0, 0
    for index, step in enumerate(recording.steps):
        ids = [number.setdefault(name, len(number)) for name in step.request_R]
        request_id_R = np.array(ids, dtype=np.int64)
        survival_RG = np.cumprod(step.confidence_RG, axis=1)
        view = BatchView(
            step=index,
            gamma=recording.gamma,
            request_id_R=request_id_R,
            base_tokens=len(ids),
            verify_s_B=verify_s_B,
            fixed_s=fixed_s,
            confidence_RG=step.confidence_RG,
            survival_RG=survival_RG,
            lagged_survival_RG=lagged.aligned(request_id_R, survival_RG),
        )
        plan_R = checked_plan(scheduler, view)
        lagged.push(request_id_R, survival_RG)
        planned.append(int(plan_R.sum()))
        recorded.append(int(step.verify_len_R.sum()))
        equal += int((plan_R == step.verify_len_R).sum())
        rows += len(ids)
    return Replayed(np.array(planned), np.array(recorded), equal / rows)


def records_json(*, gamma: int, mode: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write records in SGLang's shape, for tests and for tools that read them.

    Args:
        gamma: drafts a block.
        mode: the ragged verify mode.
        steps: each with `forward_ct` and `reqs` of (rid, drafts verified, drafts accepted,
            confidences).
    """
    records = []
    for step in steps:
        reqs = [
            {
                "rid": rid,
                "verify_len": verified + 1,
                "acc_len": min(accepted, verified) + 1,
                "correct_drafts": accepted,
                "confidence": list(confidence),
                "survival": np.cumprod(confidence).tolist(),
            }
            for rid, verified, accepted, confidence in step["reqs"]
        ]
        records.append(
            {"forward_ct": step["forward_ct"], "mode": mode, "bs": len(reqs), "reqs": reqs}
        )
    return {
        "mode": mode,
        "gamma": gamma,
        "verify_num_draft_tokens": gamma + 1,
        "simulate_acc_len": None,
        "records": records,
    }
