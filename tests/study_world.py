"""Tiny scenarios and studies on disk, for tests of studies and of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCENARIO = """\
name: tiny
question: {question}
seed: 1
stop: {{kind: requests, num_requests: {requests}}}
cluster: {{gpus_per_rank: 1, max_requests_per_rank: 64}}
workload:
  arrivals: {{kind: closed_loop}}
  prompt_tokens: {{kind: fixed, tokens: 32}}
  output_tokens: {{kind: lognormal, mean: 40, cv: 0.5, min: 2, max: 200}}
acceptance:
  kind: parametric
  calibration: constant
  conditional_acceptance: [0.8, 0.7, 0.6]
  noise_sd: 1.0
  sequences: 16
  anchors: 64
cost:
  table: aiconfigurator/h100_llama31-8b_tp1_bf16
  read: linear
  draft: {{base_ms: 0.6, per_request_us: 2, label: assumed, source: test}}
  host: {{base_ms: 0.5, per_request_us: 5, label: assumed, source: test}}
policies:
  none: {{scheduler: {{kind: none}}, gamma: 0}}
  fixed: {{scheduler: {{kind: fixed, k: 2}}, gamma: 3}}
  topk: {{scheduler: {{kind: async_topk, lag: 2}}, gamma: 3}}
"""
POINT = "{kind: point, concurrency: 8}"
FRONTIER = (
    "{kind: frontier, concurrency: [1, 4, 16, 48], slo_tok_s_user: [120, 160], "
    "headline_slo: 160, baseline: none}"
)
STUDY = """\
name: tiny_study
scenario: tiny.yaml
plan:
  kind: grid
  axes:
    policies.topk.scheduler.lag: [1, 2]
    cost.host.base_ms: [0.5, 1.0]
policies: [fixed, topk]
concurrency: [2, 8]
replications: {replications}
metrics: [tok_s_gpu, budget_tokens]
"""


def write_scenario(folder: Path, *, question: str = POINT, requests: int = 60) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(SCENARIO.format(question=question, requests=requests), encoding="utf-8")
    return path


def write_study(folder: Path, *, replications: int = 2, requests: int = 60) -> Path:
    write_scenario(folder, requests=requests)
    path = folder / "study.yaml"
    path.write_text(STUDY.format(replications=replications), encoding="utf-8")
    return path


def specsim(*arguments: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    code = "import sys; from specsim.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
