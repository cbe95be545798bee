"""The scenario that `specsim init` writes: whole, commented, and right as it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.cost.model import CostConfig, TermInput, make_cost
from specsim.cost.table import Read, StepTable, Term, load_table
from specsim.errors import InputError
from specsim.scenario.locate import locator


@dataclass(frozen=True, slots=True)
class Engine:
    """Step costs that ship.

    Attributes:
        about: what they are, for the comment above them.
        table: name of the step table.
        read: how the engine reads it.
        gpus: accelerators of one rank.
        rest: lines of `cost` for what the table leaves out.
    """

    about: str
    table: str
    read: Read
    gpus: int
    rest: str


_DRAFT = (
    "  # What a drafter adds to a step is not in these costs: a guess, put what yours takes.\n"
    "  draft: {base_ms: 0.6, per_request_us: 2, label: assumed, source: a guess}\n"
)
_ATTENTION = "  attention: {base_ms: 0, label: assumed, source: a guess}\n"
_HOST = "  host: {base_ms: 0.5, per_request_us: 5, label: assumed, source: a guess}\n"
_GUESSES: Mapping[Term, Mapping[str, Any]] = {
    "attention": {"base_ms": 0, "label": "assumed", "source": "a guess"},
    "host": {"base_ms": 0.5, "per_request_us": 5, "label": "assumed", "source": "a guess"},
}
"""The same without the draft: what a step without speculation is charged."""

ENGINES: Mapping[str, Engine] = {
    "h100-8b": Engine(
        "Llama-3.1-8B on one H100, derived from measured kernels (upper bounds of speed).",
        "aiconfigurator/h100_llama31-8b_tp1_bf16",
        "linear",
        1,
        _DRAFT + _HOST,
    ),
    "h100-70b": Engine(
        "Llama-2-70B on four H100s, derived from measured kernels (vidur).",
        "vidur/h100_llama2-70b_tp4_fp16",
        "linear",
        4,
        _DRAFT + _HOST,
    ),
    "b300-v4-flash": Engine(
        "DeepSeek-V4-Flash in vLLM on four B300s; verify and draft times are measured.",
        "vllm/v4_flash_tp4_b300",
        "ceil",
        4,
        _HOST,
    ),
    "paper-v4-flash": Engine(
        "DeepSeek-V4-Flash of the DSpark paper, fitted to the MTP-1 line of its Figure 7.",
        "v4_flash/fig7_mtp1",
        "linear",
        1,
        "",
    ),
}
WORKLOADS = ("chat", "poisson", "batch")

_QUESTION = {
    "chat": """\
# A frontier: every policy at every number of users a rank, and what each holds at an SLO.
# By these step costs one user gets {speed} tok/s without speculation; the SLO is about 60 % of it.
question:
  kind: frontier
  concurrency: {loads}
  slo_tok_s_user: [{slo:g}]                 # tokens a second that every user must get
  headline_slo: {slo:g}                     # the one that the answer is about
  baseline: no_speculation
stop: {{kind: requests, num_requests: {requests}}}   # more requests, narrower intervals
""",
    "poisson": """\
# One load: what every policy does under it.
question: {{kind: point}}
stop: {{kind: requests, num_requests: 400}}   # more requests, narrower intervals
""",
    "batch": """\
# One load: which policy empties the queue first.
question: {{kind: point}}
stop: {{kind: all_done}}
""",
}
_ARRIVALS = {
    "chat": "  arrivals: {kind: closed_loop}         # a user asks again when the answer is there",
    "poisson": "  arrivals: {kind: poisson, rate_per_s: 4}",
    "batch": "  arrivals: {kind: batch, num_requests: 200}",
}


_CONTEXT = 612  # a prompt of the template and half of its answer
_MOST_USERS = 256
_ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def speeds(table: StepTable, *, read: Read) -> list[float]:
    """Return tok/s of a user without speculation at 1, 2, .. `_MOST_USERS` users a rank.

    Terms that the table lacks are charged as guessed in the scenario.
    """
    guess = {
        term: None if _has(table, term) else TermInput.model_validate(values)
        for term, values in _GUESSES.items()
    }
    config = CostConfig(table=table.name, read=read, **guess)
    cost = make_cost(config, table, max_requests=_MOST_USERS, max_tokens=_MOST_USERS, draft="none")
    return [
        1 / (float(cost.verify_s_B[n]) + cost.fixed_s(n, n * _CONTEXT))
        for n in range(1, _MOST_USERS + 1)
    ]


def round_slo(speed: float) -> float:
    """Return the round number nearest to 60 % of a speed."""
    aim = 0.6 * speed
    whole = 10.0 ** math.floor(math.log10(aim))
    return min((whole * x for x in _ROUND), key=lambda slo: abs(math.log(slo / aim)))


def loads_about(found: Sequence[float], slo: float) -> list[int]:
    """Return users a rank around what an engine holds at an SLO: one, up to past twice that."""
    held = sum(1 for speed in found if speed >= slo)
    most = min(_MOST_USERS, max(8, 2 ** math.ceil(math.log2(max(1, 2 * held)))))
    return sorted({1, *(most // part for part in (16, 8, 4, 2, 1) if most // part)})


def template(
    engine: str, workload: str, *, name: str, table: str | None = None, own: StepTable
) -> str:
    """Return the text of a scenario.

    Args:
        engine: one of `ENGINES`.
        workload: one of `WORKLOADS`.
        name: what to call it.
        table: a step table instead of the engine's, as the scenario should name it,
        own: the content of the table, of the engine's if there is no other.
    """
    costs = ENGINES[engine]
    about, rest = costs.about, costs.rest
    if table is not None:
        about, rest = f"{own.name}: {own.provenance.status}, {own.provenance.source}.", _rest(own)
    found = speeds(own, read=costs.read)
    slo = round_slo(found[0])
    loads = loads_about(found, slo)
    question = _QUESTION[workload].format(
        speed=f"{found[0]:.3g}", slo=slo, loads=loads, requests=max(400, 4 * loads[-1])
    )
    most = max(64, *loads) if workload == "chat" else 64
    return f"""\
# Written by `specsim init`. `specsim check FILE` says what is wrong with it, `specsim run FILE`
# answers it, `specsim schema` describes every field, and `--set path=value` changes one for a run.
name: {name}
{question}seed: 1                                 # the same seed gives the same bytes

cluster:
  gpus_per_rank: {costs.gpus}
  max_requests_per_rank: {most}
  # ranks: 8                            # more of them, with a router in front
  # kv: {{kind: worst_case, capacity_tokens: 400000}}     # left out: memory has no limit
  # prefill: {{kind: mixed, tokens_per_step: 8192, reserve: full}}    # left out: it takes no time

workload:
{_ARRIVALS[workload]}
  prompt_tokens: {{kind: fixed, tokens: 512}}             # assumed: put yours
  output_tokens: {{kind: lognormal, mean: 200, cv: 0.7, min: 2, max: 2000}}   # assumed: put yours
  # or a log: arrivals: {{kind: replay, format: csv, file: log.csv}}, and no lengths beside it

# Which drafts are accepted. A trace is replayed (measured, of a small model); a parametric model
# needs acceptances only: {{kind: parametric, conditional_acceptance: [0.8, 0.7], ..}}
acceptance: {{kind: trace, trace: smollm2_markov_t1}}

# {about}
cost:
  table: {table or costs.table}
  read: {costs.read}                            # ceil if the engine pads to captured sizes
{rest}
# What competes. A scheduler of your own: {{kind: "my_module:MyScheduler", params: {{k: 3}}}}
policies:
  no_speculation: {{scheduler: {{kind: none}}, gamma: 0}}
  fixed_2: {{scheduler: {{kind: fixed, k: 2}}, gamma: 7}}
  greedy: {{scheduler: {{kind: greedy}}, gamma: 7}}
  async_topk: {{scheduler: {{kind: async_topk, lag: 2}}, gamma: 7}}
"""


def _rest(own: StepTable) -> str:
    """Return lines for the terms that a table neither has nor includes."""
    guesses: tuple[tuple[Term, str], ...] = (
        ("draft", _DRAFT),
        ("host", _HOST),
        ("attention", _ATTENTION),
    )
    return "".join(guess for term, guess in guesses if not _has(own, term))


def _has(table: StepTable, term: Term) -> bool:
    """Say whether a table covers a term, by a curve or inside another."""
    return getattr(table, term) is not None or term in table.includes


def write_template(
    path: Path, *, engine: str, workload: str, table: str | None, replace: bool
) -> Path:
    """Write a scenario to a file.

    Args:
        path: the file.
        engine: one of `ENGINES`.
        workload: one of `WORKLOADS`.
        table: a step table instead of the engine's.
        replace: whether a file that is there may be replaced.

    Raises:
        InputError: the file is there already, or cannot be written; or there is no such table.
    """
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in path.stem)
    own = load_table(locator(path.parent)("steps", table or ENGINES[engine].table))
    text = template(engine, workload, name=stem or "scenario", table=table, own=own)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(
            f"{path}: is there already; choose another name, or replace it with --force"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
