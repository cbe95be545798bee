"""Catalogue results as rows of JSON and as a page of Markdown; writes no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specsim.lossless.case import Case, CaseResult
from specsim.lossless.catalogue import CASES, cases, theta_appendix_a
from specsim.lossless.conformance import Report, check_scheduler
from specsim.lossless.kinds import shipped
from specsim.lossless.montecarlo import Sampled, sample_world
from specsim.lossless.notes import rank_disagreement, sts_reordering
from specsim.lossless.significance import visible_bias

ALPHA = 1e-6
"""False-alarm rate of each Monte-Carlo test: below it a row is called biased."""


@dataclass(frozen=True)
class SampledCase:
    """A case and what sampling it gave."""

    case: Case
    sampled: Sampled

    @property
    def biased(self) -> bool:
        """Whether the target law is rejected at `ALPHA`."""
        return self.sampled.p_value < ALPHA


def sample_case(
    case: Case,
    *,
    samples: int | None = None,
    seed: int = 0,
    sampler: Callable[..., Sampled] = sample_world,
) -> SampledCase | None:
    """Sample a case's first tokens, or return None for rules that only enumeration knows.

    The watched requests' joint first tokens are counted where several decode, so that correlation
    counts as bias. `sampler` takes what `sample_world` takes, and may run elsewhere.
    """
    if case.rule.name not in ("token", "block"):
        return None
    world = case.world()
    watch = tuple(request.request_id for request in world.requests)
    sampled = sampler(
        world,
        case.factory,
        num_samples=samples or case.samples,
        seed=seed,
        num_tokens=case.num_tokens,
        watch=watch,
        rule=case.rule.name,
    )
    return SampledCase(case, sampled)


def case_row(result: CaseResult) -> dict[str, Any]:
    """Return the JSON row of an enumerated case."""
    found = result.found
    law, target = found.first_token(found.watched[0])
    return {
        "case": result.case.name,
        "scheduler": result.case.scheduler,
        "law": [str(mass) for mass in law],
        "target": [str(mass) for mass in target],
        "lossless": result.lossless,
        "expected": result.case.lossless,
        "right": result.right,
        "bias": str(found.bias),
        "tokens": result.case.num_tokens,
        "committed": str(found.mean_committed),
        "worlds": 1,
        "leaves": found.leaves,
    }


def battery_row(name: str, report: Report) -> dict[str, Any]:
    """Return the JSON row of a scheduler that was tried on the whole battery."""
    verdict = report.verdict
    found = verdict.found if verdict else None
    law, target = found.first_token(found.watched[0]) if found else ((), ())
    return {
        "case": "battery",
        "scheduler": name,
        "law": [str(mass) for mass in law],
        "target": [str(mass) for mass in target],
        "lossless": report.lossless,
        "expected": report.declared,
        "right": report.as_declared and report.lossless == report.declared,
        "failures": report.failures,
        "biased_worlds": verdict.biased if verdict else None,
        "worlds": verdict.worlds if verdict else 0,
        "leaves": verdict.leaves if verdict else 0,
    }


def sampled_row(one: SampledCase) -> dict[str, Any]:
    """Return the JSON row of a Monte-Carlo run."""
    sampled = one.sampled
    total = int(sampled.counts_V.sum())
    return {
        "case": one.case.name,
        "scheduler": one.case.scheduler,
        "samples": total,
        "counts": sampled.counts_V.tolist(),
        "law": sampled.law_V.tolist(),
        "g": sampled.statistic,
        "df": sampled.df,
        "p_value": sampled.p_value,
        "biased": one.biased,
        "alpha": ALPHA,
        "tv": {
            "estimate": sampled.distance.estimate,
            "low": sampled.distance.low,
            "high": sampled.distance.high,
            "confidence": sampled.distance.confidence,
        },
        "visible_bias": visible_bias(total, max(sampled.df, 1), alpha=ALPHA),
    }


def notes_rows() -> list[dict[str, Any]]:
    """Return the facts beside the laws."""
    order = sts_reordering()
    first, second = rank_disagreement()
    return [
        {"note": "theta of Appendix A", **{k: str(v) for k, v in theta_appendix_a().items()}},
        {
            "note": "temperature scaling by position is not order-preserving across requests",
            "before": list(order.before),
            "after": list(order.after),
            "preserved": order.preserved,
        },
        {
            "note": "tensor-parallel ranks that see 1e-3 less confidence plan other lengths",
            "rank_0": first,
            "rank_1": second,
        },
    ]


@dataclass(frozen=True, slots=True)
class Job:
    """One independent piece of a catalogue run, small enough to send to another process."""

    kind: Literal["case", "battery"]
    name: str
    samples: int | None
    seed: int


def jobs(group: str | None = None, *, samples: int | None = None, seed: int = 0) -> list[Job]:
    """Return what a catalogue run has to do.

    Args:
        group: a group of the catalogue, or None for all of it and every shipped scheduler.
        samples: Monte-Carlo samples of every case; each case's own number if None.
        seed: of the streams.
    """
    made = [Job("case", case.name, samples, seed) for case in cases(group)]
    if group is None:
        made += [Job("battery", name, samples, seed) for name, _ in shipped()]
    return made


def exact_row(job: Job) -> dict[str, Any]:
    """Return the row of a job's exact answer."""
    if job.kind == "battery":
        return battery_row(job.name, check_scheduler(dict(shipped())[job.name]))
    return case_row(_case(job.name).run())


def drawn_row(job: Job) -> dict[str, Any] | None:
    """Return the Monte-Carlo row of a case that can be sampled."""
    if job.kind == "battery":
        return None
    one = sample_case(_case(job.name), samples=job.samples, seed=job.seed)
    return sampled_row(one) if one else None


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def collected(
    rows: Iterable[tuple[dict[str, Any], dict[str, Any] | None]],
) -> dict[str, Any]:
    """Return the whole result of the jobs' rows, in their order."""
    listed = list(rows)
    return {
        "cases": [row for row, _ in listed],
        "monte_carlo": [drawn for _, drawn in listed if drawn is not None],
        "notes": notes_rows(),
    }


def _law(masses: Sequence[str], *, longest: int = 34) -> str:
    text = "(" + ", ".join(masses) + ")"
    if len(text) <= longest:
        return text if masses else "-"
    return "(" + ", ".join(f"{_ratio(mass):.6f}" for mass in masses) + ")"


def _ratio(mass: str) -> float:
    top, _, bottom = mass.partition("/")
    return int(top) / int(bottom or 1)


def page(result: dict[str, Any], command: str) -> str:
    """Return the catalogue as a page of Markdown.

    Args:
        result: from `collected`.
        command: what rebuilds the page.
    """
    sampled = {row["case"]: row for row in result["monte_carlo"]}
    lines = [
        "# Is it lossless? The catalogue, enumerated and sampled",
        "",
        f"Rebuilt by `{command}`. Laws are exact rationals of the first request's first token;",
        "bias is the total variation of the joint law of all followed tokens; p is the G-test's of",
        f"a Monte-Carlo run on the same question (biased means p < {ALPHA:g}). All numbers are",
        "computed here, none is measured on hardware.",
        "",
        "| case | what | law | target | bias | lossless | as known | samples | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["cases"]:
        if row["case"] == "battery":
            continue
        drawn = sampled.get(row["case"])
        p_value = f"{drawn['p_value']:.2g}" if drawn else "-"
        count = f"{drawn['samples']:,}" if drawn else "-"
        lines.append(
            f"| {row['case']} | {row['scheduler']} | {_law(row['law'])} | {_law(row['target'])} | "
            f"{_law([row['bias']])[1:-1]} | {'yes' if row['lossless'] else '**no**'} | "
            f"{'yes' if row['right'] else '**NO**'} | {count} | {p_value} |"
        )
    lines += [
        "",
        "## Schedulers on the battery",
        "",
        "Every check of the conformance suite: contract, prefix rule, determinism, and exact laws",
        "in all worlds of the seeded battery.",
        "",
        "| scheduler | says | found | worlds | with bent law | outcomes | failed checks |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["cases"]:
        if row["case"] == "battery":
            failed = ", ".join(row["failures"]) or "-"
            lines.append(
                f"| {row['scheduler']} | {_word(row['expected'])} | {_word(row['lossless'])} | "
                f"{row['worlds']} | {row['biased_worlds']} | {row['leaves']:,} | {failed} |"
            )
    lines += ["", "## Beside the laws", ""]
    for note in result["notes"]:
        rest = "; ".join(f"{key} {value}" for key, value in note.items() if key != "note")
        lines.append(f"- {note['note']}: {rest}")
    return "\n".join(lines) + "\n"


def _word(value: object) -> str:
    return "lossless" if value else "leaks"
