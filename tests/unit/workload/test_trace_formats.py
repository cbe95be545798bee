"""Every format on tiny files of its form, every trap row, and the real files where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError, ScenarioError
from specsim.workload.formats import load_trace, read_columns
from specsim.workload.replay import ReplayConfig, replayed
from specsim.workload.trace_file import TraceTable

REAL = Path(__file__).parents[4] / "shared" / "data" / "workloads"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/data/workloads here")

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9799601,4808,10\r\n"
    "2023-11-17 00:00:00.0319604,3180,8\r\n"
    "\r\n"
    "2023-11-17 00:00:00.0319605,110,27"
)


def load(tmp_path: Path, text: str, form: str, **more: object) -> TraceTable:
    path = tmp_path / "trace.txt"
    path.write_bytes(text.encode())
    return load_trace(path, form, **more)  # type: ignore[arg-type]


def test_azure_times_keep_seven_digits_over_midnight(tmp_path: Path) -> None:
    table = load(tmp_path, AZURE, "azure_llm_2023")
    np.testing.assert_array_equal(table.at_s_N, [0.0, 0.0520003, 0.0520004])
    assert table.output_tokens_N.tolist() == [10, 8, 27]
    assert table.report.mended == {"lines that end in CRLF": 4, "blank lines (passed over)": 1}
    assert (table.report.rows, table.report.kept) == (3, 3)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("2023-02-30 00:00:00.0", "no date"),
        ("2023-11-16", "is the form"),
        ("", "is missing"),
        ("1700158623.97", "is the form"),
        ("2023-11-16 18:17:03.97996001234", "is the form"),
    ],
)
def test_azure_wrong_times_are_located(tmp_path: Path, cell: str, said: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1,1\n{cell},1,1\n"
    with pytest.raises(ScenarioError, match=said) as caught:
        load(tmp_path, text, "azure_llm_2023")
    assert "trace.txt:3: TIMESTAMP" in str(caught.value)


@pytest.mark.parametrize("zone", ["Z", "+00:00"])
def test_a_time_zone_is_read(tmp_path: Path, zone: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00{zone},1,1\n"
    text += "2024-01-01 02:00:01+02:00,1,1\n"
    assert load(tmp_path, text, "azure_llm_2023").at_s_N.tolist() == [0.0, 1.0]


def mooncake(at: object, prompt: object = 600, output: object = 5, ids: str = "[0, 1]") -> str:
    return (
        f'{{"timestamp": {at}, "input_length": {prompt}, "output_length": {output}, '
        f'"hash_ids": {ids}}}\n'
    )


def test_mooncake_keeps_blocks_and_reads_milliseconds(tmp_path: Path) -> None:
    text = mooncake(0) + mooncake(3000, ids="[0, 2]") + "\n"
    table = load(tmp_path, text, "mooncake")
    assert table.at_s_N.tolist() == [0.0, 3.0]
    assert table.blocks_N == ((0, 1), (0, 2))
    assert table.block_tokens == 512
    arrivals = list(replayed(table, rate_scale=2.0))
    assert [a.at_s for a in arrivals] == [0.0, 1.5]
    assert arrivals[1].blocks == (0, 2)
    assert arrivals[1].block_tokens == 512


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    text = mooncake(5) + mooncake(9, 7, ids="[3]") + mooncake(2, 8, ids="[3]") + mooncake(9)
    table = load(tmp_path, text, "mooncake")
    assert (table.at_s_N * 1000).round(6).tolist() == [0, 3, 7, 7]
    assert table.prompt_tokens_N.tolist() == [8, 600, 7, 600]  # ties stay as in the file
    assert sum("earlier" in key for key in table.report.mended) == 1
    assert "0.007 s" in table.report.notes[0]


def test_blocks_that_do_not_cover_the_prompt_are_counted_and_kept(tmp_path: Path) -> None:
    table = load(tmp_path, mooncake(0, prompt=2000), "mooncake")
    assert table.report.kept == 1
    assert [n for key, n in table.report.mended.items() if "do not cover" in key] == [1]


@pytest.mark.parametrize(
    ("row", "name", "said"),
    [
        ('{"input_length": 1, "output_length": 1, "hash_ids": []}\n', "timestamp", "is missing"),
        (mooncake("null"), "timestamp", "is missing"),
        (mooncake("-1"), "timestamp", "legal"),
        (mooncake("NaN"), "timestamp", "finite"),
        (mooncake("1e400"), "timestamp", "finite"),
        (mooncake("true"), "timestamp", "number"),
        (mooncake(1, prompt="1.5"), "input_length", "whole number"),
        (mooncake(1, prompt='"1_000"'), "input_length", "number"),
        (mooncake(1, prompt="-3"), "input_length", "legal"),
        (mooncake(1, output="1e12"), "output_length", "legal"),
        (mooncake(1, ids='[0, "a"]'), "hash_ids", "integers"),
        (mooncake(1, ids="[true]"), "hash_ids", "integers"),
        (mooncake(1, ids="3"), "hash_ids", "list"),
        ("[1, 2]\n", "", "JSON object"),
        ('{"timestamp": 1, "input\n', "", "not JSON"),
    ],
)
def test_bad_rows_say_file_line_and_field(tmp_path: Path, row: str, name: str, said: str) -> None:
    text = mooncake(0) + "\n" + row + mooncake(2)
    with pytest.raises(ScenarioError, match=said) as caught:
        load(tmp_path, text, "mooncake")
    (problem,) = caught.value.problems
    assert problem.where.endswith("trace.txt:3")
    assert problem.path == name
    dropped = load(tmp_path, text, "mooncake", bad_rows="drop")
    assert (dropped.report.rows, dropped.report.kept) == (3, 2)
    assert sum(dropped.report.refused.values()) == 1


def test_all_bad_rows_are_told_but_not_endlessly(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, mooncake(0) + mooncake("null") * 50, "mooncake")
    assert len(caught.value.problems) == 21
    assert "30 more" in str(caught.value)


BURST_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_2 = BURST_1.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")


def test_burstgpt_refuses_failures_and_shifts_to_zero(tmp_path: Path) -> None:
    text = BURST_1 + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,10,0,10,API log\n"
    text += "118,GPT-4,417,276,693,API log\n"
    table = load(tmp_path, text, "burstgpt")
    assert table.at_s_N.tolist() == [0.0, 113.0]
    assert table.report.refused == {"failed (0 response tokens)": 1}
    assert table.report.rows == table.report.kept + 1


def test_burstgpt_2_has_sessions_and_no_zero(tmp_path: Path) -> None:
    text = BURST_2 + "19440110.0,abc,43,GPT-4,906,446,1352,Conversation log\n"
    text += "19440161.5,,2,ChatGPT,36,29,65,API log\n19440162.0,abc,2,GPT-4,9,9,18,Chat\n"
    table = load(tmp_path, text, "burstgpt")
    assert table.at_s_N.tolist() == [0.0, 51.5, 52.0]
    assert table.session_N.tolist() == [0, -1, 0]


RAG = (
    '{"timestamp": "%s", "input_length": 9, "output_length": 2, "hash_ids": {"sys_prompt": [7], '
    '"passages_ids": [3, 4], "history": [], "web_search": [], "user_input": [9]}, '
    '"session_id": "s1"}\n'
)


def test_ragpulse_reads_string_times_and_all_parts(tmp_path: Path) -> None:
    table = load(tmp_path, RAG % 82 + RAG % "93.5" + RAG % 90 + "\n\n", "ragpulse")
    assert table.at_s_N.tolist() == [0.0, 8.0, 11.5]
    assert table.blocks_N[0] == (7, 3, 4, 9)
    assert table.block_tokens == 0  # sizes of blocks were not published
    assert table.session_N.tolist() == [0, 0, 0]
    assert table.report.mended["blank lines (passed over)"] == 2
    with pytest.raises(ScenarioError, match="a number is needed"):
        load(tmp_path, RAG % "12:30", "ragpulse")


def bailian(chat: int, parent: int, at: float, turn: int) -> str:
    return (
        f'{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {at}, "input_length": 20, '
        f'"output_length": 3, "type": "text", "turn": {turn}, "hash_ids": [1, 2]}}\n'
    )


def test_bailian_turns_belong_to_their_root(tmp_path: Path) -> None:
    text = bailian(5, -1, 0.5, 1) + bailian(9, 5, 1.0, 2) + bailian(11, 9, 2.0, 3)
    text += bailian(12, -1, 3.0, 1) + bailian(20, 777, 4.0, 2)
    table = load(tmp_path, text, "qwen_bailian")
    assert table.session_N.tolist() == [0, 0, 0, 1, 2]
    assert table.turn_N.tolist() == [0, 1, 2, 0, 1]
    assert [n for key, n in table.report.mended.items() if "parent" in key] == [1]
    with pytest.raises(ScenarioError, match="turns count from 1"):
        load(tmp_path, bailian(1, -1, 0, 0), "qwen_bailian")


def test_plain_csv_takes_known_or_given_names(tmp_path: Path) -> None:
    vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.5,396,109\n"
    assert load(tmp_path, vidur, "csv").at_s_N.tolist() == [0.0, 4.5]
    own = "when;x\n".replace(";", ",") + "1,2\n"
    with pytest.raises(InputError, match="no column for arrival_s"):
        load(tmp_path, own, "csv")
    own = "when,in,out\n1,2,3\n"
    columns = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"}
    assert load(tmp_path, own, "csv", columns=columns).output_tokens_N.tolist() == [3]
    with pytest.raises(InputError, match=r'no column "wen".*did you mean "when"'):
        load(tmp_path, own, "csv", columns=columns | {"arrival_s": "wen"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "no header"),
        ("TIMESTAMP,ContextTokens\n", 'no column "GeneratedTokens"'),
        ("TIMESTAMP,ContextTokens,ContextTokens\n", "more than once"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request is left"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (AZURE + ",5", "4 cells, the header 3"),
        (AZURE + '\r\n"x', "no CSV row"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((InputError, ScenarioError), match=said):
        load(tmp_path, text, "azure_llm_2023")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"\x1f\x8b\x08\x00\xff\xff")
    with pytest.raises(InputError, match="unpack it first"):
        load_trace(path, "csv")
    with pytest.raises(InputError, match="cannot be read"):
        load_trace(tmp_path, "csv")


def test_columns_of_lengths(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n0,9\n3,4\n")
    a_N, b_N = read_columns(path, ("a", "b"))
    assert (a_N.tolist(), b_N.tolist()) == ([1, 3], [2, 4])
    with pytest.raises(InputError, match='no column "c"'):
        read_columns(path, ("c",))


# Slices and scales


def config(tmp_path: Path, **more: object) -> ReplayConfig:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(mooncake(at) for at in (0, 1000, 2000, 3000)))
    return ReplayConfig(kind="replay", format="mooncake", file=str(path), **more)  # type: ignore[arg-type]


def located(group: str, name: str) -> Path:
    return Path(name)


def test_a_slice_counts_what_it_leaves_out(tmp_path: Path) -> None:
    feed, report = config(tmp_path, from_s=0.5, to_s=3.0, rate_scale=0.5).build(located)
    assert [a.at_s for a in feed(1)] == [1.0, 3.0]
    assert report.refused == {"outside from_s .. to_s": 2}
    assert report.rows == report.kept + sum(report.refused.values())
    whole, untouched = config(tmp_path).build(located)
    assert len(list(whole(1))) == untouched.kept == 4
    assert len(list(whole(1))) == 4  # a fresh iterator each time


def test_an_empty_slice_says_how_long_the_trace_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs from 0 to 3 s"):
        config(tmp_path, from_s=10).build(located)
    with pytest.raises(ValueError, match="not after from_s"):
        config(tmp_path, from_s=2, to_s=1)
    with pytest.raises(ValueError, match="columns of its own"):
        config(tmp_path, columns={"arrival_s": "x"})


# The real files: the figures of SOURCE.md


@needs_real
@pytest.mark.parametrize(
    ("file", "form", "rows", "span_s", "prompt", "output"),
    [
        ("AzureLLMInferenceTrace_code.csv", "azure_llm_2023", 8819, 3436, 2048, 28),
        ("AzureLLMInferenceTrace_conv.csv", "azure_llm_2023", 19366, 3502, 1155, 211),
        ("mooncake_conversation_trace.jsonl", "mooncake", 12031, 3537, 12035, 343),
        ("mooncake_synthetic_trace.jsonl", "mooncake", 3993, 1022, 15325, 149),
        ("ragpulse_0_trace.jsonl", "ragpulse", 7106, 604603, 2944, 283),
        ("burstgpt_v1_header_sample.csv", "burstgpt", 3, 113, 659, 175),
        ("burstgpt_v2_header_sample.csv", "burstgpt", 4, 144, 914, 194),
        ("qwen_bailian_schema_example.jsonl", "qwen_bailian", 1, 0, 521, 132),
        ("vidur_splitwise_conv_head2000.csv", "csv", 2000, 424, 1105, 265),
        ("splitwise_sim_test_trace.csv", "csv", 3, 3, 2731, 19),
    ],
)
def test_real_files(file: str, form: str, rows: int, span_s: int, prompt: int, output: int) -> None:
    table = load_trace(REAL / file, form)  # type: ignore[arg-type]
    assert len(table) == table.report.rows == rows
    assert round(table.span_s) == span_s
    assert round(table.prompt_tokens_N.mean()) == prompt
    assert round(table.output_tokens_N.mean()) == output
    assert (np.diff(table.at_s_N) >= 0).all()
    covered = table.report.mended.get("rows whose block ids do not cover the prompt in 512s (kept)")
    assert covered is None


@needs_real
def test_ragpulse_is_two_recordings_end_to_end() -> None:
    """SOURCE.md speaks of one pair out of order; it is a step back of the whole week."""
    report = load_trace(REAL / "ragpulse_0_trace.jsonl", "ragpulse").report
    assert [n for key, n in report.mended.items() if "earlier" in key] == [1]
    assert report.mended["blank lines (passed over)"] == 1
    assert report.notes == ["the largest step back in time is 604453 s"]


@needs_real
def test_azure_conversation_gaps_have_their_cv() -> None:
    gaps = np.diff(load_trace(REAL / "AzureLLMInferenceTrace_conv.csv", "azure_llm_2023").at_s_N)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, abs=0.01)
