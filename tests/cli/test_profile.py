"""`specsim profile` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsim.cli import main
from specsim.cost.table import load_table

B300 = "vllm/v4_flash_tp4_b300"


def test_show_names_knee_risers_and_cliff(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", B300, "--at", "100,1025"]) == 0
    said = capsys.readouterr().out
    assert "measured, 2026-08-14" in said
    assert "scenario must give: host" in said
    assert "graph limit of 1024 tokens a step costs 5.1 times" in said
    line = next(line for line in said.splitlines() if line.split()[:1] == ["100"])
    assert line.split() == ["100", "8.770", "8.910", "9.050"]


def test_show_prints_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    assert main(["profile", "show", B300, "--json", "--plot", str(png)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["knee_tokens"] == 32
    assert said["inside_verify"] == ["attention"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert main(["profile", "show", B300, "--plot", str(svg)]) == 0
    assert b"<svg" in svg.read_bytes()
    assert main(["profile", "show", B300, "--plot", "a.gif"]) == 2


def test_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ["aiconfigurator/h100_llama31-8b_tp1_bf16", "aiconfigurator/h200_llama31-8b_tp1_bf16"]
    assert main(["profile", "compare", *names, "--json", "--at", "1,64"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["batch_tokens"] for row in rows] == [1, 64]
    assert rows[0]["ratio"][1] == pytest.approx(4.39082 / 5.695188)
    assert main(["profile", "compare", names[0]]) == 2
    assert "two or more tables" in capsys.readouterr().err


def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sps, back = tmp_path / "sps.json", tmp_path / "back.json"
    convert = ["profile", "convert"]
    assert (
        main([*convert, B300, "--to", "sglang-sps", "--tokens-per-request", "8", "--out", str(sps)])
        == 0
    )
    assert set(json.loads(sps.read_text())) == {
        "sample_batch_tokens",
        "sample_steps_per_sec",
        "max_batch_tokens",
    }
    assert main([*convert, str(sps), "--to", "specsim"]) == 2
    assert "give --status" in capsys.readouterr().err
    told = ["--status", "measured", "--source", "there and back", "--includes", "attention,draft"]
    assert main([*convert, str(sps), "--to", "specsim", *told, "--out", str(back)]) == 0
    table = load_table(back)
    assert table.includes == {"attention", "draft"}
    assert table.provenance.source == "there and back"
    assert main([*convert, str(sps), "--to", "specsim", *told[:4], "--includes", "kv"]) == 2
    assert "'kv' is none of draft, attention, host" in capsys.readouterr().err


def test_check_refuses_flat_and_impossible_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "check", B300]) == 0
    flat = tmp_path / "flat.json"
    flat.write_text(
        '{"sample_batch_tokens":[1,8],"sample_steps_per_sec":[100.0,100.0],"max_batch_tokens":8}'
    )
    assert main(["profile", "check", str(flat)]) == 1
    assert "a planner that trusts it verifies everything" in capsys.readouterr().out
    table = "aiconfigurator/h100_llama31-8b_tp1_bf16"
    limits = ["--model", "llama-3.1-8b", "--gpu"]
    assert main(["profile", "check", table, *limits, "h100"]) == 0
    assert main(["profile", "check", table, *limits, "a100"]) == 1
    assert "faster than llama-3.1-8b on 1 a100" in capsys.readouterr().out
    assert main(["profile", "check", table, "--gpu", "h100"]) == 2


def test_fit_of_telemetry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, out = tmp_path / "no_spec.csv", tmp_path / "t.json"
    raw.write_text("concurrency,tpot_ms\n1,5.85\n16,9.28\n64,16.18\n256,27.81\n")
    fit = ["profile", "fit", str(raw), "--kind", "telemetry"]
    assert main(fit) == 2
    assert "give --source" in capsys.readouterr().err
    assert main([*fit, "--source", "a published sweep", "--out", str(out)]) == 0
    assert "staircase, 4 probes from 1 to 256 tokens" in capsys.readouterr().out
    table = load_table(out)
    assert table.verify.seconds_N.tolist() == pytest.approx([5.85e-3, 9.28e-3, 16.18e-3, 27.81e-3])
    assert table.includes == {"attention", "host"}  # nobody drafted


def test_run_then_fit_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    raw, out = tmp_path / "raw.jsonl", tmp_path / "t.json"
    grid = ["--batch-tokens", "1,2,4,8,16,64", "--requests", "1,8", "--context", "16"]
    run = ["profile", "run", "--preset", "tiny-moe", "--out", str(raw), *grid, "--quiet"]
    assert main([*run, "--repeats", "2"]) == 0
    assert main(["profile", "fit", str(raw), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "rows timed, 0 kept" in said
    assert "leave one out" in said
    table = load_table(out)
    assert "specsim profile run on" in table.provenance.source
    assert "host time between steps" in table.provenance.left_out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "v4_flsh_tp4_b300"], "v4_flash_tp4_b300"),
        (["show", B300, "--at", "1,x"], "--at: whole numbers with commas between"),
        (["run", "--out", "x.jsonl", "--preset", "lama-3.1-8b"], "llama-3.1-8b"),
        (["run", "--out", "x.jsonl", "--parts", "verify,drift"], "'drift' is none of verify"),
        (["run", "--out", "x.jsonl", "--server", "localhost:1"], "is no http:// or https://"),
        (["fit", "absent.jsonl"], "absent.jsonl: cannot be read: no such file or directory\n"),
        (["fit", "a.csv", "--per-request-share", "0.5"], "needs --form linear"),
    ],
)
def test_mistakes_are_named_and_exit_with_2(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_host_time_of_a_no_speculation_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "no_spec.csv"
    raw.write_text("concurrency,tpot_ms\n1,5.85\n16,9.28\n64,16.18\n256,27.81\n")
    fit = ["profile", "fit", str(raw), "--host-of", B300]
    assert main([*fit, "--kind", "telemetry"]) == 0
    said = capsys.readouterr().out
    assert "label: fitted" in said
    assert "at_requests: [1, 16, 64, 256]" in said
    assert "ms: [0.74, 3.69, 8.28, 16.51]" in said
    assert "concurrency 256: the line is off by" in said
    assert main(fit) == 2
    assert "this needs telemetry, frontier or silicon" in capsys.readouterr().err
    raw.write_text("concurrency,tpot_ms,acceptance_length,tokens_per_request\n1,3,2,4\n16,5,2,4\n")
    assert main([*fit, "--kind", "telemetry"]) == 2
    assert "speculates" in capsys.readouterr().err


def test_the_linear_form_of_telemetry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, out = tmp_path / "loads.csv", tmp_path / "t.json"
    lines = ["concurrency,tpot_ms,acceptance_length,tokens_per_request,context_tokens"]
    for users in (1, 8, 32, 128):
        for width, accepted in ((1, 1.0), (4, 2.5)):
            for context in (500, 4000):
                step_ms = 4 + 0.03 * users + 0.012 * users * width + 5e-6 * users * context
                lines.append(f"{users},{step_ms / accepted},{accepted},{width},{context}")
    raw.write_text("\n".join(lines) + "\n")
    fit = ["profile", "fit", str(raw), "--kind", "telemetry", "--form", "linear"]
    assert main([*fit, "--source", "made up", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if "per_token" in line)
    assert float(row.split()[1]) == pytest.approx(12, rel=1e-3)
    table = load_table(out)
    assert table.provenance.status == "fitted"
    assert table.verify.seconds_N[0] == pytest.approx(4.012e-3)
    assert table.attention is not None
    assert table.includes == {"draft", "host"}


def test_a_served_deployment_is_named_by_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points, out = tmp_path / "points.csv", tmp_path / "t.json"
    columns = (
        "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,"
        "gemm_quant_mode,moe_quant_mode,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,"
        "moe_ep_size,silicon_tpot_ms"
    )
    lines = [
        f"{model}{c},silicon_concurrency={c},vllm,1,{model},h100_sxm,fp8,agg,1024,{osl},fp8,,{c},4,"
        f"1,1,,,{8 + c / 8}"
        for model in ("Llama-A", "Llama-B")
        for c in (4, 8, 16)
        for osl in (512, 1024)
    ]
    points.write_text("\n".join([columns, *lines]) + "\n")
    fit = ["profile", "fit", str(points), "--kind", "silicon", "--source", "s", "--out", str(out)]
    assert main(fit) == 2
    assert "name one with --deployment" in capsys.readouterr().err
    assert main([*fit, "--deployment", "Llama h100"]) == 2
    assert "names 2 deployments, not one: Llama-A" in capsys.readouterr().err
    assert main([*fit, "--deployment", "Llama-A 1024x512"]) == 0
    assert load_table(out).verify.seconds_N.tolist() == pytest.approx([8.5e-3, 9e-3, 10e-3])


def test_a_table_of_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "limits.json"
    arguments = ["--model", "qwen3-32b", "--gpu", "h200", "--gpus", "4", "--out", str(out)]
    assert main(["profile", "roofline", *arguments]) == 0
    assert "nothing was measured" in capsys.readouterr().out
    table = load_table(out)
    assert table.provenance.status == "derived"
    assert table.attention is not None
    limits = ["--model", "qwen3-32b", "--gpu", "h200", "--gpus", "4"]
    assert main(["profile", "check", str(out), *limits]) == 0
    assert main(["profile", "roofline", *arguments, "--efficiency", "2"]) == 2


RUN = ("profile", "run", "--preset", "tiny", "--repeats", "1", "--batch-tokens", "1", "--out")
LIMITS = ("--model", "llama-3.1-70b", "--gpu", "h100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RUN, "x", "--threads", "-1", "--clock", "wall"), "--threads"),
        ((*RUN, "x", "--seed", "-1"), "--seed"),
        ((*RUN, "x", "--dtype", "int8"), "float32"),
        ((*RUN, "x", "--parts", "draft", "--gamma", "0"), "gamma of at least 1"),
        ((*RUN, "/proc/none/x"), "/proc/none"),
        (("profile", "show", B300, "--at", "0"), "0 is not from 1"),
        (("profile", "show", B300, "--at", "99999999999"), "is not from 1 to"),
        (("profile", "compare", B300, B300, "--at", "0,1"), "0 is not from 1"),
        (("profile", "convert", B300, "--to", "sglang-sps", "--tokens-per-request", "nan"),
         "at least 1"),
        (("profile", "convert", B300, "--to", "sglang-sps", "--tokens-per-request", "0"),
         "at least 1"),
        (("profile", "convert", B300, "--to", "sglang-additive", "--context", "-5"), "at least 1"),
        (("profile", "check", B300, *LIMITS, "--gpus", "0"), "at least 1"),
        (("profile", "check", B300, *LIMITS, "--weight-bytes", "nan"), "above 0"),
        (("profile", "roofline", *LIMITS, "--out", "x", "--launch-ms", "inf"), "at least 0"),
        (("profile", "roofline", *LIMITS, "--out", "x", "--date", "2026-13-01"), "a day such as"),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("specsim: error: ")
    assert said in error
    assert not list(tmp_path.iterdir())
