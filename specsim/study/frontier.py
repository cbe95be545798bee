"""`specsim pareto`: a scenario's frontier under a convention of axes, with bands and overlays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.errors import InputError
from specsim.report.axes import Axes, axes_named
from specsim.report.bands import Band, band, hypervolume
from specsim.report.figures import Picture, PublishedLine, draw_frontier, render
from specsim.report.overlays import measured_lines, published_for
from specsim.report.pareto import Frontier, comparison, frontier
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario
from specsim.scenario.schema import FrontierQuestion
from specsim.study.run import run_scenario
from specsim.study.store import read_summary, to_json

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn frontier.

    Attributes:
        directory: of the run.
        files: pictures and numbers written.
        result: what `pareto.json` holds.
    """

    directory: Path
    files: tuple[Path, ...]
    result: dict[str, Any]


def draw(
    target: str,
    *,
    axes: str = "paper",
    measured: Sequence[Path] = (),
    replications: int = 1,
    overrides: Sequence[str] = (),
    out: Path,
    jobs: int,
    progress: Progress | None = None,
) -> Drawn:
    """Draw a frontier and write `pareto.png`, `pareto.svg` and `pareto.json` into the run.

    Args:
        target: a scenario file or name, or the folder of a stored run.
        axes: a convention, see `report.axes`.
        measured: CSV files of points to lay under it.
        replications: seeds; bands are drawn for two or more.
        overrides: `a.b=value` each.
        out: folder of run directories.
        jobs: processes.
        progress: told of every finished point.

    Raises:
        InputError: the question is no frontier, or a file is wrong.
    """
    chosen = axes_named(axes)
    lines_under = [line for path in measured for line in measured_lines(path)]
    if (Path(target) / "summary.json").is_file():
        if replications > 1 or overrides:
            raise InputError(
                f"{target} is a stored run; --replications and --set need a scenario to run"
            )
        directory = Path(target)
        summaries = [read_summary(directory)]
    else:
        scenario = load_scenario(find_scenario(target), overrides=overrides).scenario
        if not isinstance(scenario.question, FrontierQuestion):
            raise InputError(f"{target} asks no frontier question: its kind is point")
        seed = scenario.seed
        results = [
            run_scenario(
                target,
                overrides=[*overrides, f"seed={seed + n}"] if n else overrides,
                out=out,
                jobs=jobs,
                progress=progress,
            )
            for n in range(replications)
        ]
        directory, summaries = results[0].directory, [r.summary for r in results]
    summary = summaries[0]
    if summary["question"]["kind"] != "frontier":
        raise InputError(f"{target} asks no frontier question: its kind is point")
    if chosen.name == "paper":
        lines_under += published_for(summary)
    lines = [lines_of(one, chosen) for one in summaries]
    bands = _bands(lines)
    picture = Picture(
        title=f"{summary['scenario']}: throughput that a speed of one user leaves",
        lines=list(lines[0].values()),
        marks=[", ".join(policy["labels"]) for policy in summary["policies"].values()],
        baseline=summary["question"]["baseline"],
        slos=summary["question"]["slo_tok_s_user"],
        headline=summary["question"]["headline_slo"],
        published=lines_under,
        note=f"axes: {chosen.name}; {len(summaries)} seed(s) from {summary['seed']}",
        x_label=chosen.x_label,
        y_label=chosen.y_label,
        bands=bands,
    )
    result = _result(summary, chosen, lines, bands, lines_under)
    files = {f"pareto.{kind}": data for kind, data in render(draw_frontier(picture)).items()}
    files["pareto.json"] = to_json(result).encode()
    written = []
    for name, content in files.items():
        path = directory / name
        path.write_bytes(content)
        written.append(path)
    return Drawn(directory, tuple(written), result)


def lines_of(summary: Mapping[str, Any], axes: Axes) -> dict[str, Frontier]:
    """Return every policy's line of a run under a convention.

    Raises:
        InputError: the run lacks a metric that the convention needs.
    """
    lines = {
        name: frontier(name, axes.rows(policy["points"], ranks=summary["ranks"]))
        for name, policy in summary["policies"].items()
    }
    if all(len(line.rows) == 0 for line in lines.values()):
        raise InputError(
            f'the run has no metric for the axes "{axes.name}"; run it again with this version, '
            "or use --axes paper"
        )
    return lines


def _bands(lines: Sequence[Mapping[str, Frontier]]) -> list[Band]:
    if len(lines) < 2:
        return []
    found = [band([one[name] for one in lines]) for name in lines[0]]
    return [one for one in found if one is not None]


def _result(
    summary: Mapping[str, Any],
    axes: Axes,
    lines: Sequence[Mapping[str, Frontier]],
    bands: Sequence[Band],
    published: Sequence[PublishedLine],
) -> dict[str, Any]:
    question = summary["question"]
    first = lines[0]
    base = hypervolume(first[question["baseline"]])
    volumes = {name: hypervolume(line) for name, line in first.items()}
    return {
        "scenario": summary["scenario"],
        "axes": {"name": axes.name, "x": axes.x_label, "y": axes.y_label, "note": axes.note},
        "seeds": len(lines),
        "lines": {
            name: {
                "tok_s_user": line.speed_P.tolist(),
                "tok_s_gpu": line.throughput_P.tolist(),
                "users_a_rank": [row["concurrency"] for row in line.rows],
                "hypervolume": volumes[name],
                "hypervolume_ratio": volumes[name] / base if base else None,
            }
            for name, line in first.items()
        },
        "at_slo": [
            {
                "policy": name,
                "slo_tok_s_user": slo,
                "tok_s_gpu": (cut := line.throughput_at(slo)).value,
                "reason": cut.reason,
            }
            for slo in question["slo_tok_s_user"]
            for name, line in first.items()
        ],
        "comparison": comparison(
            first, baseline=question["baseline"], slos=question["slo_tok_s_user"]
        ),
        "bands": {
            one.name: {
                "tok_s_user": one.speed_P.tolist(),
                "mean": one.mean_P.tolist(),
                "low": one.low_P.tolist(),
                "high": one.high_P.tolist(),
            }
            for one in bands
        },
        "published": [
            {
                "name": line.name,
                "tok_s_user": line.speed_P.tolist(),
                "tok_s_gpu": line.throughput_P.tolist(),
            }
            for line in published
        ],
    }
