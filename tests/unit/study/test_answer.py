"""What a summary says beside its numbers: warnings once, loads in words, the worst label."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from specsim.cost.table_file import LABELS, worst_label
from specsim.report.loads import at_loads, load_name
from specsim.scenario.build import build_arm
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario
from specsim.study.answer import Finding, folded


def test_a_load_is_said_in_one_way() -> None:
    assert load_name(None) == "its load"
    assert (load_name(1), load_name(8)) == ("1 user a rank", "8 users a rank")
    assert at_loads([None]) == at_loads([]) == ""
    assert at_loads([1]) == "at 1 user a rank"
    assert at_loads([8, None, 32]) == "at 8, 32 users a rank"


def test_what_holds_for_several_policies_is_said_once() -> None:
    found = [
        Finding("a", "is long", (8,)),
        Finding("b", "is long", (8,)),
        Finding("c", "is odd", (None,)),
        Finding("b", "is odd", (None,)),
        Finding("c", "is wide", (8, 32)),
        Finding("a", "is wide", (32,)),
        Finding("b", "is wide", (32,)),
        Finding("a", "is unsafe"),
        Finding("d", "died", (8,)),
        Finding("d", "died", (32,)),
    ]
    assert folded(found) == [
        "a, b at 8 users a rank: is long",
        "c, b: is odd",
        "is wide: c at 8, 32 users a rank; a, b at 32 users a rank",
        "a: is unsafe",
        "d at 8, 32 users a rank: died",
    ]


def test_the_worst_label_counts_in_any_order() -> None:
    for some in itertools.product(LABELS, repeat=3):
        worst = LABELS[max(map(LABELS.index, some))]
        assert {worst_label(order) for order in itertools.permutations(some)} == {worst}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    ("table", "status"),
    [
        ("vllm/v4_flash_tp4_b300", "measured"),
        ("aiconfigurator/h100_llama31-8b_tp1_bf16", "derived"),
        ("v4_flash/fig7_mtp1", "fitted"),
    ],
)
@pytest.mark.parametrize("where", ["draft", "host", "policy", "prefill"])
def test_one_guess_marks_the_whole_cost(table: str, status: str, label: str, where: str) -> None:
    guess = f"{{base_ms: 1, label: {label}, source: test}}"
    sure = "{base_ms: 1, label: measured, source: test}"
    host = "included" if table.startswith("v4") else guess if where == "host" else sure
    sets = [
        f"cost.table={table}",
        f"cost.draft={guess if where == 'draft' else sure}",
        f"cost.host={host}",
    ]
    if where == "policy":
        sets.append(f"policies.fixed_2.draft={guess}")
    if where == "prefill":
        own = f"{{table: aiconfigurator/h100_llama31-8b_tp1_bf16, read: linear, host: {guess}}}"
        rest = "kind: disaggregated, ranks: 1, tokens_per_step: 512, transfer_ms: 1"
        sets.append(f"cluster.prefill={{{rest}, cost: {own}}}")
    loaded = load_scenario(find_scenario("hello"), overrides=sets)
    arm = build_arm(loaded.scenario, "fixed_2", folder=Path("scenarios").resolve())
    labels = [status, "measured", *(["derived"] if where == "prefill" else [])]
    if where != "host" or host == guess:
        labels.append(label)
    worst = worst_label(labels)
    expected = [] if worst in ("measured", "derived") else [f"{worst} cost"]
    assert [mark for mark in arm.labels() if mark.endswith("cost")] == expected


def test_a_guessed_draft_does_not_mark_a_policy_that_drafts_nothing() -> None:
    sets = ["cost.host={base_ms: 1, label: measured, source: test}"]
    loaded = load_scenario(find_scenario("hello"), overrides=sets)
    folder = Path("scenarios").resolve()
    assert build_arm(loaded.scenario, "no_speculation", folder=folder).labels() == []
    assert build_arm(loaded.scenario, "fixed_2", folder=folder).labels() == ["assumed cost"]
