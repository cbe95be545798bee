"""SGLang's per-step records: windows count the anchor, lengths the bonus, cuts censor rounds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.interop.sglang_records import (
    conditional_acceptance,
    parse_records,
    records_json,
    replay,
    trace_of,
)
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK

GAMMA = 4
TRUE = np.array([0.9, 0.8, 0.7, 0.6])


def made(mode: str, *, steps: int = 400, requests: int = 6, seed: int = 1) -> str:
    """Records of rounds whose drafts are accepted with TRUE, windows drawn at random."""
    rng = np.random.default_rng(seed)
    out = []
    for forward in range(steps):
        reqs = []
        for r in range(requests):
            accepted = int(np.cumprod(rng.random(GAMMA) < TRUE).sum())
            verified = int(rng.integers(0, GAMMA + 1)) if mode != "static" else GAMMA
            if mode == "compact":
                accepted = min(accepted, verified)  # nothing behind the window was looked at
            reqs.append((f"r{r}", verified, accepted, TRUE.tolist()))
        out.append({"forward_ct": forward, "reqs": reqs})
    return json.dumps(records_json(gamma=GAMMA, mode=mode, steps=out))


@pytest.mark.parametrize("mode", ["static", "cap-accept", "compact"])
def test_acceptance_is_the_true_one_whatever_the_windows(mode: str) -> None:
    recording = parse_records(made(mode, steps=1500), where="f")
    found, count = conditional_acceptance(recording)
    error = 3.5 * np.sqrt(TRUE * (1 - TRUE) / count)
    assert (np.abs(found - TRUE) < error).all(), (found, count)


def test_counting_cut_rounds_as_rejections_would_be_seen() -> None:
    # The naive reading (accepted / rounds) of compact records is far from the truth.
    recording = parse_records(made("compact", steps=1500), where="f")
    accepted = np.concatenate([step.accepted_R for step in recording.steps])
    assert abs((accepted > 0).mean() - TRUE[0]) > 0.1


def test_the_window_has_the_anchor_in() -> None:
    data = records_json(
        gamma=4, mode="static", steps=[{"forward_ct": 7, "reqs": [("a", 0, 0, [0.5] * 4)]}]
    )
    assert data["records"][0]["reqs"][0]["verify_len"] == 1  # the anchor alone
    step = parse_records(json.dumps(data), where="f").steps[0]
    assert step.verify_len_R.tolist() == [0]
    data["records"][0]["reqs"][0]["verify_len"] = 0
    with pytest.raises(InputError, match="a window is 1 to 5"):
        parse_records(json.dumps(data), where="f")


def test_a_trace_replays_the_recorded_rounds() -> None:
    recording = parse_records(made("static", steps=30), where="f")
    trace = trace_of(recording)
    at = 0
    for step in recording.steps:
        row = step.request_R.index("r0")
        assert trace.num_accepted_N[at] == step.accepted_R[row]
        at += int(step.accepted_R[row]) + 1  # verifying whole blocks, as recorded
    assert at == trace.sequence_offset_S1[1]
    # Behind a round stand its left-over drafts.
    assert (trace.num_accepted_N <= GAMMA).all()


def test_cut_rounds_make_no_trace() -> None:
    with pytest.raises(InputError, match="accepted all of it"):
        trace_of(parse_records(made("compact"), where="f"))


def test_a_scheduler_is_replayed_against_the_plans() -> None:
    recording = parse_records(made("static", steps=40), where="f")
    cost = 1e-3 + 1e-5 * np.arange(64)
    same = replay(recording, FixedLength(GAMMA), verify_s_B=cost, fixed_s=1e-3)
    assert same.equal_share == 1.0
    dear = replay(recording, AsyncTopK(2), verify_s_B=1e-3 * np.arange(1, 65), fixed_s=0.0)
    assert dear.planned[2:].sum() < dear.recorded[2:].sum()


def test_the_whole_server_info_is_taken() -> None:
    inner = json.loads(made("static", steps=2))
    outer = {"internal_states": [{"dspark_info_record": None}, {"dspark_info_record": inner}]}
    assert len(parse_records(json.dumps(outer), where="f").steps) == 2
    with pytest.raises(InputError, match="SGLANG_DSPARK_ENABLE_SPS_RECORD"):
        parse_records("{}", where="f")
