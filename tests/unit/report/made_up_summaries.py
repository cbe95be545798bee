"""Summaries with made-up numbers, of the shape that `study.answer.summary_of` gives."""

from __future__ import annotations

from typing import Any

from specsim.report.pareto import comparison, frontier


def policy(points: list[dict[str, Any]], *labels: str, lossless: bool = True) -> dict[str, Any]:
    return {
        "scheduler": {"kind": "fixed"},
        "gamma": 5,
        "labels": list(labels),
        "lossless": lossless,
        "cost_table": "made_up",
        "cost_status": "synthetic",
        "cost_sources": {},
        "acceptance": {"name": "made_up", "status": "synthetic"},
        "points": points,
    }


def points(fastest: float, most: float, budget: float) -> list[dict[str, Any]]:
    rows = []
    for users in (1, 4, 16, 64):
        share = users / 64
        rows.append(
            {
                "concurrency": users,
                "tok_s_user": fastest * (1 - 0.8 * share),
                "tok_s_gpu": most * share**0.5,
                "budget_tokens": budget,
                "rejected_share": 0.25,
                "acceptance_length": 2.5,
                "mean_running": float(users),
                "tpot_p50_s": 0.0123,
                "tpot_p99_s": 0.0456,
                "e2e_p99_s": 3.5,
            }
        )
    return rows


def frontier_summary() -> dict[str, Any]:
    policies = {
        "mtp1": policy(points(125, 9000, 2.0)),
        "topk": policy(points(230, 16000, 4.5), "fitted cost"),
        "peek": policy(points(240, 17000, 4.6), "unsafe", lossless=False),
        "slow": policy(points(60, 8000, 1.0)),
    }
    question = {
        "kind": "frontier",
        "concurrency": [1, 4, 16, 64],
        "slo_tok_s_user": [80.0, 120.0],
        "headline_slo": 120.0,
        "baseline": "mtp1",
    }
    lines = {name: frontier(name, p["points"]) for name, p in policies.items()}
    answer = []
    for slo in (80.0, 120.0):
        base = lines["mtp1"].throughput_at(slo).value
        for name, line in lines.items():
            cut = line.throughput_at(slo)
            answer.append(
                {
                    "slo_tok_s_user": slo,
                    "policy": name,
                    "tok_s_gpu": cut.value,
                    "users_per_gpu": cut.value and cut.value / slo,
                    "ratio_to_baseline": cut.value and base and cut.value / base,
                    "reason": cut.reason,
                    "budget_tokens": line.read("budget_tokens", cut),
                    "rejected_share": line.read("rejected_share", cut),
                }
            )
    return {
        "scenario": "made_up",
        "description": "numbers from nowhere",
        "seed": 1,
        "question": question,
        "gpus_per_rank": 1,
        "ranks": 1,
        "policies": policies,
        "warnings": ["peek: this scheduler changes the distribution of the output (unsafe)"],
        "answer": answer,
        "comparison": comparison(lines, baseline="mtp1", slos=[80.0, 120.0]),
        "hash": "0123456789abcdef",
        "status": "complete",
    }


def point_summary(*, makespan_s: float | None = None) -> dict[str, Any]:
    summary = frontier_summary()
    del summary["answer"], summary["comparison"]
    batch = makespan_s is not None
    summary["question"] = {"kind": "point", "concurrency": None if batch else 16}
    for made in summary["policies"].values():
        made["points"] = made["points"][2:3]
        if batch:
            made["points"][0]["makespan_s"] = makespan_s
    return summary
