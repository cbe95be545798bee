from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from specsim.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(capsys, *arguments):
    code = main(["lossless", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    for name in ("my_scheduler.py", "peeking_scheduler.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    # A page of the guide has a scheduler of the same name.
    for name in ("my_scheduler", "peeking_scheduler"):
        sys.modules.pop(name, None)


def test_appendix_a_as_json(capsys):
    code, out, _ = run(capsys, "appendix-a", "--json", "--samples", "100000")
    assert code == 0
    result = json.loads(out)
    laws = {row["case"]: (row["law"], row["target"], row["lossless"]) for row in result["cases"]}
    leak, exact = ["17/20", "3/20"], ["7/10", "3/10"]
    assert laws == {
        "appendix-a/global": (leak, exact, False),
        "appendix-a/patience-live": (leak, exact, False),
        "appendix-a/patience-lagged": (exact, exact, True),
        "appendix-a/early-stop": (exact, exact, True),
        "appendix-a/async-lag-1": (exact, exact, True),
        "appendix-a/async-lag-2": (exact, exact, True),
        "appendix-a/async-lag-0": (leak, exact, False),
        "appendix-a/stale": (exact, exact, True),
    }
    assert {"case", "scheduler", "law", "target", "lossless", "worlds", "leaves"} <= set(
        result["cases"][0]
    )
    for row in result["monte_carlo"]:
        assert row["samples"] == 100_000
        assert (row["p_value"] < 1e-12) == (not laws[row["case"]][2])


def test_a_group_as_text(capsys):
    code, out, _ = run(capsys, "ties", "--samples", "5000")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("LEAKS     ties/position-last")
    assert "(17/20, 3/20)" in lines[0]
    assert "of 5,000" in lines[0]
    assert lines[1].startswith("lossless  ties/position-first")


def test_too_few_samples_do_not_pass_for_an_answer(capsys):
    code, _, _ = run(capsys, "ties", "--samples", "3")
    assert code == 3


def test_reports_are_written(capsys, tmp_path):
    out = tmp_path / "deep" / "folder"
    code, _, _ = run(capsys, "post-token", "--samples", "20000", "--out", str(out))
    assert code == 0
    assert "77/100" in (out / "README.md").read_text(encoding="utf-8")
    rows = json.loads((out / "cases.json").read_text(encoding="utf-8"))["cases"]
    assert [row["case"] for row in rows][:2] == ["post-token/drop", "post-token/keep"]


def test_a_shipped_kind(capsys):
    code, out, _ = run(capsys, "async_topk", "--set", "lag=1", "--samples", "2000", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["cases"][0]["lossless"]
    assert result["cases"][0]["worlds"] > 50
    assert len(result["monte_carlo"]) == 4


def test_an_honest_leak_exits_with_zero(capsys):
    code, out, _ = run(capsys, "global", "--samples", "2000")
    assert code == 0
    assert "REFUTED  global (it says of itself: not lossless)" in out


def test_the_example_that_peeks_is_refuted_readably(capsys, own_files):
    code, out, _ = run(capsys, "peeking_scheduler:BestPrefix", "--samples", "100000")
    assert code == 3
    lines = out.splitlines()
    assert lines[0] == "REFUTED  peeking_scheduler:BestPrefix (it says of itself: lossless)"
    assert lines[3].startswith('world "appendix-a"')
    text = "\n".join(lines[:30])
    for piece in (
        "p: (7/10, 3/10)",
        "outcome A of step 0",
        "drafts [0, 0], confidences (0.8, 0.9) -> verify 2",
        "drafts [1, 0], confidences (0.8, 0) -> verify 0",
        "the plan depends on the token that it admits",
        "law (17/20, 3/20), target (7/10, 3/10)",
    ):
        assert piece in text
    code, out, _ = run(capsys, "peeking_scheduler:BestPrefix", "--json", "--samples", "1000")
    assert code == 3
    row = json.loads(out)["cases"][0]
    assert row["lossless"] is False
    assert "check_lossless" in row["failures"]
    assert row["law"] == ["17/20", "3/20"]


def test_the_safe_example_is_lossless(capsys, own_files):
    code, out, _ = run(capsys, "my_scheduler:LoadThreshold", "--set", "busy=4", "--samples", "2000")
    assert code == 0
    assert out.startswith("LOSSLESS  my_scheduler:LoadThreshold: exact in ")
    assert "up to 64 requests and 30 steps.\nWhat it does only beyond that was not seen." in out


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return view.nothing", "AttributeError: 'BatchView' object has no attribute 'nothing'"),
        ("return [0.5] * view.num_requests", "an int64 array of shape (2,) is needed"),
        (
            "import numpy; return numpy.full(view.num_requests, -(view.num_requests > 3))",
            "outside 0..",
        ),
    ],
)
def test_a_scheduler_that_fails_is_not_called_a_leak(capsys, monkeypatch, tmp_path, body, why):
    module = f"failing_{len(body)}"
    (tmp_path / f"{module}.py").write_text(
        "class Bad:\n"
        "    reads, lag, lossless = frozenset({'live'}), 0, True\n"
        f"    def plan(self, view):\n        {body}\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, f"{module}:Bad")
    assert code == 3
    assert out.startswith(f"BROKEN  {module}:Bad: it does not do what a scheduler must")
    assert why in out


def test_post_token_confidences_refute_a_threshold(capsys):
    code, out, _ = run(capsys, "threshold", "--post-token", "--samples", "1000")
    assert code == 3
    assert "post-token confidences" in out


@pytest.mark.slow
def test_a_cluster_gives_the_same_answer_about_a_class_of_ones_own(capsys, own_files):
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    # The worker is a process of its own, started where nobody knows of the class.
    sys.path.remove(str(own_files))
    os.chdir(Path(__file__).parents[2])
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        os.chdir(own_files)
        given = ("peeking_scheduler:BestPrefix", "--samples", "3000", "--json")
        code, there, _ = run(capsys, *given, "--scheduler", cluster.scheduler_address)
        assert (code, there) == run(capsys, *given)[:2]
    assert code == 3
    assert [row["biased"] for row in json.loads(there)["monte_carlo"]][:2] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("async_topkk",), 'did you mean "async_topk"?'),
        (("appendix-a", "--samples", "0"), "--samples is 0; at least 1"),
        (("appendix-a", "--seed", "-1"), "--seed is -1"),
        (("all", "--jobs", "0"), "--jobs"),
        (("async_topk", "--set", "lag"), "is not of the form name=value"),
        (("async_topk", "--set", "lag=99"), "less than or equal to 64"),
        (("nowhere:Nothing",), 'cannot import module "nowhere"'),
        (("my_scheduler:LoadTreshold",), "LoadThreshold"),
    ],
)
def test_mistakes_exit_with_two(capsys, own_files, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert out == ""


@pytest.mark.slow
def test_everything_is_as_known(capsys):
    code, out, _ = run(capsys, "all", "--json")
    assert code == 0
    result = json.loads(out)
    assert all(row["right"] for row in result["cases"])
    assert len(result["monte_carlo"]) > 40
