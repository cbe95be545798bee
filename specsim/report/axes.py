"""What people put on the two axes of a throughput-interactivity figure, and how to get it.

The conventions do not agree with each other, so every figure prints the one it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.errors import InputError, nearest

Row = Mapping[str, Any]
_OUTPUT = "output throughput, tok/s/GPU"


@dataclass(frozen=True, slots=True)
class Axes:
    """One convention.

    Attributes:
        name: whose it is.
        x_label, y_label: what an axis says.
        x, y: read a point's coordinate from its metrics and the number of ranks; None where the
            point does not have it.
        note: where it differs from the original.
    """

    name: str
    x_label: str
    y_label: str
    x: Callable[[Row, int], float | None]
    y: Callable[[Row, int], float | None]
    note: str = ""

    def rows(self, rows: list[Row], *, ranks: int) -> list[Row]:
        """Return the points with `tok_s_user` and `tok_s_gpu` by this convention."""
        return [{**r, "tok_s_user": self.x(r, ranks), "tok_s_gpu": self.y(r, ranks)} for r in rows]


def _metric(name: str) -> Callable[[Row, int], float | None]:
    return lambda row, ranks: row.get(name)


def _vllm_user(row: Row, ranks: int) -> float | None:
    users, total = row.get("concurrency"), row.get("output_tok_per_s")
    return None if users is None or total is None else float(total) / (users * ranks)


CONVENTIONS: dict[str, Axes] = {
    axes.name: axes
    for axes in (
        Axes(
            "paper",
            "speed of one user, tok/s/user = tokens emitted / request-seconds in the batch",
            f"{_OUTPUT} = tokens emitted / seconds / GPUs",
            _metric("tok_s_user"),
            _metric("tok_s_gpu"),
        ),
        Axes(
            "vllm",
            "tokens per user, tok/s/user = output throughput / max concurrency",
            f"{_OUTPUT} = output throughput / (tp x pp x dp)",
            _vllm_user,
            _metric("tok_s_gpu"),
            "vLLM counts each request's first token too; specsim gives that one to the prefill.",
        ),
        Axes(
            "inferencex",
            "interactivity, tok/s/user = 1 / median TPOT",
            f"{_OUTPUT} (InferenceX: output_tput_per_gpu)",
            _metric("tok_s_user_median"),
            _metric("tok_s_gpu"),
        ),
        Axes(
            "aiperf",
            "output token throughput per user, tok/s/user = mean over requests of 1 / TPOT",
            f"{_OUTPUT} (AIPerf: output_token_throughput_per_gpu)",
            _metric("tok_s_user_request_mean"),
            _metric("tok_s_gpu"),
        ),
        Axes(
            "trtllm",
            "output throughput per user, tok/s/user = mean over requests of output tokens / "
            "end-to-end latency",
            f"{_OUTPUT} (trtllm-bench: output_throughput_per_gpu_tok_s)",
            _metric("tok_s_user_e2e_mean"),
            _metric("tok_s_gpu"),
        ),
    )
}


def axes_named(name: str) -> Axes:
    """Return a convention by name.

    Raises:
        InputError: there is no such convention.
    """
    if name not in CONVENTIONS:
        raise InputError(
            f'no axes "{name}"; legal are {", ".join(CONVENTIONS)} {nearest(name, CONVENTIONS)}'
        )
    return CONVENTIONS[name]
