"""Served points in the form of aiconfigurator's `silicon_sample.csv`: what deployments reached.

One row is one deployment under one load: model, GPUs, engine, precision, parallelism, prompt and
output lengths, concurrency, and the measured mean TTFT and TPOT in milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specsim.cost.telemetry import Telemetry
from specsim.errors import InputError, Problem, ScenarioError
from specsim.inputs import MOST_TOKENS, csv_rows, read_text

_NEEDED = (
    "id",
    "silicon_data_source",
    "backend",
    "backend_version",
    "model_path",
    "system",
    "precision",
    "mode",
    "isl",
    "osl",
    "gemm_quant_mode",
    "moe_quant_mode",
    "batch_size",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "silicon_tpot_ms",
)
_WORKERS = tuple(
    f"{side}_{name}"
    for side in ("prefill", "decode")
    for name in (
        "batch_size",
        "num_workers",
        "tp_size",
        "pp_size",
        "attention_dp_size",
        "moe_tp_size",
        "moe_ep_size",
    )
)
_KNOWN = (*_NEEDED, *_WORKERS, "silicon_ttft_ms")
_GROUP = (
    "model_path",
    "system",
    "backend",
    "backend_version",
    "precision",
    "mode",
    "gemm_quant_mode",
    "moe_quant_mode",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    *(name for name in _WORKERS if not name.endswith("batch_size")),
)
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")


@dataclass(frozen=True, slots=True)
class ServedPoint:
    """One measured deployment under one load.

    Attributes:
        name: the row's id.
        group: everything that names the deployment, lengths and load left out.
        model: model path.
        system: GPU system, such as `h100_sxm`.
        precision: `fp8`, `fp4`, `int4`, or empty where the file does not say.
        disaggregated: prefill and decode on different workers.
        num_gpus: GPUs of one decode worker.
        attention_dp: data-parallel attention ranks of one decode worker.
        decode_workers: decode workers that share the load.
        isl_tokens: prompt length.
        osl_tokens: output length.
        concurrency: requests in flight over the whole deployment.
        tpot_s: measured mean seconds per output token after the first.
    """

    name: str
    group: tuple[str, ...]
    model: str
    system: str
    precision: str
    disaggregated: bool
    num_gpus: int
    attention_dp: int
    decode_workers: int
    isl_tokens: int
    osl_tokens: int
    concurrency: float
    tpot_s: float


def load_points(path: Path) -> list[ServedPoint]:
    """Read a file of served points.

    Raises:
        ScenarioError: unreadable, missing or unknown columns, or a bad value; every problem is
            named by file, row and field.
    """
    _, rows = csv_rows(read_text(path), str(path), known=_KNOWN, needed=_NEEDED, blank=False)
    problems: list[Problem] = []
    points: list[ServedPoint] = []
    for place, row in rows:
        found = _point(row, place)
        if isinstance(found, ServedPoint):
            points.append(found)
        else:
            problems += found
    if problems:
        raise ScenarioError(problems)
    return points


def _point(row: dict[str, str], where: str) -> ServedPoint | list[Problem]:
    problems: list[Problem] = []

    def number(field: str, default: float | None = None) -> float:
        text = (row.get(field) or "").strip()
        if default is not None and text in ("", "0", "0.0"):
            return default  # the file writes both for a size that does not apply
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_TOKENS:
            message = f"must be a number above 0 up to {MOST_TOKENS:g}, not {text!r}"
            problems.append(Problem(where, field, message))
            return 1.0
        return value

    mode = row["mode"]
    if mode not in ("agg", "disagg"):
        problems.append(Problem(where, "mode", f"must be agg or disagg, not {mode!r}"))
    side = "decode_" if mode == "disagg" else ""
    dp = number(f"{side}attention_dp_size", 1.0)
    gpus = max(
        number(f"{side}tp_size", 1.0) * (dp if side else 1.0),
        number(f"{side}moe_tp_size", 1.0) * number(f"{side}moe_ep_size", 1.0),
    )
    workers = number("decode_num_workers", 1.0)
    said = _CONCURRENCY.search(row["silicon_data_source"] or "")
    # Where it is not said: the batch of one attention rank, times the ranks.
    batch = 1.0 if said else number(f"{side}batch_size")
    concurrency = float(said[1]) if said else batch * dp * workers
    point = ServedPoint(
        name=row["id"],
        group=tuple(row.get(name) or "" for name in _GROUP),
        model=row["model_path"],
        system=row["system"],
        precision=row["precision"],
        disaggregated=mode == "disagg",
        num_gpus=int(gpus),
        attention_dp=int(dp),
        decode_workers=int(workers),
        isl_tokens=int(number("isl")),
        osl_tokens=int(number("osl")),
        concurrency=concurrency,
        tpot_s=number("silicon_tpot_ms") / 1e3,
    )
    return problems or point


def deployment_telemetry(
    points: Iterable[ServedPoint], wanted: str, *, where: str
) -> list[Telemetry]:
    """Return telemetry of the one deployment that every word of `wanted` names.

    R is the concurrency of one decode worker, tokens a request 1: the file does not say whether a
    deployment speculates, so choose one that does not.

    Args:
        points: served points.
        wanted: words that stand in the deployment's model, system, engine, precision or sizes,
            such as `Llama-3.1-70B h100 fp8 4.0`; a length such as `1024x1024` keeps that one.
        where: the file's name in errors.

    Raises:
        InputError: no deployment, or several, have all the words.
    """
    lengths = [word for word in wanted.split() if re.fullmatch(r"\d+x\d+", word)]
    words = [word.lower() for word in wanted.split() if word not in lengths]
    found = [
        point
        for point in points
        if all(word in " ".join(point.group).lower() for word in words)
        and all(f"{point.isl_tokens}x{point.osl_tokens}" == length for length in lengths)
    ]
    groups = sorted({" ".join(part for part in point.group if part) for point in found})
    if len(groups) != 1:
        listed = "; ".join(groups[:6]) + ("; .." if len(groups) > 6 else "")
        raise InputError(
            f'{where}: "{wanted}" names {len(groups)} deployments, not one'
            + (f": {listed}" if groups else "; name words of model, system, engine or precision")
        )
    return [
        Telemetry(
            concurrency=point.concurrency / point.decode_workers,
            tpot_s=point.tpot_s,
            acceptance_length=1.0,
            tokens_per_request=1.0,
            context_tokens=point.isl_tokens + point.osl_tokens / 2,
        )
        for point in sorted(found, key=lambda point: point.concurrency)
    ]
