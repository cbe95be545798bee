"""InferenceX: golden acceptance lengths as an acceptance model, and result rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specsim.errors import InputError, nearest
from specsim.interop.results import BenchResult, from_json, number, whole


def golden_lengths(text: str, *, where: str) -> dict[str, dict[int, float]]:
    """Read golden acceptance lengths (bonus in) by number of drafts.

    Args:
        text: JSON of `golden_al_distribution`, one file (`{model: {mode: {k: AL}}}`) or many by
            file name with the content under `data`.
        where: the file's name in errors.

    Returns:
        Lengths by `model/mode`.

    Raises:
        InputError: there is none, or one lies outside 1 .. k + 1.
    """
    data = from_json(text, where)
    found: dict[str, dict[int, float]] = {}
    parts = [v["data"] if isinstance(v, dict) and "data" in v else {k: v} for k, v in data.items()]
    for part in parts:
        for model, modes in part.items():
            for mode, table in modes.items() if isinstance(modes, dict) else ():
                lengths = {int(k): float(v) for k, v in table.items()}
                for k, length in lengths.items():
                    if not 1 <= length <= k + 1:
                        raise InputError(
                            f"{where}: {model}: {mode}: {length} tokens a step with {k} drafts; "
                            f"with the bonus token in, 1 to {k + 1} is possible"
                        )
                found[f"{model}/{mode}"] = lengths
    if not found:
        raise InputError(f"{where}: holds no golden acceptance lengths")
    return found


def acceptance_of_golden(
    golden: Mapping[str, Mapping[int, float]], name: str
) -> tuple[list[float], list[str]]:
    """Turn golden lengths into conditional acceptances by position.

    survival of draft k = AL(k) - AL(k - 1). Each k was a run of its own, so a difference can be
    negative or rise; such a block is cut before it, and that is said.

    Returns:
        Conditional acceptance at positions 1, 2, .., and notes.

    Raises:
        InputError: no such model.
    """
    if name not in golden:
        raise InputError(
            f'no golden lengths of "{name}"; {nearest(name, golden)} there are '
            f"{', '.join(sorted(golden))}"
        )
    lengths = {0: 1.0} | dict(golden[name])
    conditional: list[float] = []
    before, notes = 1.0, []
    for k in range(1, max(lengths) + 1):
        if k not in lengths:
            notes.append(f"no run with {k} drafts; the block ends at {k - 1}")
            break
        survival = lengths[k] - lengths[k - 1]
        if survival <= 0 or survival > before:
            notes.append(
                f"from {k - 1} to {k} drafts the length goes from {lengths[k - 1]:g} to "
                f"{lengths[k]:g}, which no one drafter can do; the block ends at {k - 1}"
            )
            break
        conditional.append(round(survival / before, 6))
        before = survival
    notes.append("differences of separate runs with two decimals: approximate, confidences unknown")
    return conditional, notes


def parse_inferencex_row(data: Mapping[str, Any], *, where: str) -> BenchResult:
    """Read one result row (`utils/process_result.py`): seconds, `*_intvty` = 1 / TPOT.

    Raises:
        InputError: it is no such row.
    """
    per_gpu = number(data, "output_tput_per_gpu")
    if per_gpu is None or "hw" not in data:
        raise InputError(f'{where}: no InferenceX row: "hw" and "output_tput_per_gpu" are needed')
    gpus = 1
    for key in ("tp", "pp", "pcp_size"):
        gpus *= whole(data, key) or 1
    if data.get("is_multinode"):
        gpus = (whole(data, "num_prefill_gpu") or 0) + (whole(data, "num_decode_gpu") or 0)
    latency: dict[str, dict[str, float]] = {}
    for theirs, ours in (
        ("ttft", "ttft_s"),
        ("tpot", "tpot_s"),
        ("itl", "itl_s"),
        ("e2el", "e2e_s"),
    ):
        found = {}
        for key in data:
            head, _, rest = key.partition("_")
            value = number(data, key)
            if rest == theirs and value is not None:
                found["p50" if head == "median" else head] = value
        if found:
            latency[ours] = found
    total = number(data, "tput_per_gpu")
    return BenchResult(
        source="inferencex",
        label=f"{data.get('hw')} {data.get('framework', '')} {data.get('precision', '')}".strip(),
        concurrency=number(data, "conc"),
        gpus=gpus,
        output_tok_per_s=per_gpu * gpus,
        total_tok_per_s=None if total is None else total * gpus,
        latency_s=latency,
        tok_s_user=number(data, "median_intvty"),
    )
