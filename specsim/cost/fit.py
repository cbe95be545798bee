"""From timings to a step table: medians, a staircase, or bias + alpha(requests) + theta(tokens).

Refused, because a planner would be misled: flat tables, partial widths that cost what the full one
costs (a profiler whose widths were ignored), sweeps that fall apart into pieces that share no cell,
and non-finite times (those already by `cost/rows.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from specsim.cost.diagnose import Finding, findings
from specsim.cost.rows import Cell, Row, cells
from specsim.cost.table import (
    Curve,
    Provenance,
    StepTable,
    Surface,
    Term,
    check_table,
    curve,
    surface,
)
from specsim.errors import InputError

FloatArray = NDArray[np.float64]
Form = Literal["auto", "staircase", "additive"]
Monotone = Literal["none", "running_max", "isotonic"]

_SAME_WIDTH = 0.015  # partial and full width cost the same if they differ by less than this
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted table and how far to trust it.

    Attributes:
        table: the table.
        form: `staircase` or `additive`.
        leave_one_out: relative errors of cells predicted without them, sorted.
        intervals: for each probe of B, the 95% interval of its median, relative to it.
        findings: what is odd about the table; none of them refuses it.
    """

    table: StepTable
    form: Literal["staircase", "additive"]
    leave_one_out: tuple[float, ...]
    intervals: dict[int, tuple[float, float]]
    findings: tuple[Finding, ...]

    @property
    def median_error(self) -> float:
        """Median relative error of cells predicted without them; NaN if there are none."""
        return float(np.median(self.leave_one_out)) if self.leave_one_out else float("nan")


def fit_table(
    rows: Sequence[Row],
    *,
    name: str,
    provenance: Provenance,
    form: Form = "auto",
    monotone: Monotone = "none",
    graph_limit_tokens: int | None = None,
    includes: Sequence[Term] = (),
) -> FitResult:
    """Make a step table of raw rows.

    Rows of `verify` (or `step`) give the verify curve, rows of `sampler` are added to it, rows of
    `draft` give the draft curve. `step` rows include every term, the draft where any of them has
    more tokens than requests.

    Args:
        rows: the timings.
        name: name of the table.
        provenance: where they come from.
        form: `staircase` takes each B's median; `additive` splits off what depends on requests and
            context; `auto` splits if some B was timed with several requests or contexts.
        monotone: what to do with falling medians.
        graph_limit_tokens: largest captured graph; verify rows past it become `past_limit`.
        includes: terms that were inside the timed steps besides those implied.

    Raises:
        InputError: no rows, or rows that must be refused; says why and what to do.
    """
    part: Literal["verify", "step"] = "step"
    if any(row.part == "verify" for row in rows):
        part = "verify"
    timed = cells(rows, part)
    if not timed:
        raise InputError("no rows of part verify or step: nothing to make a verify curve of")
    refuse_ignored_widths(timed)
    graph, past = _split(timed, graph_limit_tokens)
    by_tokens: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for cell in graph:
        by_tokens[cell.batch_tokens].add((cell.num_requests, cell.context_tokens))
    mixed = any(len(found) > 1 for found in by_tokens.values())
    if form == "staircase" and mixed:
        tokens = next(tokens for tokens, found in by_tokens.items() if len(found) > 1)
        raise InputError(
            f"{tokens} tokens were timed with several requests or contexts, which a staircase "
            "cannot tell apart; use the additive form"
        )
    chosen: Literal["staircase", "additive"]
    chosen = "additive" if form == "additive" or (form == "auto" and mixed) else "staircase"
    attention: Surface | None = None
    if chosen == "additive":
        verify, attention = _additive(graph)
        errors = _additive_errors(graph)
    else:
        verify = curve([c.batch_tokens for c in graph], [c.median_s for c in graph])
        errors = _staircase_errors(verify)
    verify = _with_sampler(verify, cells(rows, "sampler"))
    inside: set[Term] = set(includes)
    if attention is None:
        inside.add("attention")
    if part == "step":
        inside.add("host")
        # A step of one token a request has nobody's drafts in it.
        if any(cell.batch_tokens > cell.num_requests for cell in timed):
            inside.add("draft")
        provenance = _with_open_split(provenance, timed)
    table = StepTable(
        name=name,
        provenance=provenance,
        verify=make_monotone(verify, monotone),
        graph_limit_tokens=graph_limit_tokens if past else None,
        past_limit=_merged(past) if past else None,
        draft=None if "draft" in inside else _draft(rows),
        attention=attention,
        includes=frozenset(inside),
    )
    check_table(table)
    odd = findings(table)
    for finding in odd:
        if finding.refuse:
            raise InputError(f"refused: {finding.message}")
    unsmoothed = findings(replace(table, verify=verify)) if monotone != "none" else odd
    return FitResult(table, chosen, errors, _intervals(graph), tuple(unsmoothed))


def _with_open_split(provenance: Provenance, timed: Sequence[Cell]) -> Provenance:
    """Note in the provenance that all steps had the same number of tokens a request, if so."""
    tokens, requests = (
        sum(cell.batch_tokens for cell in timed),
        sum(cell.num_requests for cell in timed),
    )
    width = round(tokens / requests, 6)
    if any(
        abs(cell.batch_tokens - width * cell.num_requests) > 0.01 * cell.batch_tokens
        for cell in timed
    ):
        return provenance
    width_text = f"{width:g} token{'' if width == 1 else 's'}"
    note = (
        "what a token costs beside what a request costs is not identified: every step had "
        f"{width_text} a request; all is put on tokens. To settle it, time steps with other "
        "numbers of tokens a request"
    )
    notes = f"{provenance.notes} {note}".strip()
    return provenance.model_copy(update={"notes": notes, "split_open_at": width})


def make_monotone(found: Curve, how: Monotone) -> Curve:
    """Return the curve without falls: by running maximum, by isotonic regression, or as it is.

    Isotonic regression is in relative terms: it pools neighbours to their mean logarithm.
    """
    if how == "none":
        return found
    if how == "running_max":
        return curve(found.probes_N, np.maximum.accumulate(found.seconds_N))
    return curve(found.probes_N, np.exp(isotonic_regression(np.log(found.seconds_N)).x))


def refuse_ignored_widths(timed: Sequence[Cell]) -> None:
    """Refuse sweeps where forcing fewer tokens a request changed nothing.

    Some profilers' forced widths are ignored by a verify-all fast path: every width of a batch then
    costs what the full one costs, although batches differ. Looked at for each (requests, context)
    that was timed at widths that differ by half or more.

    Raises:
        InputError: all of them cost the same at all widths.
    """
    groups: dict[tuple[int, int, str], list[Cell]] = defaultdict(list)
    for cell in timed:
        groups[cell.num_requests, cell.context_tokens, cell.mode].append(cell)
    wide = [
        group
        for group in groups.values()
        if max(c.batch_tokens for c in group) >= 1.5 * min(c.batch_tokens for c in group)
    ]
    if not wide:
        return
    spreads = [max(c.median_s for c in g) / min(c.median_s for c in g) - 1 for g in wide]
    if max(spreads) >= _SAME_WIDTH:
        return
    whole = [cell.median_s for group in wide for cell in group]
    if len(wide) > 1 and max(whole) / min(whole) - 1 < _SAME_WIDTH:
        raise InputError(
            "refused: every cell costs the same within "
            f"{_SAME_WIDTH:.1%}, whatever its tokens and requests; a planner that trusts it "
            "verifies everything"
        )
    shown = max(wide, key=lambda group: max(c.batch_tokens for c in group))
    low, high = min(c.batch_tokens for c in shown), max(c.batch_tokens for c in shown)
    raise InputError(
        f"refused: at {shown[0].num_requests} requests {low} tokens cost what {high} cost "
        f"({shown[0].median_s * 1e3:.4g} ms, within {_SAME_WIDTH:.1%}), and so in all "
        f"{len(wide)} batches with partial widths: the forced widths were ignored (a verify-all "
        "fast path), every cell measured the full width; profile with the path that honours them"
    )


def _split(timed: Sequence[Cell], graph_limit_tokens: int | None) -> tuple[list[Cell], list[Cell]]:
    modes = {cell.mode for cell in timed}
    if graph_limit_tokens is None:
        if modes == {"graph", "eager"}:
            last = max(cell.batch_tokens for cell in timed if cell.mode == "graph")
            raise InputError(
                "rows of both graph and eager steps, and no graph limit given: say "
                f"graph_limit_tokens (the largest captured size here is {last})"
            )
        return list(timed), []
    graph = [c for c in timed if c.batch_tokens <= graph_limit_tokens]
    if {"graph", "eager"} <= {cell.mode for cell in graph}:
        graph = [cell for cell in graph if cell.mode == "graph"]
    past = [c for c in timed if c.batch_tokens > graph_limit_tokens]
    if not graph:
        raise InputError(f"no rows up to the graph limit of {graph_limit_tokens} tokens")
    return graph, past


def _merged(timed: Sequence[Cell]) -> Curve:
    """One median for each B, whatever the requests; for the few points past the graph limit."""
    by_tokens: dict[int, list[float]] = defaultdict(list)
    for cell in timed:
        by_tokens[cell.batch_tokens].append(cell.median_s)
    probes = sorted(by_tokens)
    return curve(probes, [float(np.median(by_tokens[probe])) for probe in probes])


def _draft(rows: Sequence[Row]) -> Curve | None:
    timed = cells(rows, "draft")
    if not timed:
        return None
    by_requests: dict[int, list[float]] = defaultdict(list)
    for cell in timed:
        by_requests[cell.num_requests].append(cell.median_s)
    probes = sorted(by_requests)
    return curve(probes, [float(np.median(by_requests[probe])) for probe in probes])


def _with_sampler(verify: Curve, timed: Sequence[Cell]) -> Curve:
    """Add the sampler's time, a function of the tokens as well, to the verify curve."""
    if not timed:
        return verify
    sampler = _merged(timed)
    added_N = np.interp(verify.probes_N, sampler.probes_N, sampler.seconds_N)
    if verify.last > sampler.last:
        beyond_N = np.maximum(0, verify.probes_N - sampler.last)
        added_N = added_N + beyond_N * sampler.tail_slope()
    return curve(verify.probes_N, verify.seconds_N + added_N)


@dataclass(frozen=True, slots=True)
class _Design:
    """The cells of an additive fit as a linear system."""

    tokens: list[int]
    places: list[tuple[int, int]]  # (context, requests)
    token_C: NDArray[np.int64]
    place_C: NDArray[np.int64]
    seconds_C: FloatArray

    @classmethod
    def of(cls, timed: Sequence[Cell]) -> _Design:
        tokens = sorted({cell.batch_tokens for cell in timed})
        places = sorted({(cell.context_tokens, cell.num_requests) for cell in timed})
        token_at = {value: i for i, value in enumerate(tokens)}
        place_at = {value: i for i, value in enumerate(places)}
        return cls(
            tokens,
            places,
            np.array([token_at[c.batch_tokens] for c in timed]),
            np.array([place_at[c.context_tokens, c.num_requests] for c in timed]),
            np.array([c.median_s for c in timed]),
        )

    def pieces(self) -> int:
        """Pieces of the sweep that share neither tokens nor (requests, context)."""
        parent = list(range(len(self.tokens) + len(self.places)))

        def root(node: int) -> int:
            while parent[node] != node:
                node = parent[node]
            return node

        for token, place in zip(self.token_C.tolist(), self.place_C.tolist(), strict=True):
            parent[root(token)] = root(len(self.tokens) + place)
        return len({root(node) for node in range(len(parent))})

    def solve(self, keep_C: NDArray[np.bool_] | None = None) -> tuple[FloatArray, FloatArray]:
        """Theta at each B and alpha at each place, up to a shared constant; relative fit."""
        keep_C = np.ones(len(self.seconds_C), dtype=bool) if keep_C is None else keep_C
        token_C, place_C = self.token_C[keep_C], self.place_C[keep_C]
        weight_C = 1.0 / self.seconds_C[keep_C]
        rows = np.zeros((len(token_C), len(self.tokens) + len(self.places)))
        index = np.arange(len(token_C))
        rows[index, token_C] = weight_C
        rows[index, len(self.tokens) + place_C] += weight_C
        found = np.linalg.lstsq(rows, np.ones(len(token_C)), rcond=None)[0].astype(np.float64)
        return found[: len(self.tokens)], found[len(self.tokens) :]


def _additive(timed: Sequence[Cell]) -> tuple[Curve, Surface]:
    design = _Design.of(timed)
    pieces = design.pieces()
    if pieces > 1:
        raise InputError(
            f"refused: the sweep falls apart into {pieces} pieces that share neither a token count "
            "nor a (requests, context), so what is between them is unknown; time some tokens with "
            "several requests"
        )
    theta_T, alpha_P = design.solve()
    # The data leave one constant free between theta and alpha. Attention that reads no KV costs
    # nothing: alpha = u requests + v requests x context, without an intercept.
    context_P = np.array([context for context, _ in design.places], dtype=np.float64)
    requests_P = np.array([count for _, count in design.places], dtype=np.float64)
    terms = np.stack([np.ones_like(requests_P), requests_P, requests_P * context_P], axis=1)
    shift, per_request, per_kv = np.linalg.lstsq(terms, alpha_P, rcond=None)[0].tolist()
    theta_T, alpha_P = theta_T + shift, alpha_P - shift
    if theta_T.min() <= 0:
        raise InputError(
            "refused: splitting off what depends on requests leaves a step of "
            f"{theta_T.min() * 1e3:.3g} ms at {design.tokens[int(theta_T.argmin())]} tokens; the "
            "sweep does not tell tokens and requests apart well enough"
        )
    contexts = sorted({context for context, _ in design.places})
    counts = sorted({count for _, count in design.places})
    at = {place: float(value) for place, value in zip(design.places, alpha_P, strict=True)}
    rows = [
        [
            max(_LEAST_S, at.get((context, n), per_request * n + per_kv * n * context))
            for n in counts
        ]
        for context in contexts
    ]
    contexts = [max(1, context) for context in contexts]
    return curve(design.tokens, theta_T), surface(counts, contexts, rows)


def _additive_errors(timed: Sequence[Cell]) -> tuple[float, ...]:
    """Predict each cell from the others; cells that alone tie a row or column are left out."""
    design = _Design.of(timed)
    errors = []
    for out in range(len(timed)):
        keep_C = np.arange(len(timed)) != out
        if not (
            (design.token_C[keep_C] == design.token_C[out]).any()
            and (design.place_C[keep_C] == design.place_C[out]).any()
        ):
            continue
        theta_T, alpha_P = design.solve(keep_C)
        predicted = theta_T[design.token_C[out]] + alpha_P[design.place_C[out]]
        errors.append(abs(float(predicted / design.seconds_C[out]) - 1))
    return tuple(sorted(errors))


def _staircase_errors(verify: Curve) -> tuple[float, ...]:
    """Predict each inner probe linearly from its neighbours."""
    x_N, y_N = verify.probes_N, verify.seconds_N
    if len(x_N) < 3:
        return ()
    share_N = (x_N[1:-1] - x_N[:-2]) / (x_N[2:] - x_N[:-2])
    predicted_N = y_N[:-2] + share_N * (y_N[2:] - y_N[:-2])
    return tuple(sorted(np.abs(predicted_N / y_N[1:-1] - 1).tolist()))


def _intervals(timed: Sequence[Cell]) -> dict[int, tuple[float, float]]:
    """The widest relative interval among the cells of each B."""
    found: dict[int, tuple[float, float]] = {}
    for cell in timed:
        low, high = cell.low_s / cell.median_s, cell.high_s / cell.median_s
        before = found.get(cell.batch_tokens, (1.0, 1.0))
        found[cell.batch_tokens] = (min(low, before[0]), max(high, before[1]))
    return found
