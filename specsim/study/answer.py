"""From finished points to the summary: the answer, the comparison and what to beware of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specsim.engine.config import KvConfig
from specsim.report.loads import at_loads
from specsim.report.pareto import Frontier, comparison, frontier
from specsim.scenario.build import Arm
from specsim.scenario.schema import FrontierQuestion, Scenario
from specsim.study.reliability import reliability

FEWEST_REQUESTS = 100
"""Below so many finished requests a point's percentiles say little, and the summary warns."""

_LEFT = {
    "timed_out": "timed out",
    "cancelled": "were cancelled",
    "failed": "could not be served (too large for a rank's memory, or no rank was left)",
}

_ANSWERED = ("budget_tokens", "rejected_share", "acceptance_length", "mean_running", "concurrency")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a reader must know of a policy.

    Attributes:
        policy: its name.
        text: what it is, without the policy and the loads.
        loads: under which loads, users a rank; None in it where users are not counted.
    """

    policy: str
    text: str
    loads: tuple[int | None, ...] = ()


def folded(findings: Iterable[Finding]) -> list[str]:
    """Say each text once, with all the policies and loads that it holds for."""
    loads: dict[str, dict[str, list[int | None]]] = {}
    for finding in findings:
        loads.setdefault(finding.text, {}).setdefault(finding.policy, []).extend(finding.loads)
    lines = []
    for text, of_policy in loads.items():
        groups: dict[str, list[str]] = {}
        for policy, found in of_policy.items():
            groups.setdefault(at_loads(list(dict.fromkeys(found))), []).append(policy)
        who = [f"{', '.join(names)} {at}".rstrip() for at, names in groups.items()]
        lines.append(f"{who[0]}: {text}" if len(who) == 1 else f"{text}: {'; '.join(who)}")
    return lines


class Point(Protocol):
    """One finished policy under one load (`study.run.PointResult`)."""

    @property
    def policy(self) -> str:
        """The policy's name."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Closed-loop users a rank."""
        ...

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics by name."""
        ...

    @property
    def position_acceptance(self) -> Sequence[float] | None:
        """Share of request-steps that accepted at least 1, 2, .. gamma drafts."""
        ...

    @property
    def findings(self) -> Sequence[str]:
        """What a reader must know of this run."""
        ...


def summary_of(
    scenario: Scenario, arms: Mapping[str, Arm], points: Iterable[Point]
) -> dict[str, Any]:
    """Put together what `summary.json` holds.

    Keys: `scenario`, `description`, `seed`, `question`, `policies` (for each its scheduler, gamma,
    labels, cost sources, acceptance and `points`, one record of metrics a load, with
    `position_acceptance`), `kv_memory`, `warnings`; for a frontier also `answer` (a record a
    policy and SLO) and `comparison`.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in scenario.policies}
    findings: list[Finding] = []
    for point in points:
        row: dict[str, Any] = {"concurrency": point.concurrency, **point.metrics}
        row["position_acceptance"] = point.position_acceptance
        rows[point.policy].append(row)
        said = (*point.findings, *_unserved(point.metrics))
        findings += [Finding(point.policy, text, (point.concurrency,)) for text in said]
    summary: dict[str, Any] = {
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": scenario.seed,
        "question": scenario.question.model_dump(mode="json"),
        "gpus_per_rank": scenario.cluster.gpus_per_rank,
        "ranks": scenario.cluster.ranks,
        "policies": {name: _policy(arms[name], rows[name]) for name in scenario.policies},
        "kv_memory": kv_memory(scenario.cluster.kv),
        "warnings": folded([*findings, *_warnings(arms, rows)]),
    }
    if isinstance(scenario.question, FrontierQuestion):
        question = scenario.question
        lines = {name: frontier(name, rows[name]) for name in scenario.policies}
        summary["answer"] = _answer(lines, question, scenario.cluster.gpus_per_rank)
        summary["comparison"] = comparison(
            lines, baseline=question.baseline, slos=question.slo_tok_s_user
        )
    return summary


def _unserved(metrics: Mapping[str, float | None]) -> list[str]:
    """Say how many requests left without an answer."""
    left = [
        f"{metrics[f'requests_{status}']:.0f} {words}"
        for status, words in _LEFT.items()
        if metrics.get(f"requests_{status}")
    ]
    if not left:
        return []
    return [f"of {metrics['requests_submitted']:.0f} requests {', '.join(left)}"]


def kv_memory(kv: KvConfig | None) -> str:
    """Say how much KV memory a rank has: a wrong number of blocks is the first thing to suspect."""
    if kv is None:
        return "no limit"
    tokens = kv.blocks_per_rank * kv.block_tokens
    return (
        f"{kv.blocks_per_rank} blocks of {kv.block_tokens} tokens a rank ({tokens} tokens), "
        f"{kv.admission} admission"
    )


def _policy(arm: Arm, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metadata = arm.trace.metadata
    return {
        "scheduler": arm.config.scheduler.model_dump(mode="json"),
        "gamma": arm.config.gamma,
        "labels": arm.labels(),
        "lossless": arm.lossless,
        "cost_table": arm.cost.table.name,
        "cost_status": arm.cost.table.provenance.status,
        "cost_sources": dict(arm.cost.sources),
        "acceptance": {
            key: metadata[key]
            for key in ("model", "target", "drafter", "calibration", "status", "source", "tilted")
            if key in metadata
        },
        "reliability": reliability(arm.trace, gamma=arm.config.gamma) if arm.config.gamma else [],
        "points": list(points),
    }


def _answer(
    lines: Mapping[str, Frontier], question: FrontierQuestion, gpus_per_rank: int
) -> list[dict[str, Any]]:
    """Cut every line at every SLO and read what holds there."""
    records = []
    for slo in question.slo_tok_s_user:
        base = lines[question.baseline].throughput_at(slo).value
        for name, line in lines.items():
            cut = line.throughput_at(slo)
            record: dict[str, Any] = {
                "slo_tok_s_user": slo,
                "policy": name,
                "tok_s_gpu": cut.value,
                "users_per_gpu": None if cut.value is None else cut.value / slo,
                "ratio_to_baseline": None
                if cut.value is None or base is None
                else cut.value / base,
                "reason": cut.reason,
            }
            record |= {metric: line.read(metric, cut) for metric in _ANSWERED}
            records.append(record)
    return records


def _warnings(
    arms: Mapping[str, Arm], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Finding]:
    """Say what a reader of the numbers must know."""
    found = []
    for name, arm in arms.items():
        if not arm.lossless:
            text = "this scheduler changes the distribution of the output (unsafe)"
            found.append(Finding(name, text))
        if arm.tilted:
            text = "the trace was moved to another acceptance level (tilted)"
            found.append(Finding(name, text))
        past = tuple(
            row["concurrency"]
            for row in rows[name]
            if (row.get("longest_forward_tokens") or 0) > arm.cost.extrapolated_from
        )
        if past:
            text = (
                f"forwards longer than the {arm.cost.extrapolated_from} tokens that table "
                f"{arm.cost.table.name} was made from are extrapolated"
            )
            found.append(Finding(name, text, past))
        width = arm.cost.table.provenance.split_open_at
        if width is not None and any(
            abs((row.get("budget_tokens") or width) / width - 1) > 0.01 for row in rows[name]
        ):
            text = (
                f"table {arm.cost.table.name} was made from {width:g} token"
                f"{'' if width == 1 else 's'} a request alone: what one more costs is a choice of "
                "its fit, not identified (its notes say which, and how to settle it)"
            )
            found.append(Finding(name, text))
        few = tuple(
            row["concurrency"]
            for row in rows[name]
            if (row.get("requests_finished") or 0) < FEWEST_REQUESTS
        )
        if few:
            text = (
                f"fewer than {FEWEST_REQUESTS} finished requests after the warm-up: lengthen the "
                "run before trusting percentiles"
            )
            found.append(Finding(name, text, few))
    return found
