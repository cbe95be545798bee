"""Which policy should this fleet run, and how sure is that? A study, cell by cell.

    python policy_study.py                              # about seven seconds
    python policy_study.py my_scenario.yaml my_policy   # your engine, and what it runs today

or open it in an editor that runs `# %%` cells. What it writes lies in `runs/policy_study/`.
"""

# %% What is asked
import json
import sys
from pathlib import Path

from specsim.study.capacity import capacity
from specsim.study.compare import compare
from specsim.study.executor import Place
from specsim.study.frontier import draw
from specsim.study.sweep import run_sweep

given = [] if "ipykernel" in sys.modules else sys.argv[1:]
SCENARIO, BASELINE = given or ["hello", "fixed_2"]
LOADS = [2, 4, 8, 16, 32, 64]  # users a rank, each of whom always has one request open
SEEDS = 3
SLO = 130  # tokens a second that every user is promised
SHORT = {"stop": {"kind": "requests", "num_requests": 200}}  # longer: tighter intervals

OUT = Path("runs/policy_study")
OUT.mkdir(parents=True, exist_ok=True)
HERE = Place(jobs=1)  # further processes would run this file's cells again

# %% Every policy under every load, three seeds each
# A study is a file: which scenario, what is laid over it, which loads, how many seeds. Finished
# points are kept, so running this cell again costs nothing, and a longer study begins with them.
study = {
    "name": "policies",
    "scenario": str(Path(SCENARIO).resolve()) if Path(SCENARIO).is_file() else SCENARIO,
    "set": SHORT,
    "concurrency": LOADS,
    "replications": SEEDS,
}
(OUT / "study.yaml").write_text(json.dumps(study))  # JSON is YAML
swept = run_sweep(OUT / "study.yaml", out=OUT, place=HERE)

by_load = swept.table.pivot_table(index="concurrency", columns="policy", values="tok_s_gpu")
print(f"tok/s a GPU by users a rank, mean of {SEEDS} seeds\n{by_load.round(0)}\n")

# %% Is the difference real?
# Two policies under one seed see the same arrivals, lengths and drafts, so their difference is
# known better than either of them. Clear: the 95 % interval of the difference leaves 0 out.
for policy in by_load.columns.drop(BASELINE):
    paired = compare(f"{swept.directory}:{BASELINE}", f"{swept.directory}:{policy}")
    print(f"{policy} against {BASELINE}, tok/s a GPU, paired by {paired['paired_by']}")
    for row in paired["rows"]:
        if row["metric"] == "tok_s_gpu":
            change = f"{row['difference']:+8,.0f} ± {row['ci95']:<4.0f} {row['ratio'] - 1:+.1%}"
            print(f"  {row['concurrency']:3} users {change}{'' if row['clear'] else ', not clear'}")

# %% How many users may come while each still gets what was promised?
short = [f"{path}={json.dumps(value)}" for path, value in SHORT.items()]
most = capacity(
    SCENARIO,
    [f"tok_s_user>={SLO}"],
    overrides=short,
    high=LOADS[-1],
    replications=SEEDS,
    place=HERE,
)
print(f"\n{most['load']} that hold {most['slo']}")
for policy, found in most["policies"].items():
    users = "none" if found["capacity"] is None else f"{found['capacity']:.0f}"
    print(f"  {policy:15} {users:>4}   then: {found['why']}")

# %% The frontier: what a GPU puts out at every speed of a user
question = {
    "kind": "frontier",
    "concurrency": LOADS,
    "slo_tok_s_user": [SLO],
    "headline_slo": SLO,
    "baseline": BASELINE,
}
drawn = draw(
    SCENARIO,
    overrides=[*short, f"question={json.dumps(question)}"],
    replications=SEEDS,
    out=OUT,
    jobs=1,
)
print(f"\ntok/s a GPU when every user gets {SLO}")
for cut in drawn.result["at_slo"]:
    held = f"{cut['policy']:15} {cut['tok_s_gpu'] or 0:6,.0f}"
    print(f"  {cut['reason'] or held}")
print(f"picture: {drawn.directory / 'pareto.png'}")
