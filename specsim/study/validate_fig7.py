"""`validate dspark_fig7`: the shipped paper scenarios against Figures 7 and 8.

The step tables are Figure 7's MTP-1 lines themselves; a few numbers were fitted on V4-Flash at up
to 100 requests a GPU (on V4-Pro p1, the draft terms and the mix), see `scripts/fit_fig7.py`. What
this holds against the paper is the simulator's run of the scenarios, fitted and predicted loads
apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specsim.errors import InputError
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario, shipped
from specsim.scenario.schema import FrontierQuestion
from specsim.study import fig7
from specsim.study.executor import make_executor, run_tasks
from specsim.study.run import PointResult, PointTask, run_point
from specsim.study.validation import Check, Validation

BASELINE, CANDIDATE = "mtp_1", "dspark_5"
STATICS = ("static_3", "static_5")
SCENARIO: dict[fig7.Engine, str] = {"V4-Flash": "flash_120tps", "V4-Pro": "pro_50tps"}
PUBLISHED = {
    ("V4-Flash", 80.0): (1.51, 1.60),
    ("V4-Flash", 120.0): (7.6, 1.85),
    ("V4-Pro", 35.0): (1.52, 1.57),
    ("V4-Pro", 50.0): (5.06, 1.78),
}
"""Throughput ratio at the SLO and speed-up at equal throughput, DSpark-5 over MTP-1."""
RATIO_WITHIN = (0.10, 0.20)
"""Relative limits of the ratio at the slower and at the faster SLO of an engine."""
SPEEDUP_WITHIN = 0.05
BASELINE_WITHIN = 0.01
"""The baseline must come back as the line that its step table was read off."""
FIGURE_8_LOADS = (50.0, 100.0, 150.0)
"""Users a GPU at which the two figures of the paper are held against each other."""
SPEED_RMS = 0.04
BUDGET_FITTED, BUDGET_PREDICTED = 0.25, 0.5


def validate() -> Validation:
    """Run both engines' scenarios and hold them against the paper."""
    folder = shipped("profiles") / "published"
    checks: list[Check] = []
    for engine, scenario in SCENARIO.items():
        rows = _simulate(scenario)
        checks += _against_paper(engine, rows, folder)
    return Validation(
        "dspark_fig7",
        checks,
        fitted_on="V4-Flash throughput (Figure 7) and budget (Figure 8) at R <= 100: p1, DSpark's "
        "extra draft cost, traffic mix, spreads; V4-Pro at R <= 100: p1, draft cost, mix. The step "
        "tables are the MTP-1 lines.",
        predicted="DSpark-5 at R > 100, its ratios to MTP-1, static lengths; budgets at R > 100",
    )


def _simulate(name: str) -> dict[str, list[PointResult]]:
    """Run the arms that the paper shows, and the static ones it speaks of at the highest load."""
    path = find_scenario(name)
    scenario = load_scenario(path).scenario
    if not isinstance(scenario.question, FrontierQuestion):
        raise InputError(f"{path}: asks no frontier question, so it cannot be held against one")
    loads = scenario.question.concurrency
    tasks = [
        PointTask(scenario, path.parent.resolve(), policy, users)
        for policy in (BASELINE, CANDIDATE, *STATICS)
        for users in (loads if policy not in STATICS else loads[-1:])
    ]
    rows: dict[str, list[PointResult]] = {}
    with make_executor(min(2, os.cpu_count() or 1)) as executor:
        for _, result in run_tasks(executor, run_point, tasks):
            rows.setdefault(result.policy, []).append(result)
    for results in rows.values():
        results.sort(key=lambda result: result.concurrency or 0)
    return rows


def _column(rows: list[PointResult], metric: str) -> fig7.FloatArray:
    return np.array([row.metrics[metric] for row in rows], dtype=np.float64)


def _against_paper(
    engine: fig7.Engine, rows: dict[str, list[PointResult]], folder: Path
) -> Iterator[Check]:
    tag = engine.lower().replace("-", "_")
    lines = {
        name: fig7.make_line(_column(found, "mean_running"), _column(found, "tok_s_user"))
        for name, found in rows.items()
        if name not in STATICS
    }
    slow, fast = fig7.SLO_TOK_S_USER[engine]
    for slo, within in ((slow, RATIO_WITHIN[0]), (fast, RATIO_WITHIN[1])):
        ratio, speedup = PUBLISHED[engine, slo]
        yield Check(
            f"{tag}_throughput_ratio_at_{slo:g}",
            fig7.throughput_ratio(lines[CANDIDATE], lines[BASELINE], slo),
            ratio * (1 - within),
            ratio * (1 + within),
        )
        yield Check(
            f"{tag}_speedup_at_equal_throughput_{slo:g}",
            fig7.equal_throughput_speedup(lines[CANDIDATE], lines[BASELINE], slo),
            speedup * (1 - SPEEDUP_WITHIN),
            speedup * (1 + SPEEDUP_WITHIN),
        )
    published = fig7.published_line(engine, "DSpark-5", folder=folder)
    error = fig7.speed_error(lines[CANDIDATE], published)
    yield Check(f"{tag}_{CANDIDATE}_speed_rms_log", error.whole, high=SPEED_RMS)
    yield Check(f"{tag}_{CANDIDATE}_speed_rms_log_fitted_range", error.fitted)
    yield Check(f"{tag}_{CANDIDATE}_speed_rms_log_predicted_range", error.predicted)
    line = fig7.published_line(engine, "MTP-1", folder=folder)
    off_N = lines[BASELINE].tok_s_user_N / line.user_speed_at(lines[BASELINE].num_requests_N) - 1
    yield Check(
        f"{tag}_{BASELINE}_speed_largest_error_where_published",
        float(np.nanmax(np.abs(off_N))),
        high=BASELINE_WITHIN,
    )
    arms: tuple[tuple[str, fig7.Arm], ...] = ((CANDIDATE, "DSpark-5"), (BASELINE, "MTP-1"))
    for name, arm in arms:
        seven = fig7.published_line(engine, arm, folder=folder)
        eight = fig7.figure8_line(engine, arm, folder=folder)
        for load in FIGURE_8_LOADS:
            gap = eight.user_speed_at(load) / seven.user_speed_at(load)
            yield Check(f"{tag}_{name}_figure_8_speed_over_figure_7_at_{load:g}", float(gap))
    budget = fig7.budget_error(
        _column(rows[CANDIDATE], "mean_running"),
        _column(rows[CANDIDATE], "budget_tokens"),
        fig7.published_budget(engine, folder=folder),
    )
    judged = engine == "V4-Flash"
    yield Check(
        f"{tag}_budget_error_tokens_fitted_range",
        budget.fitted,
        high=BUDGET_FITTED if judged else None,
    )
    yield Check(
        f"{tag}_budget_error_tokens_predicted_range",
        budget.predicted,
        high=BUDGET_PREDICTED if judged else None,
    )
    for name in STATICS:
        top, base = rows[name][-1], rows[BASELINE][-1]
        yield Check(
            f"{tag}_{name}_over_mtp_1_at_{base.concurrency}_users",
            float(top.metrics["tok_s_gpu"] or np.nan) / float(base.metrics["tok_s_gpu"] or np.nan),
            high=1.0,
        )
