"""InferenceX: golden acceptance lengths as an acceptance model, and result rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specsim.errors import InputError, nearest
from specsim.inputs import Node
from specsim.interop.results import BenchResult, Latency, milliseconds, number, opened, whole


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
    found: dict[str, dict[int, float]] = {}
    for key, entry in opened(text, where).entries():
        models = entry.get("data").entries() if entry.has("data") else [(key, entry)]
        for model, modes in models:
            if not isinstance(modes.value, dict):
                continue  # a file's own remarks
            for mode, table in modes.entries():
                found[f"{model}/{mode}"] = dict(_golden_length(*item) for item in table.entries())
    if not found:
        raise InputError(f"{where}: holds no golden acceptance lengths")
    return found


def _golden_length(drafts: str, length: Node) -> tuple[int, float]:
    if not drafts.isdecimal() or not 1 <= int(drafts) <= 64:
        raise length.error("must stand at a number of drafts from 1 to 64")
    k, value = int(drafts), length.number()
    if not 1 <= value <= k + 1:
        raise length.error(
            f"{value} tokens a step with {k} drafts; with the bonus token in, 1 to {k + 1} is "
            "possible"
        )
    return k, value


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


def parse_inferencex_row(row: Mapping[str, Any], *, where: str) -> BenchResult:
    """Read one result row (`utils/process_result.py`): seconds, `*_intvty` = 1 / TPOT.

    Raises:
        InputError: it is no such row.
    """
    data = Node(row, where)
    if not data.has("hw") or not data.has("output_tput_per_gpu"):
        raise data.error('no InferenceX row: "hw" and "output_tput_per_gpu" are needed')
    per_gpu = data.get("output_tput_per_gpu").number(least=0.0)
    gpus = 1
    for key in ("tp", "pp", "pcp_size"):
        gpus *= whole(data, key) or 1
    if data.get("is_multinode").value:
        gpus = (whole(data, "num_prefill_gpu") or 0) + (whole(data, "num_decode_gpu") or 0)
    latency: dict[str, Latency] = {}
    for theirs, ours in (
        ("ttft", "ttft_s"),
        ("tpot", "tpot_s"),
        ("itl", "itl_s"),
        ("e2el", "e2e_s"),
    ):
        if found := milliseconds(data, theirs, suffix="", scale=1.0):
            latency[ours] = found
    total = number(data, "tput_per_gpu")
    return BenchResult(
        source="inferencex",
        label=" ".join(
            filter(None, (data.get(k).text() for k in ("hw", "framework", "precision")))
        ),
        concurrency=number(data, "conc"),
        gpus=gpus,
        output_tok_per_s=per_gpu * gpus,
        total_tok_per_s=None if total is None else total * gpus,
        latency_s=latency,
        tok_s_user=number(data, "median_intvty"),
    )
