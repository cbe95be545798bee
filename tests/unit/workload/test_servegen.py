"""ServeGen clients: tiny folders of the form, bad ones, and the real ones where they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.workload.servegen import ServeGenConfig, generated, load_clients

REAL = Path(__file__).parents[4] / "shared" / "data" / "workloads"


def write(folder: Path, number: int, rows: str, dataset: object) -> None:
    (folder / f"chunk-{number}-trace.csv").write_text(rows)
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))


def window(prompt: str, output: str) -> dict[str, str]:
    return {"input_tokens": prompt, "output_tokens": output}


def test_rates_families_and_lengths_come_by_window(tmp_path: Path) -> None:
    rows = "0,5,1,Gamma,1,0.2\n600,0,0,,0,0\n1200,1,2,Weibull,0.6,0.5\n"
    write(
        tmp_path,
        3,
        rows,
        {"0": window("{10: 0.5, 20: 0.5}", "{1: 1.0}"), "1200": window("{7: 1}", "{0: 0.5, 9: 1}")},
    )
    clients, report = load_clients(tmp_path)
    assert report.mended == {"histogram entries of 0 tokens (left out)": 1}
    counts = []
    for seed in range(8):
        arrivals = list(generated(clients, seed=seed))
        at = np.array([a.at_s for a in arrivals])
        assert (np.diff(at) >= 0).all()
        assert not ((at >= 600) & (at < 1200)).any()
        assert {a.prompt_tokens for a in arrivals if a.at_s < 600} == {10, 20}
        assert {(a.prompt_tokens, a.output_tokens) for a in arrivals if a.at_s > 1200} == {(7, 9)}
        assert {a.session for a in arrivals} == {3}
        counts.append([(at < 600).sum(), (at >= 1200).sum()])
    np.testing.assert_allclose(np.mean(counts, axis=0), [3000, 600], rtol=0.06)


def test_scale_and_slice(tmp_path: Path) -> None:
    write(tmp_path, 0, "0,2,1,Gamma,1,1\n600,2,1,Gamma,1,1\n", {"0": window("{5: 1}", "{5: 1}")})
    config = ServeGenConfig(
        kind="servegen", folder=str(tmp_path), from_s=300, to_s=900, rate_scale=2, clients=(0,)
    )
    feed, _ = config.build(lambda group, name: Path(name))
    at = [a.at_s for a in feed(1)]
    assert at[0] >= 0
    assert 290 < at[-1] < 300
    assert len(at) == pytest.approx(1200, abs=150)
    assert [a.at_s for a in feed(1)] == at


@pytest.mark.parametrize(
    ("rows", "dataset", "said"),
    [
        ("0,1,1,Gamma,1\n600,1,1,Gamma,1,1\n", {}, "5 cells; 6 are due"),
        ("0,x,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", {}, ":1: could not convert"),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", {}, "does not come after"),
        ("0,1,1,Pareto,1,1\n600,1,1,Gamma,1,1\n", {}, 'law "Pareto"'),
        ("0,-1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", {}, "at least 0"),
        ("0,1,1,Gamma,1,1\n", {}, "needs at least 2"),
        ("0,1,1,Gamma,1,1\n600,1,1,,0,0\n", {"0": {"input_tokens": "{}"}}, "needs input_tokens"),
        ("0,1,1,Gamma,1,1\n600,1,1,,0,0\n", {"0": window("{1: 1", "{}")}, "no dict of counts"),
        (
            "0,1,1,Gamma,1,1\n600,1,1,,0,0\n",
            {"0": window("__import__('os').getcwd()", "{}")},
            "no dict of counts",
        ),
        ("0,1,1,Gamma,1,1\n600,1,1,,0,0\n", {"0": window("{-1: 1}", "{}")}, "no token count"),
        ("0,0,0,,0,0\n600,0,0,,0,0\n", {"0": window("{1: 1}", "{1: 1}")}, "no client has"),
    ],
)
def test_wrong_folders_are_located(tmp_path: Path, rows: str, dataset: object, said: str) -> None:
    write(tmp_path, 1, rows, dataset)
    with pytest.raises(InputError, match=said):
        load_clients(tmp_path)


def test_a_missing_client_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", {"0": window("{5: 1}", "{5: 1}")})
    with pytest.raises(InputError, match="no client 2; there are 1"):
        load_clients(tmp_path, (2,))


@pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/data/workloads here")
def test_real_clients_keep_their_rates() -> None:
    clients, report = load_clients(REAL / "servegen_reason_deepseek-r1")
    assert len(clients) == 12
    assert report.rows == 12 * 144
    end_s = 50_000.0
    due = sum(
        w.rate_per_s * max(0.0, min(600.0, end_s - w.start_s)) for c in clients for w in c.windows
    )
    arrivals = list(generated(clients, seed=1, from_s=40_000, to_s=end_s))
    due -= sum(
        w.rate_per_s * max(0.0, min(600.0, 40_000 - w.start_s)) for c in clients for w in c.windows
    )
    assert len(arrivals) == pytest.approx(due, rel=0.02)
    assert min(a.output_tokens for a in arrivals) >= 1
