"""Fitting tables from raw rows: recovery of known costs, and every refusal."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specsim.cost.fit import fit_table, make_monotone
from specsim.cost.holdout import held_out_errors, split_rows
from specsim.cost.model import CostConfig, make_cost
from specsim.cost.rows import Row, cells, parse_rows
from specsim.cost.table import Provenance, curve, parse_table
from specsim.errors import InputError, ScenarioError
from specsim.rng import stream

HERE = Provenance(status="measured", source="a test", date="2026-11-29", licence="Apache-2.0")


def theta(tokens: int) -> float:
    """A staircase with waves of 16 tokens."""
    return 5e-3 + 0.4e-3 * ((tokens + 15) // 16)


def alpha(requests: int, context: int) -> float:
    return requests * (20e-6 + context * 10e-9)


def grid(*, noise: float = 0.0, repeats: int = 5) -> list[Row]:
    rng = stream(7, "fit")
    rows = []
    for requests in (1, 4, 16, 64):
        for width in (1, 2, 4, 8):
            for context in (512, 2048):
                for repeat in range(repeats):
                    seconds = theta(requests * width) + alpha(requests, context)
                    seconds *= 1 + noise * float(rng.standard_normal())
                    rows.append(
                        Row("verify", requests * width, requests, context, seconds, "graph", repeat)
                    )
    return rows


def test_additive_recovers_both_parts() -> None:
    found = fit_table(grid(), name="t", provenance=HERE)
    assert found.form == "additive"
    table = found.table
    for tokens, seconds in zip(table.verify.probes_N, table.verify.seconds_N, strict=True):
        assert seconds == pytest.approx(theta(int(tokens)), rel=1e-6)
    assert table.attention is not None
    np.testing.assert_allclose(table.attention.seconds_CR[1, 3], alpha(64, 2048), rtol=1e-6)
    assert max(found.leave_one_out) < 1e-6


def test_additive_predicts_cells_it_has_not_seen() -> None:
    rows = grid(noise=0.02)
    held_out = [r for r in rows if (r.num_requests, r.batch_tokens) in ((16, 64), (4, 32))]
    kept = [row for row in rows if row not in held_out]
    found = fit_table(kept, name="t", provenance=HERE)
    config = CostConfig.model_validate(
        {
            "table": "t",
            "read": "linear",
            "draft": {"base_ms": 0, "label": "assumed", "source": "none here"},
            "host": {"base_ms": 0, "label": "assumed", "source": "none here"},
        }
    )
    cost = make_cost(config, found.table, max_requests=64, max_tokens=512)
    for row in held_out:
        kv_tokens = row.num_requests * row.context_tokens
        predicted = cost.verify_s_B[row.batch_tokens] + cost.fixed_s(row.num_requests, kv_tokens)
        truth = theta(row.batch_tokens) + alpha(row.num_requests, row.context_tokens)
        assert predicted == pytest.approx(truth, rel=0.04)
    assert found.median_error < 0.03


def test_same_tokens_with_other_requests_cost_differently() -> None:
    table = fit_table(grid(), name="t", provenance=HERE).table
    assert table.attention is not None
    few, many = table.attention.dense(64)[0, [4, 64]]
    assert many > few + 60 * 20e-6


def test_staircase_takes_medians_and_says_what_verify_includes() -> None:
    rows = [
        Row("verify", tokens, tokens, 1024, seconds, "graph", repeat)
        for tokens, base in ((1, 5e-3), (8, 6e-3), (16, 9e-3))
        for repeat, seconds in enumerate([base, base, base * 3])
    ]
    found = fit_table(rows, name="t", provenance=HERE)
    assert found.form == "staircase"
    np.testing.assert_allclose(found.table.verify.seconds_N, [5e-3, 6e-3, 9e-3])
    assert found.table.includes == {"attention"}
    assert found.intervals[8] == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize("width", [1, 2])
def test_whole_steps_include_a_draft_where_they_verify_one(width: int) -> None:
    rows = [Row("step", n * width, n, 0, 5e-3 + 1e-4 * n) for n in (1, 2, 4, 8)]
    table = fit_table(rows, name="t", provenance=HERE).table
    assert table.includes == {"attention", "host"} | ({"draft"} if width > 1 else set())
    # One width alone: what a token costs beside a request is nowhere in these rows.
    assert table.provenance.split_open_at == width
    assert f"every step had {width} token" in table.provenance.notes
    assert parse_table(json.dumps(table.to_json()), where="t").provenance == table.provenance
    mixed = [*rows, Row("step", 40, 8, 0, 9e-3)]
    told = fit_table(mixed, name="t", provenance=HERE).table
    assert (told.provenance, "draft" in told.includes) == (HERE, True)


def test_draft_and_sampler_rows_get_their_places() -> None:
    rows = [Row("verify", n, n, 0, 5e-3 + 1e-4 * n) for n in (1, 2, 4, 8)]
    rows += [Row("draft", 7 * n, n, 0, 1e-3 + 1e-5 * n) for n in (1, 8)]
    rows += [Row("sampler", n, n, 0, 2e-4 + 1e-6 * n) for n in (1, 4)]
    table = fit_table(rows, name="t", provenance=HERE).table
    assert table.draft is not None
    assert table.draft.probes_N.tolist() == [1, 8]
    assert table.verify.seconds_N[0] == pytest.approx(5.1e-3 + 2.01e-4)
    assert table.verify.seconds_N[3] == pytest.approx(5.8e-3 + 2.08e-4)
    assert "draft" not in table.includes


def test_points_past_the_graph_limit_stay_apart() -> None:
    rows = [Row("verify", n, n, 0, 5e-3 + 1e-5 * n, "graph") for n in (1, 64, 128)]
    rows += [Row("verify", n, n, 0, 50e-3 + 1e-5 * n, "eager") for n in (192, 256)]
    table = fit_table(rows, name="t", provenance=HERE, graph_limit_tokens=128).table
    assert table.past_limit is not None
    assert table.past_limit.probes_N.tolist() == [192, 256]
    with pytest.raises(InputError, match="no graph limit given"):
        fit_table(rows, name="t", provenance=HERE)


def test_flat_sweeps_are_refused() -> None:
    rows = [Row("verify", n, n, 0, 5e-3) for n in (1, 2, 4, 8)]
    with pytest.raises(InputError, match="verifies everything"):
        fit_table(rows, name="t", provenance=HERE)
    several = [Row("verify", n * w, n, 0, 5e-3) for n in (1, 8) for w in (1, 2, 8)]
    with pytest.raises(InputError, match="every cell costs the same"):
        fit_table(several, name="t", provenance=HERE)


def test_widths_that_were_ignored_are_refused() -> None:
    # The profiler forced partial widths, and the engine measured the full one every time.
    ignored = [Row("verify", n * w, n, 0, theta(n * 8)) for n in (4, 16, 64) for w in (1, 2, 4, 8)]
    with pytest.raises(InputError, match="the forced widths were ignored"):
        fit_table(ignored, name="t", provenance=HERE)
    honoured = [Row("verify", n * w, n, 0, theta(n * w)) for n in (4, 16, 64) for w in (1, 2, 4, 8)]
    table = fit_table(honoured, name="t", provenance=HERE).table
    assert np.all(np.diff(table.verify.seconds_N) >= -1e-9)
    assert table.verify.seconds_N[-1] > 2 * table.verify.seconds_N[0]


def test_disconnected_sweeps_are_refused() -> None:
    rows = [Row("verify", n, 1, 512, theta(n)) for n in (1, 4)]
    rows += [Row("verify", n, 16, 512, theta(n) + alpha(16, 512)) for n in (16, 64)]
    with pytest.raises(InputError, match="falls apart into 2 pieces"):
        fit_table(rows, name="t", provenance=HERE, form="additive")


def test_a_staircase_cannot_hold_two_batches_of_the_same_tokens() -> None:
    with pytest.raises(InputError, match="use the additive form"):
        fit_table(grid(), name="t", provenance=HERE, form="staircase")


def test_nothing_to_fit() -> None:
    with pytest.raises(InputError, match="no rows of part verify"):
        fit_table([Row("draft", 7, 1, 0, 1e-3)], name="t", provenance=HERE)


def test_monotone_forms() -> None:
    bumpy = curve([1, 2, 3, 4], [1.0, 3.0, 2.0, 4.0])
    np.testing.assert_allclose(make_monotone(bumpy, "running_max").seconds_N, [1, 3, 3, 4])
    pooled = make_monotone(bumpy, "isotonic").seconds_N
    np.testing.assert_allclose(pooled, [1, np.sqrt(6), np.sqrt(6), 4])
    np.testing.assert_array_equal(make_monotone(bumpy, "none").seconds_N, bumpy.seconds_N)


def test_cells_hold_median_and_interval() -> None:
    rows = [Row("verify", 1, 1, 0, float(s), repeat=i) for i, s in enumerate(range(1, 101))]
    (cell,) = cells(rows, "verify")
    assert cell.median_s == 50.5
    assert 35 <= cell.low_s <= 45
    assert 56 <= cell.high_s <= 66


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"part": "verify", "batch_tokens": 1}', "num_requests: is missing"),
        ("{", "r.jsonl:1:2: not JSON"),
        ("[1]", "must be an object"),
        (json.dumps({"seconds": float("nan")}), "seconds: must be a number above 0"),
        (json.dumps({"seconds": float("inf")}), "seconds: must be a number above 0"),
        (json.dumps({"seconds": -1.0}), "must be a number above 0 up to 1e+06, not -1.0"),
        (json.dumps({"seconds": "0.1"}), "must be a number, not '0.1'"),
        (json.dumps({"batch_tokens": 0}), "from 1 to 1e+09, not 0"),
        (json.dumps({"batch_tokens": 1.0}), "whole number from 1 to 1e+09, not 1.0"),
        (json.dumps({"part": "prefill"}), "must be one of verify, draft, sampler, step"),
        (json.dumps({"second": 1.0}), 'did you mean "seconds"?'),
    ],
)
def test_bad_rows_are_named_by_line_and_field(line: str, expected: str) -> None:
    good = Row("verify", 1, 1, 0, 1e-3).to_json()
    if line.startswith("{") and len(line) > 1 and 'batch_tokens": 1}' not in line:
        data = {**json.loads(good), **json.loads(line)}
        line = json.dumps(data)
    with pytest.raises(ScenarioError) as caught:
        parse_rows(line + "\n", where="r.jsonl")
    assert expected in str(caught.value)
    with pytest.raises(ScenarioError, match=r"r\.jsonl:3"):
        parse_rows(f"{good}\n\n{line}\n", where="r.jsonl")


def test_an_empty_file_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="has no rows"):
        parse_rows("\n", where="r.jsonl")


def test_held_out_cells_are_predicted_without_having_been_seen() -> None:
    rows = grid()
    rows += [Row("sampler", tokens, tokens, 0, 5e-3) for tokens in (1, 512)]
    kept, held = split_rows(rows, 0.25, stream(0, "hold"))
    assert len(held) == 7  # of the 28 cells that are neither the smallest nor the largest B
    keys = {(c.batch_tokens, c.num_requests, c.context_tokens) for c in held}
    assert not any((r.batch_tokens, r.num_requests, r.context_tokens) in keys for r in kept)
    table = fit_table(kept, name="t", provenance=HERE).table
    errors = np.abs(held_out_errors(table, held))
    assert np.median(errors) < 0.01
    shifted = [replace(cell, median_s=cell.median_s * 1.2) for cell in held]
    assert np.median(np.abs(held_out_errors(table, shifted))) > 0.1


def test_holding_out_needs_cells() -> None:
    with pytest.raises(InputError, match=r"between 0 and 1, not 1\.5"):
        split_rows(grid(), 1.5, stream(0, "hold"))
    with pytest.raises(InputError, match="too few to hold out"):
        split_rows([Row("verify", n, n, 0, 1e-3 * n) for n in (1, 2, 4)], 0.5, stream(0, "hold"))


def test_steps_of_several_widths_leave_no_split_open_however_small_the_odd_ones() -> None:
    rows = [Row("step", n, n, 0, 5e-3 + 1e-4 * n) for n in (1, 256, 512, 1024)]
    rows += [Row("step", n, 1, 0, 5e-3 + 1e-4 * n) for n in (2, 4, 8)]
    assert fit_table(rows, name="t", provenance=HERE).table.provenance.split_open_at is None
    two = [Row("step", 1, 1, 0, 5e-3), Row("step", 2, 1, 0, 6e-3)]
    assert fit_table(two, name="t", provenance=HERE).table.provenance.split_open_at is None
