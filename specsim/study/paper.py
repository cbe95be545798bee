"""The DSpark paper's figures, computed anew: every number published beside the one simulated.

Figures 2, 5 and 6 come from the parametric acceptance model, whose calibrations were fitted to
these very figures (`acceptance.presets`): agreement there says that the model can hold them all and
not that it predicts them. Table 1's domain means are no part of any fit. Figures 7 and 8 come from
the shipped scenarios (`study.fig7` says what was fitted). Appendix A is exact.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.calibration import Records, auc, ece, fit_sts, scale
from specsim.acceptance.parametric import ParametricConfig
from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.leaks import appendix_a
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.topk import GlobalSearch
from specsim.study import fig7
from specsim.study.executor import Place, settle_tasks
from specsim.study.points import read_shard, run_stored, stored_point
from specsim.study.run import PointTask

FloatArray = NDArray[np.float64]
GAMMA = 7
DOMAINS = ("math", "code", "chat")
FIGURE5 = {"math": "gsm8k", "code": "humaneval", "chat": "mt_bench"}
SCENARIOS: dict[fig7.Engine, str] = {"V4-Flash": "flash_120tps", "V4-Pro": "pro_50tps"}


@dataclass(frozen=True, slots=True)
class Item:
    """One number of the paper.

    Attributes:
        figure: where it stands.
        quantity: what it is, with its unit.
        published: the paper's.
        simulated: ours; NaN where we have none.
        how: `fitted to it`, `predicted`, `exact` or `input`.
    """

    figure: str
    quantity: str
    published: float
    simulated: float
    how: str

    @property
    def difference(self) -> float:
        """Simulated minus published."""
        return self.simulated - self.published


@dataclass(frozen=True, slots=True)
class Rounds:
    """Decode rounds of a trace under a rule of lengths.

    Attributes:
        row_N: row of each round's block in the trace.
        verified_N: drafts verified.
        accepted_N: drafts accepted among them.
        group_N: sequence of each round.
    """

    row_N: NDArray[np.int64]
    verified_N: NDArray[np.int64]
    accepted_N: NDArray[np.int64]
    group_N: NDArray[np.int64]


def replay(trace: DenseTrace, verify_len_N: NDArray[np.int64]) -> Rounds:
    """Walk every sequence from its start, verifying `verify_len_N` drafts of each block.

    Args:
        trace: the blocks.
        verify_len_N: drafts to verify, by row of the trace.
    """
    at_S = trace.sequence_offset_S1[:-1].copy()
    end_S = trace.sequence_offset_S1[1:] - trace.gamma + 1
    group_S = np.arange(trace.num_sequences)
    accepted_N = np.minimum(trace.num_accepted_N, verify_len_N).astype(np.int64)
    rows, groups = [], []
    while True:
        live = at_S < end_S
        if not live.any():
            break
        at_S, end_S, group_S = at_S[live], end_S[live], group_S[live]
        rows.append(at_S.copy())
        groups.append(group_S.copy())
        at_S += accepted_N[at_S] + 1
    row_N = np.concatenate(rows)
    return Rounds(row_N, verify_len_N[row_N], accepted_N[row_N], np.concatenate(groups))


def threshold_lengths(trace: DenseTrace, threshold: float) -> NDArray[np.int64]:
    """Return the lengths of a static threshold: cut before the first conditional below it."""
    kept_NG = np.cumprod(trace.confidence_NG >= threshold, axis=1, dtype=np.int64)
    return np.asarray(kept_NG.sum(axis=1), dtype=np.int64)


def _trace(calibration: str, **given: object) -> DenseTrace:
    config = ParametricConfig.model_validate(
        {"kind": "parametric", "calibration": calibration, **given}
    )
    return config.build(seed=1, gamma=GAMMA, locate=_nothing)


def _nothing(group: str, name: str) -> Path:
    raise AssertionError(f"the parametric model reads no {group} {name}")


def _full(trace: DenseTrace) -> Rounds:
    return replay(trace, np.full(trace.num_anchors, trace.gamma, dtype=np.int64))


def figure2(folder: Path) -> list[Item]:
    """Compare conditional acceptance by position and domain."""
    published = {
        (row["domain"], int(row["position"])): float(row["conditional_acceptance"])
        for row in rows(folder, "paper_fig2_conditional_acceptance_by_position.csv")
        if row["drafter"] == "DSpark"
    }
    items = []
    for domain in DOMAINS:
        found = _full(_trace("domains", mix={domain: 1.0}))
        for k in range(1, GAMMA + 1):
            reached = found.accepted_N >= k - 1
            share = float((found.accepted_N[reached] >= k).mean())
            items.append(
                Item(
                    "Figure 2",
                    f"{domain}, conditional acceptance at position {k}",
                    published[domain, k],
                    share,
                    "input",
                )
            )
    return items


def table1(folder: Path) -> list[Item]:
    """Compare accepted lengths by domain, and the macro mean, of DSpark on Qwen3-4B."""
    published: dict[str, list[float]] = {}
    for row in rows(folder, "paper_table1_accepted_length.csv"):
        if (row["target"], row["drafter"]) == ("Qwen3-4B", "DSpark"):
            length = float(row["accepted_length_incl_bonus_T1_gamma7"])
            published.setdefault(row["domain"], []).append(length)
    items, simulated = [], []
    for domain in DOMAINS:
        found = _full(_trace("domains", mix={domain: 1.0}))
        simulated.append(1 + float(found.accepted_N.mean()))
        mean = float(np.mean(published[domain]))
        name = f"{domain}, accepted length (mean of {len(published[domain])} datasets)"
        items.append(Item("Table 1", name, mean, simulated[-1], "predicted"))
    every = [length for lengths in published.values() for length in lengths]
    items.append(
        Item(
            "Table 1",
            "macro mean of accepted length",
            float(np.mean(every)),
            float(np.mean(simulated)),
            "predicted",
        )
    )
    return items


def figure5(folder: Path) -> list[Item]:
    """Compare the threshold sweep: accepted and verified tokens a step."""
    items = []
    traces = {domain: _trace(name) for domain, name in FIGURE5.items()}
    for row in rows(folder, "paper_fig5_threshold_sweep.csv"):
        trace, threshold = traces[row["domain"]], float(row["threshold"])
        found = replay(trace, threshold_lengths(trace, threshold))
        label = f"{FIGURE5[row['domain']]}, threshold {threshold:.1f}"
        accepted = 1 + float(found.accepted_N.mean())
        verified = 1 + float(found.verified_N.mean())
        for name, column, value in (
            ("accepted tokens a step", "accepted_tokens_per_step_incl_bonus", accepted),
            ("verified tokens a step", "verified_tokens_per_step_incl_anchor", verified),
        ):
            text = f"{label}: {name}"
            items.append(Item("Figure 5", text, float(row[column]), value, "fitted to it"))
    return items


def figure6(folder: Path) -> list[Item]:
    """Compare ECE before and after temperature scaling, and AUC, on Alpaca."""
    trace = _trace("alpaca")
    found = _full(trace)
    half = found.group_N % 2 == 0

    def records(keep: NDArray[np.bool_]) -> Records:
        row_N = found.row_N[keep]
        return Records(
            trace.confidence_NG[row_N].astype(np.float64),
            trace.num_accepted_N[row_N].astype(np.int64),
            found.group_N[keep],
            np.zeros(len(row_N), dtype=np.int64),
            ("alpaca",),
        )

    held_out = records(~half)
    temperature_G = fit_sts(records(half))
    scaled = scale(held_out.confidence_NG, temperature_G)
    before: FloatArray = np.cumprod(held_out.confidence_NG, axis=1, dtype=np.float64)
    after: FloatArray = np.cumprod(scaled, axis=1, dtype=np.float64)
    happened = held_out.prefix_NG()
    items = []
    for row in rows(folder, "paper_fig6_ece_auc.csv"):
        k = int(row["position"]) - 1
        for name, column, value in (
            ("ECE before scaling, %", "ece_before_pct", 100 * ece(before[:, k], happened[:, k])),
            ("ECE after scaling, %", "ece_after_sts_pct", 100 * ece(after[:, k], happened[:, k])),
            ("AUC", "auc", auc(before[:, k], happened[:, k])),
        ):
            text = f"position {k + 1}: {name}"
            items.append(Item("Figure 6", text, float(row[column]), value, "fitted to it"))
    return items


def figures_7_and_8(
    folder: Path,
    *,
    store: Path,
    place: Place,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[list[Item], dict[tuple[fig7.Engine, str], fig7.Line]]:
    """Compare throughput against speed, and the verification budget, of both engines.

    Args:
        folder: the published numbers.
        store: folder of finished points.
        place: where points run.
        progress: told of every point.

    Returns:
        The items, and the simulated lines by engine and policy.
    """
    items: list[Item] = []
    lines: dict[tuple[fig7.Engine, str], fig7.Line] = {}
    for engine, name in SCENARIOS.items():
        found = _points(name, ("mtp_1", "dspark_5"), store, place, progress)
        ours = {
            policy: fig7.make_line(
                np.array([row["mean_running"] for row in points]),
                np.array([row["tok_s_user"] for row in points]),
            )
            for policy, points in found.items()
        }
        lines |= {(engine, policy): line for policy, line in ours.items()}
        theirs = {
            "mtp_1": fig7.published_line(engine, "MTP-1", folder=folder),
            "dspark_5": fig7.published_line(engine, "DSpark-5", folder=folder),
        }
        for slo in fig7.SLO_TOK_S_USER[engine]:
            held = theirs["mtp_1"].throughput_at_speed(slo)
            faster = theirs["dspark_5"].speed_at_throughput(held)
            at_slo = fitted_at(theirs["dspark_5"].throughput_at_speed(slo) / slo)
            at_equal = fitted_at(held / faster)
            for policy, how in (("mtp_1", "input"), ("dspark_5", at_slo)):
                items.append(
                    Item(
                        "Figure 7",
                        f"{engine} at {slo:g} tok/s/user: {policy}, tok/s/GPU",
                        theirs[policy].throughput_at_speed(slo),
                        ours[policy].throughput_at_speed(slo),
                        how,
                    )
                )
            for label, of, how in (
                ("throughput ratio", fig7.throughput_ratio, at_slo),
                ("speed-up at equal throughput", fig7.equal_throughput_speedup, at_equal),
            ):
                items.append(
                    Item(
                        "Figure 7",
                        f"{engine} at {slo:g} tok/s/user: {label}",
                        of(theirs["dspark_5"], theirs["mtp_1"], slo),
                        of(ours["dspark_5"], ours["mtp_1"], slo),
                        how,
                    )
                )
        running_N = np.array([row["mean_running"] for row in found["dspark_5"]])
        budget_N = np.array([row["budget_tokens"] for row in found["dspark_5"]])
        requests_P, budget_P = fig7.published_budget(engine, folder=folder)
        for requests, budget in zip(requests_P, budget_P, strict=True):
            fitted = engine == "V4-Flash" and requests <= fig7.FITTED_UP_TO
            value = np.interp(requests, running_N, budget_N, left=np.nan, right=np.nan)
            items.append(
                Item(
                    "Figure 8",
                    f"{engine} at {requests:.0f} requests a GPU: verified tokens a request",
                    float(budget),
                    float(value),
                    "fitted to it" if fitted else "predicted",
                )
            )
    return items, lines


def fitted_at(requests: float) -> str:
    """Say whether numbers were fitted at so many requests a GPU (`study.fig7`)."""
    return "fitted to it" if requests <= fig7.FITTED_UP_TO else "predicted"


def _points(
    name: str,
    policies: Sequence[str],
    store: Path,
    place: Place,
    progress: Callable[[int, int, str], None] | None,
) -> dict[str, list[dict[str, float]]]:
    loaded = load_scenario(find_scenario(name))
    folder = loaded.path.parent.resolve()
    loads: Sequence[int] = loaded.scenario.question.concurrency  # type: ignore[assignment]
    stored = [
        stored_point(PointTask(loaded.scenario, folder, policy, users), store=store)
        for policy in policies
        for users in loads
    ]
    missing = [point for point in stored if read_shard(point.shard) is None]
    for done, settled in enumerate(settle_tasks(place, run_stored, missing), start=1):
        if settled.error is not None:
            raise settled.error
        if progress is not None:
            progress(done, len(missing), name)
    found: dict[str, list[dict[str, float]]] = {policy: [] for policy in policies}
    for point in stored:
        shard = read_shard(point.shard)
        if shard is None or shard.status != "ok":
            raise InputError(f"{name}: a point failed: {shard.error if shard else 'it is gone'}")
        found[point.task.policy].append({k: v for k, v in shard.metrics.items() if v is not None})
    return found


def appendix_a_items() -> list[Item]:
    """Compare Appendix A: the law of the first token, by exact enumeration."""
    items = []
    for name, scheduler, published in (
        ("retrospective search", GlobalSearch, (0.85, 0.15)),
        ("Algorithm 1 (early stop)", Greedy, (0.70, 0.30)),
    ):
        found, target = enumerate_world(appendix_a(), scheduler).first_token(1)
        for token, value, wanted in zip("AB", found, published, strict=True):
            text = f"{name}: P(first token = {token})"
            items.append(Item("Appendix A", text, wanted, float(value), "exact"))
        if scheduler is Greedy and found != target:
            raise AssertionError("Algorithm 1 must keep the target's law")
    return items


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """Read one published table.

    Raises:
        InputError: it is missing.
    """
    path = folder / name
    if not path.is_file():
        raise InputError(f"{path}: the published numbers are missing; the repository ships them")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
