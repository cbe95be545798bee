"""The known worlds and liars do what their docstrings say, worked by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from specsim.lossless import leaks, liars
from specsim.lossless.battery import CROWDS, ViewRun, _table, confidences, tokens_for, view_runs
from specsim.lossless.conformance import ViewRun as SuiteRun
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.notes import Reordering, rank_disagreement
from specsim.lossless.random_worlds import chooser, random_world, tempting_world
from specsim.lossless.rejection import to_bfloat16
from specsim.lossless.worlds import World, law
from specsim.schedulers.base import BatchView
from specsim.schedulers.static import FixedLength
from tests.scheduler_views import make_view

F = Fraction


def theta(world: World, *survivals: str) -> list[Fraction]:
    """What one request promises with 0, 1, .. drafts of these survivals."""
    total, found = F(1), [F(1) / world.verify_s_B[1]]
    for count, survival in enumerate(survivals, start=2):
        total += F(survival)
        found.append(total / world.verify_s_B[count])
    return found


# Worlds made to show a leak


def test_in_the_deep_world_only_the_fourth_draft_makes_more_than_one_pay() -> None:
    """By scores that leave out the own token: 1, .9, .81 and, if c3 is sure, .81 again."""
    world = leaks.deep()
    scores = [F(1), F(19, 10), F(271, 100)]
    sure, unsure = (
        [s / t for s, t in zip([*scores, scores[2] + more], world.verify_s_B[2:], strict=True)]
        for more in (F(81, 100), F(0))
    )
    assert max(sure) == sure[3] > sure[0] > max(sure[1:3])
    assert max(unsure) == unsure[0]
    assert world.verify_s_B[1] == 1
    assert world.confidences(world.requests[0], (0,), (0, 0, 0, 0)) == tuple(
        map(F, ("9/10", "9/10", "1", "1"))
    )
    assert world.confidences(world.requests[0], (0,), (0, 1, 0, 0))[2:] == (0, 1)


def test_in_the_nested_world_a_block_pays_only_if_it_is_sure() -> None:
    world = leaks.nested()
    assert [1 / s for s in world.verify_s_B[1:4]] == list(leaks.SPS_APPENDIX_A)
    sure, unsure = theta(world, "4/5", "18/25", "18/25"), theta(world, "4/5", "0", "0")
    assert max(sure) == sure[3] > sure[2] > sure[0] > sure[1]
    assert max(unsure) == unsure[0]
    told = world.confidences(world.requests[0], (0,), (0, 0, 0))
    assert told == tuple(map(F, ("4/5", "9/10", "1")))
    assert world.confidences(world.requests[0], (1,), (1, 1, 0)) == tuple(
        map(F, ("3/5", "0", "1/10"))
    )


def test_d_cut_pays_more_for_three_only_if_the_second_is_likely() -> None:
    """Scores 1, q(x1), q(x1) q(x2): three are better than one exactly if x1 = x2 = A."""
    world = leaks.dcut()
    one, nine = F(1, 10), F(9, 10)
    assert world.verify_s_B[2] == 1
    for first, second, best in ((nine, nine, 3), (nine, one, 1), (one, nine, 1), (one, one, 1)):
        rates = [
            F(1),
            (1 + first) / world.verify_s_B[3],
            (1 + first + first * second) / world.verify_s_B[4],
        ]
        assert rates.index(max(rates)) + 1 == best


def test_flat_worlds_charge_nothing_for_drafts() -> None:
    for world, tokens in (
        (leaks.tie(), 6),
        (leaks.cross(), 6),
        (leaks.post_token(), 2),
        (leaks.tetris(), 4),
        (leaks.tetris(num_requests=3), 6),
        (leaks.block_world(), 3),
        (leaks.plain(law(1), law(1), name="x", gamma=4), 5),
    ):
        assert world.verify_s_B == (0, *[1] * tokens)
        assert tokens == len(world.requests) * (1 + world.gamma)
    assert [r.request_id for r in leaks.tetris(num_requests=3).requests] == [1, 2, 3]
    assert leaks.tetris() == leaks.tetris(num_requests=2)


def test_two_requests_tie_exactly_after_a() -> None:
    world = leaks.tie()
    one, two = world.requests
    survivals = [
        np.cumprod([float(c) for c in world.confidences(r, (0,), (x, 0))]).tolist()
        for r, x in ((one, 0), (one, 1), (two, 0), (two, 1))
    ]
    assert survivals == [[0.8, 0.8], [0.8, 0.4], [0.8, 0.8], [0.8, 0.8]]


def test_bfloat16_masses_lie_near_the_middle_of_two_numbers() -> None:
    exact = np.asarray(leaks.BFLOAT16_DRAFT, dtype=np.float32)
    step = 2.0 ** (np.floor(np.log2(exact)) - 7)  # 8 bits of significand
    off = np.abs(to_bfloat16(exact).astype(np.float64) - exact) / step
    assert (off[:3] > 0.38).all()
    assert sum(F(m) for m in leaks.BFLOAT16_TARGET) == 1
    assert leaks.float32_law([0.1, 0.5]) == (F(float(np.float32(0.1))), F(1, 2))
    assert leaks.normalised([F(1), F(3)]) == (F(1, 4), F(3, 4))


def test_a_nucleus_ends_where_its_mass_is_reached() -> None:
    four = law("1/4", "1/4", "1/4", "1/4")
    assert leaks.nucleus(four, "1/2") == law("1/2", "1/2", 0, 0)  # of equals the earlier
    assert leaks.nucleus(four, "51/100") == law("1/3", "1/3", "1/3", 0)
    assert leaks.nucleus(four, "1") == four
    assert leaks.tempered(law("1/3", "2/3"), 1) == law("1/3", "2/3")


# Liars, plan by plan


def lengths(scheduler, confidence, **more) -> list[int]:
    return scheduler.plan(make_view(confidence, **more)).tolist()


def test_later_positions_first_takes_prefixes_up_to_the_furthest_chosen() -> None:
    ones = np.ones((2, 3))
    for k, wanted in ((0, [0, 0]), (1, [3, 0]), (2, [3, 3]), (6, [3, 3])):
        assert lengths(liars.TieLast(k), ones) == wanted
    assert lengths(liars.TieLast(2), [[0.9, 0.5], [0.8, 0.9]]) == [1, 1]
    assert lengths(liars.TieLast(2), [[0.5, 1.0], [0.5, 0.9]]) == [2, 0]


def test_a_threshold_that_keeps_verifies_the_draft_that_fails() -> None:
    c = [[0.5, 0.4, 0.9], [0.4, 0.9, 0.9], [0.9, 0.9, 0.9]]
    assert lengths(liars.ThresholdKeep(), c) == [2, 1, 3]
    assert lengths(liars.ThresholdKeep(0.95), c) == [1, 1, 1]


def test_a_peek_admits_a_draft_for_what_follows_it() -> None:
    c = [[0.1, 0.5, 0.5], [0.9, 0.49, 0.9], [0.9, 0.9, 0.1]]
    assert lengths(liars.PeekNext(), c) == [2, 0, 1]


def test_a_batch_gate_opens_at_its_mean() -> None:
    assert lengths(liars.BatchGate(), [[0.5, 1.0], [0.5, 1.0]]) == [2, 2]
    assert lengths(liars.BatchGate(), [[0.5, 1.0], [0.5, 0.9]]) == [0, 0]


def test_neighbours_judge_each_other_and_a_lone_request_is_verified_whole() -> None:
    assert lengths(liars.CrossPeek(), [[0.9, 0.5], [0.9, 0.1], [0.9, 0.9]]) == [0, 1, 1]
    assert lengths(liars.CrossPeek(), [[0.9, 0.1]]) == [2]
    assert lengths(liars.CrossPeek(), [[0.1], [0.1]]) == [1, 1]


def test_a_gain_that_is_not_more_is_no_reason_to_trim() -> None:
    for last_s, wanted in ((1.5, [2]), (9.0, [0])):  # everything promises 2, or a third against 1
        table = [0, 1, 2, last_s]
        assert lengths(liars.MinimumGain(0.5), [[1.0, 1.0]], table=table) == wanted
    assert lengths(liars.MinimumGain(0.5), [[1.0, 1.0]], table=[0, 1, 3, 4.5]) == [2]
    assert lengths(liars.MinimumGain(0.49), [[1.0, 1.0]], table=[0, 1, 3, 4.5]) == [0]
    assert liars.MinimumGain().gain == 0.04
    shifted = lengths(liars.MinimumGain(0.49), [[1.0, 1.0]], table=[0, 1, 3, 4.5], fixed_s=50.0)
    assert shifted == [2]


def test_tiers_that_do_not_fit_are_left_out_and_ties_are_larger() -> None:
    view = [[1.0, 1.0], [1.0, 1.0]]
    assert lengths(liars.TierAware((0, 2, 4)), view, table=[0, 1, 1, 1, 2, 2, 3]) == [2, 2]
    assert lengths(liars.TierAware((0, 4)), view, table=[0, 1, 1, 1, 2, 2, 9]) == [0, 0]
    assert lengths(liars.TierAware((1, 5)), view) == [1, 0]
    assert liars.TierAware().tiers == (0, 2, 4, 8)


def test_a_uniform_length_has_a_memory_and_a_margin() -> None:
    for margin, now in ((0.49, 1), (0.5, 2)):
        scheduler = liars.UniformHysteresis(margin)
        assert lengths(scheduler, [[1.0, 1.0]]) == [2]
        assert lengths(scheduler, [[0.5, 0.5]], table=[0, 1, 1, 1.75]) == [now]
    two = liars.UniformHysteresis()
    assert two.margin == 0.05
    table = [0, 0, 1, 1, 1.4, 1.4, 9, 9]  # 2 / 1, 3.8 / 1.4, and too dear
    assert lengths(two, [[0.9, 0.9], [0.9, 0.9]], table=table) == [1, 1]
    assert lengths(liars.UniformHysteresis(), [[0.9], [0.9]], table=table, fixed_s=9.0) == [1, 1]
    dear = [0, 0, 1, 1, 2.0]
    assert lengths(liars.UniformHysteresis(), [[0.9], [0.9]], table=dear) == [0, 0]


def test_a_smoothed_budget_halves_its_past() -> None:
    for first in (True, False):
        scheduler = liars.SmoothedBudget(first)
        found = [
            sum(lengths(scheduler, c)) for c in (np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 2)))
        ]
        if first:  # means 2.5, 3.25 and 1.6, rounded to even; nothing survives in the last
            assert found == [2, 3, 0]
        else:  # 1, 2.5, 3.25 before each; nothing survives in the last
            assert found == [1, 2, 0]
        assert scheduler._mean == 1.625


def test_d_cut_takes_the_share_with_the_best_scores_a_second() -> None:
    c = [[0.2, 0.9], [0.9, 0.9]]  # scores 1, .2 and 1, .9
    assert lengths(liars.DCut((0.5,)), c) == [1, 1]
    assert lengths(liars.DCut((0.6,)), c) == [1, 2]
    steep = [0, 0, 1, 1, 2, 2.5, 9]  # 1, 2 / 2, 2.9 / 2.5
    assert lengths(liars.DCut(), c, table=steep) == [1, 2]
    assert lengths(liars.DCut(), c, table=[0, 0, 1, 1, 2, 3, 9]) == [1, 0]  # of equals the first
    assert lengths(liars.DCut(), c, table=[0, 0, 1, 1, 2, 3, 9], fixed_s=9.0) == [1, 2]
    assert liars.DCut().buckets == (0.25, 0.5, 0.75, 1.0)


def test_gates_free_a_budget_that_moves_on() -> None:
    gate = liars.SparseGate
    c = [[0.4, 0.9, 0.9], [0.9, 0.4, 0.9], [0.9, 0.9, 0.9]]
    # Six slots, two each; the first two stop at their gates, and what they free goes on.
    assert lengths(gate(budget=6), c) == [0, 1, 3]
    assert lengths(gate(budget=6, keep=True), c) == [1, 2, 3]
    assert lengths(gate(budget=6, depths=(2,)), c) == [3, 1, 2]
    assert lengths(gate(budget=1), c) == [0, 1, 0]
    assert lengths(gate(budget=9, depths=()), c) == [3, 3, 3]
    assert lengths(gate(budget=3, depths=(1, 5)), c) == [0, 2, 1]
    assert lengths(gate(budget=6, depths=(3,), threshold=0.9), c) == [2, 2, 2]
    assert (gate().budget, gate().depths, gate().threshold, gate().keep) == (2, (1, 2), 0.5, False)


def test_a_fixed_top_k_is_a_top_k() -> None:
    c = [[0.5, 0.9], [0.9, 0.9]]
    assert [lengths(liars.FixedTopK(k), c) for k in (0, 1, 2, 3)] == [
        [0, 0],
        [0, 1],
        [0, 2],
        [1, 2],
    ]
    assert liars.FixedTopK().k == liars.TieLast().k == 1


# Beside the laws


def test_an_order_is_preserved_if_the_same_one_is_first() -> None:
    for before, after, same in (
        ((1, 2), (1, 2), True),
        ((1, 2), (2, 1), False),
        ((2, 1), (2, 1), True),
        ((1, 1), (2, 1), True),  # neither is below the other
        ((1, 1), (1, 2), False),
        ((1, 2), (2, 2), False),
    ):
        assert Reordering(before, after).preserved is same


def test_two_ranks_see_views_that_differ_by_one_shift() -> None:
    seen: list[BatchView] = []

    class Watching:
        reads, lag, lossless = frozenset({"live"}), 0, True

        def plan(self, view):
            seen.append(view)
            return FixedLength(1).plan(view)

    assert rank_disagreement(Watching()) == ([1] * 8, [1] * 8)
    ours, theirs = (view.confidence_RG for view in seen)
    assert ours.shape == (8, 4)
    assert ours[0].tolist() == [0.6005] * 4
    assert set(ours[1:].ravel().tolist()) == {0.6}
    np.testing.assert_allclose((ours - theirs)[0], 1e-3)
    np.testing.assert_array_equal(ours[1:], theirs[1:])
    for view in seen:
        assert (view.step, view.gamma, view.base_tokens, view.fixed_s) == (0, 4, 8, 0.0)
        assert view.request_id_R.tolist() == list(range(8))
        np.testing.assert_array_equal(view.survival_RG, np.cumprod(view.confidence_RG, axis=1))
        # Room for four drafts; the fifth is dear.
        assert set(view.verify_s_B[8:13].tolist()) == {1.0}
        assert set(view.verify_s_B[13:41].tolist()) == {9.0}


# The battery


def sized(vocabulary: int, gamma: int, requests: int) -> World:
    rng = np.random.default_rng(1)
    while True:
        world = random_world(chooser(rng), num_requests=requests, gamma=gamma, max_outcomes=10**6)
        if world.vocabulary == vocabulary:
            return world


@pytest.mark.parametrize(
    ("vocabulary", "gamma", "requests", "tokens"),
    [
        (2, 1, 1, 3),
        (2, 4, 1, 3),  # 16 outcomes
        (3, 3, 1, 3),  # 27
        (2, 5, 1, 2),  # 32
        (2, 2, 2, 2),  # 16
        (2, 3, 2, 2),  # 64
        (3, 2, 2, 1),  # 81
        (2, 1, 3, 2),  # 8
        (2, 2, 3, 1),  # 64, of three
    ],
)
def test_small_worlds_are_followed_for_longer(vocabulary, gamma, requests, tokens) -> None:
    assert tokens_for(sized(vocabulary, gamma, requests)) == tokens


def test_step_tables_by_hand() -> None:
    def table(kind, size=12, base=4):
        return _table(kind, size, base, np.random.default_rng(2))

    assert table("flat").tolist() == [1.0] * 12
    np.testing.assert_allclose(table("linear"), 1 + 0.1 * np.arange(12))
    jagged = table("jagged")
    assert 0.5 <= jagged[0] <= 1.0
    assert set(np.diff(jagged).tolist()) <= {0.0, 0.25, 0.5}
    for _ in range(3):
        rng = np.random.default_rng(5)
        edges = {"humped": set(), "shelf": set(), "cliff": set()}
        after = set()
        for _ in range(200):
            humped, shelf, cliff = (_table(kind, 12, 4, rng) for kind in edges)
            edges["humped"].add(int((humped == 1).sum()) - 1)
            after.add(float(humped[-1]))
            edges["shelf"].add(int((shelf == 1).sum()) - 1)
            assert set(shelf.tolist()) <= {1.0, 2.0}
            edge = int((cliff < 5).sum()) - 1
            edges["cliff"].add(edge)
            np.testing.assert_allclose(cliff[: edge + 1], 1 + 0.01 * np.arange(edge + 1))
            assert (cliff[edge + 1 :] == 5).all()
    assert edges == {"humped": {5, 6, 7}, "shelf": set(range(5, 12)), "cliff": set(range(5, 12))}
    assert after == {1.6, 2.0, 2.5}


def test_runs_of_views_follow_their_calendar() -> None:
    assert SuiteRun is ViewRun
    runs = list(view_runs(seed=5, count=80))
    for index, run in enumerate(runs):
        assert len(run.steps) == (30 if index % 20 == 19 else 1 + index % 5)
        assert run.prefill == (37 if index % 5 == 3 else 0)
        first = len(run.steps[0][0])
        if index % 8 == 6:
            assert first == CROWDS[index // 8 % 4]
            assert run.gamma in range(1, 8)
        else:
            assert first in (1, 2, 3)
        assert run.steps[0][0].tolist() == list(range(first))
        assert max(len(ids) for ids, _ in run.steps) <= max(5, first)
        for (ids, c), history, sampled in zip(run.steps, run.histories, run.sampled, strict=True):
            assert c.shape == sampled.shape == (len(ids), run.gamma)
            rounds, verified, accepted = history
            assert history.shape == (3, len(ids))
            assert (accepted <= verified).all()
            assert (rounds >= 0).all()
            assert (rounds <= accepted).all()
            assert (verified <= 8).all()
    assert {run.fixed_s for run in runs} == {0.0, 0.5}
    joins = [len(b[0]) - len(a[0]) for run in runs for a, b in pairwise(run.steps)]
    assert {-1, 0, 1} == set(joins)
    for share in (np.mean(np.array(joins) == 1), np.mean(np.array(joins) == -1)):
        assert 0.1 < share < 0.5


def test_only_the_last_step_is_shown_otherwise() -> None:
    run = next(run for run in view_runs(seed=2, count=40) if len(run.steps) == 3)
    reads = frozenset({"live", "sampled", "lagged", "history"})
    other, mass = 0.5 * run.steps[-1][1], 0.5 * run.sampled[-1]
    plain, shown = run.views(reads, 1), run.views(reads, 1, last=other, last_sampled=mass)
    for step, (one, two) in enumerate(zip(plain, shown, strict=True)):
        assert one.step == two.step == step
        assert one.fixed_s == run.fixed_s
        assert (one.lagged_survival_RG == two.lagged_survival_RG).all()
        wanted = (other, mass) if step == 2 else (run.steps[step][1], run.sampled[step])
        np.testing.assert_array_equal(two.confidence_RG, wanted[0])
        np.testing.assert_array_equal(two.sampled_RG, wanted[1])
        np.testing.assert_array_equal(one.sampled_RG, run.sampled[step])
        np.testing.assert_array_equal(one.history.rounds_R, run.histories[step][0])
        np.testing.assert_array_equal(one.history.verified_R, run.histories[step][1])
        np.testing.assert_array_equal(one.history.accepted_R, run.histories[step][2])
    for part in ("confidence_RG", "lagged_survival_RG", "history", "sampled_RG"):
        with pytest.raises(ValueError, match=part):
            getattr(run.views(frozenset(), 0)[0], part)


def test_confidences_break_after_a_first_sure_one() -> None:
    rng = np.random.default_rng(9)
    broken = [c for _ in range(200) if set(np.unique(c := confidences(rng, 4, 3))) <= {0.95, 0.02}]
    sure = np.concatenate([(c == 0.95).sum(axis=1) for c in broken])
    assert set(sure.tolist()) == {1, 2, 3}
    assert all((np.diff(c, axis=1) <= 0).all() for c in broken)
    assert 0.35 < len(broken) / 200 < 0.65


# Random worlds


def made_worlds(count=300, seed=3, **more):
    choose = chooser(np.random.default_rng(seed))
    return [random_world(choose, **more) for _ in range(count)]


def test_confidences_are_true_rates_or_off_a_grid_or_give_the_token_away() -> None:
    kinds = []
    for world in made_worlds(gamma=2, num_requests=1):
        request = world.requests[0]
        rates = [
            {t: sum(map(min, request.target[t], q[t])) for t in request.target}
            for q in request.draft
        ]
        first, second = ({*table.values()} for table in request.confidence)
        if [dict(c) for c in request.confidence] == rates:
            kinds.append("true")
        elif second <= set(map(F, ("0", "1/10", "9/10", "1"))):
            kinds.append("telling")
            assert F(1, 10) not in first  # the first draft names nothing yet
        else:
            kinds.append("grid")
            assert F(1, 10) not in first | second
    share = {kind: kinds.count(kind) / len(kinds) for kind in ("true", "telling", "grid")}
    assert 0.18 < share["true"] < 0.35
    assert 0.3 < share["telling"] < 0.55
    assert 0.2 < share["grid"] < 0.5


def test_random_worlds_are_cut_to_the_limit_and_no_further() -> None:
    for limit in (4, 16, 27, 64):
        sizes = {
            w.vocabulary ** (w.gamma * len(w.requests)) for w in made_worlds(max_outcomes=limit)
        }
        assert max(sizes) == limit
    assert {len(w.requests) for w in made_worlds(100, num_requests=3, gamma=3)} == {3}
    worlds = made_worlds()
    for world in worlds:
        assert [r.request_id for r in world.requests] == [10, 11, 12][: len(world.requests)]
        assert {r.joins_at for r in world.requests} <= {0, 1}
        assert len(world.verify_s_B) == 1 + len(world.requests) * (1 + world.gamma)
        assert world.verify_s_B[0] == 0
        assert world.fixed_s in (0, F(1, 2), 1)
        assert world.order in ((0, 1) if world.gamma == 1 else (1,) if world.gamma == 2 else (1, 2))
    late = [r.joins_at for w in worlds for r in w.requests[1:]]
    assert 0.15 < np.mean(late) < 0.35
    assert {w.fixed_s for w in worlds} == {0, F(1, 2), F(1)}


def test_tempting_worlds_have_full_supports_and_two_first_confidences() -> None:
    choose = chooser(np.random.default_rng(4))
    worlds = [tempting_world(choose) for _ in range(200)]
    assert {(len(w.requests), w.gamma) for w in worlds} == {(1, 2), (1, 3), (2, 2)}
    flat = 0
    for world in worlds:
        assert (world.vocabulary, world.order, world.name) == (2, 1, "tempting")
        assert [r.request_id for r in world.requests] == [10, 11][: len(world.requests)]
        for request in world.requests:
            for table in (request.target, *request.draft):
                assert all(min(masses) > 0 for masses in table.values())
            assert set(request.confidence[0].values()) <= {F(4, 5), F(9, 10)}
            for later in request.confidence[1:]:
                assert set(later.values()) <= set(map(F, ("0", "1/10", "9/10", "1")))
        seconds, anchors = world.verify_s_B[1:], len(world.requests)
        assert len(seconds) == anchors * (1 + world.gamma)
        if set(seconds) == {1}:
            flat += 1
            continue
        assert seconds[:anchors] == (1,) * anchors
        assert F(3, 2) <= seconds[anchors] <= F(24, 10)
        rises = {b - a for a, b in zip(seconds[anchors:], seconds[anchors + 1 :], strict=False)}
        assert len(rises) == 1
        assert rises <= {0, F(1, 8), F(1, 4)}
    assert 0.15 < flat / len(worlds) < 0.35
    for world in worlds[:20]:
        assert enumerate_world(world, lambda: FixedLength(1)).exact
