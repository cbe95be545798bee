"""The page of a run: a pure function of what is stored of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specsim.report.figures import PublishedLine
from specsim.report.page import Page, Stored, number, ordered, shared_labels
from specsim.report.run_samples import latency_section, timeline_section
from specsim.report.run_sections import (
    budget_section,
    calibration_section,
    frontier_section,
    input_section,
    point_section,
    time_section,
    token_section,
)
from specsim.report.terminal import verdict


def page_of_run(stored: Stored, *, published: Sequence[PublishedLine] = ()) -> Page:
    """Lay out the page of a run.

    Args:
        stored: the run.
        published: lines of others to lay under the frontier.
    """
    summary, manifest = ordered(stored.summary), stored.manifest
    stored = Stored(stored.directory, summary, manifest)
    policies = list(summary["policies"])
    shared = shared_labels(summary)
    loads = _loads(summary)
    is_frontier = summary["question"]["kind"] == "frontier"
    sections = []
    if is_frontier:
        sections += [frontier_section(summary, published), budget_section(summary)]
    else:
        sections.append(point_section(summary))
    sections += [
        time_section(summary, loads),
        token_section(summary, loads),
        latency_section(stored, loads),
        timeline_section(stored, loads),
        calibration_section(summary),
        input_section(summary),
    ]
    file = manifest.get("scenario_file", "scenario.yaml")
    sets = " ".join(f"--set '{text}'" for text in manifest.get("overrides", ()))
    return Page(
        title=summary["scenario"],
        description=summary["description"],
        answer=_as_lines(verdict(summary)) if is_frontier else _point_verdict(summary),
        tiles=_tiles(summary) if is_frontier else _point_tiles(summary),
        warnings=summary["warnings"],
        policies=[
            (name, ", ".join(x for x in summary["policies"][name]["labels"] if x not in shared))
            for name in policies
        ],
        sections=[s for s in sections if s.choices or s.table],
        rerun=[
            ("command", f"specsim run {file} {sets}".strip()),
            ("redraw this page", f"specsim report {stored.directory}"),
            ("specsim", str(manifest.get("specsim", "unknown"))),
            ("seed", str(summary["seed"])),
            ("content", str(summary.get("hash", ""))[:12]),
            ("profiles", ", ".join(manifest.get("profiles", ())) or "none"),
            ("took", f"{manifest.get('wall_s', 0):.1f} s with {manifest.get('jobs', 1)} jobs"),
        ],
        source=str(manifest.get("scenario", "")),
        small_print=[
            "Intervals are 95 %, from 20 batch means of the measured window; bands over several "
            "seeds are t intervals. Between loads, lines are linear in the axes shown."
        ],
    )


def _as_lines(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


def _loads(summary: Mapping[str, Any]) -> list[int | None]:
    """Pick the loads that details are shown for: the headline's, lightest, middle, heaviest."""
    grid = sorted(
        {row["concurrency"] for p in summary["policies"].values() for row in p["points"]},
        key=lambda users: -1 if users is None else users,
    )
    if len(grid) <= 1:
        return list(grid)
    slo = summary["question"].get("headline_slo")
    held = [
        r["concurrency"]
        for r in summary.get("answer", ())
        if r["slo_tok_s_user"] == slo and r.get("concurrency") and r["tok_s_gpu"] is not None
    ]
    at = max(held) if held else grid[len(grid) // 2]
    near = min(grid, key=lambda users: abs(users - at))
    return list(dict.fromkeys([near, grid[0], grid[len(grid) // 2], grid[-1]]))


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    slo, baseline = summary["question"]["headline_slo"], summary["question"]["baseline"]
    held = [
        r
        for r in summary["answer"]
        if r["slo_tok_s_user"] == slo
        and r["tok_s_gpu"] is not None
        and summary["policies"][r["policy"]]["lossless"]
    ]
    if not held:
        return []
    best = max(held, key=lambda r: r["tok_s_gpu"])
    ratio = best["ratio_to_baseline"]
    return [
        (f"{number(best['tok_s_gpu'])}", "output tok/s/GPU", f"{best['policy']} at {slo:g} tok/s"),
        (f"{number(best['users_per_gpu'], '.1f')}", "users per GPU", f"at {slo:g} tok/s each"),
        (f"{number(ratio, '.2f')}x", f"of {baseline}", "throughput at this speed"),
        (
            number(best.get("budget_tokens"), ".2f"),
            "verified a request",
            f"{number(best.get('rejected_share'), '.0%')} of it wasted",
        ),
    ]


def _point_rows(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the point of every lossless policy that has a throughput."""
    return {
        name: p["points"][0]
        for name, p in summary["policies"].items()
        if p["points"] and p["lossless"] and p["points"][0].get("tok_s_gpu") is not None
    }


def _point_best(summary: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    first = _point_rows(summary)
    if not first:
        return None
    name = max(first, key=lambda key: first[key]["tok_s_gpu"])
    served = _served_alike(summary, first)
    if served:
        name = max(served, key=lambda key: served[key].get("tok_s_user") or 0.0)
    return name, first[name]


def _served_alike(
    summary: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the policies whose throughput the arrivals decide: open load, and all of it served."""
    if summary["question"].get("concurrency") is not None:
        return {}
    most = max(row["tok_s_gpu"] for row in rows.values())
    alike = {name: row for name, row in rows.items() if row["tok_s_gpu"] >= 0.98 * most}
    return alike if len(alike) > 1 else {}


def _point_verdict(summary: Mapping[str, Any]) -> list[str]:
    best = _point_best(summary)
    if best is None:
        return ["No policy gave a number under this load."]
    name, row = best
    alike = _served_alike(summary, _point_rows(summary))
    rivals = {other: found.get("tok_s_user") or 0.0 for other, found in alike.items()}
    if rivals:
        fastest = rivals.pop(name)
        second = max(rivals, key=lambda key: rivals[key])
        times = f", {fastest / rivals[second]:.2f} times {second}" if rivals[second] else ""
        return [
            f"{name} serves a user fastest, {number(fastest)} tok/s, at the throughput that the "
            f"arrivals ask of all{times}."
        ]
    others = [
        (p["points"][0].get("tok_s_gpu") or 0.0, other)
        for other, p in summary["policies"].items()
        if other != name and p["points"] and p["lossless"]
    ]
    text = f"{name} gives the most: {number(row['tok_s_gpu'])} tok/s/GPU"
    if others and max(others)[0] > 0:
        most, second = max(others)
        text += f", {row['tok_s_gpu'] / most:.2f} times {second}"
    return [text + "."]


def _point_tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    best = _point_best(summary)
    if best is None:
        return []
    name, row = best
    tpot = row.get("tpot_p50_s")
    return [
        (number(row["tok_s_gpu"]), "output tok/s/GPU", name),
        (number(row.get("tok_s_user"), ",.1f"), "tok/s/user", "mean of a running request"),
        (number(None if tpot is None else tpot * 1e3, ".2f"), "ms TPOT, median", name),
        (
            number(row.get("budget_tokens"), ".2f"),
            "verified a request",
            f"{number(row.get('rejected_share'), '.0%')} of it wasted",
        ),
    ]
