"""The examples that are scripts, run as a reader would; the lossless tests run the schedulers."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specsim.acceptance.calibration import from_sglang
from specsim.interop.sglang import parse_sglang
from tests.docs.blocks import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PUBLIC = ROOT / "docs" / "reference" / "api.md"
PACKAGES = {"specsim.schedulers": "specsim.schedulers.base"}
"""Where a name may also be imported from, and the module that documents it."""


def ran(name: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policy_study_answers_for_a_scenario_of_ones_own(tmp_path: Path) -> None:
    shutil.copy(ROOT / "scenarios" / "hello.yaml", tmp_path / "my_scenario.yaml")
    text = ran("policy_study.py", "my_scenario.yaml", "fixed_2", folder=tmp_path)
    assert "async_topk against fixed_2, tok/s a GPU, paired by seed" in text
    # No speculation is slower under every load, and by more than chance.
    slower = text.partition("no_speculation against fixed_2")[2].partition("\n\n")[0]
    assert len(re.findall(r"users +-[\d,]+ ± \d+ +-\d+\.\d%", slower)) == 6
    assert "not clear" not in slower
    most = dict(re.findall(r"^  (\w+) +(\d+)   then: tok_s_user", text, re.MULTILINE))
    assert int(most["no_speculation"]) < int(most["fixed_2"]) <= int(most["async_topk"]) < 64
    held = text.partition("when every user gets 130\n")[2].partition("picture")[0]
    table = {name: float(most.replace(",", "")) for name, most in re.findall(r"(\w+) +(\S+)", held)}
    assert table["no_speculation"] < table["fixed_2"] < table["async_topk"]
    picture = tmp_path / text.rpartition("picture: ")[2].strip()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_export_writes_what_engines_read(tmp_path: Path) -> None:
    text = ran("engine_export.py", folder=tmp_path)
    assert text.startswith("async_topk holds the most at 130 tok/s a user\n")
    out = tmp_path / "runs" / "engine_export"
    config = json.loads((out / "vllm" / "speculative_config.json").read_text())
    assert config["num_speculative_tokens"] == 7
    assert config["enable_adaptive_verification"] is True
    said = re.search(r"--speculative-config '(.*)'", text)
    assert said is not None
    assert json.loads(said[1]) == config
    parse_sglang((out / "sglang" / "dspark_sps.json").read_text(), where="sps")
    from_sglang((out / "sglang" / "dspark_sts.json").read_text(), where="sts", gamma=7)
    assert "--speculative-dspark-sps-table-path dspark_sps.json" in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_use_what_may_be_relied_on(path: Path) -> None:
    public = set(re.findall(r"automodule:: (\S+)", PUBLIC.read_text(encoding="utf-8")))
    used = {
        PACKAGES.get(node.module or "", node.module)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specsim")
    }
    assert used, "an example of nothing"
    assert used <= public, f"name them in {PUBLIC.name} or do without"
