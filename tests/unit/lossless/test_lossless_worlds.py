from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.lossless import leaks
from specsim.lossless.battery import _table, confidences, tokens_for, view_runs, worlds
from specsim.lossless.random_worlds import _random_seconds, chooser, random_world, tempting_world
from specsim.lossless.worlds import World, everywhere, law, tails


def changed(world: World, **request_changes) -> World:
    return replace(world, requests=(replace(world.requests[0], **request_changes),))


BASE = leaks.appendix_a()
BAD_REQUESTS = {
    "sum": (
        {"target": {(0,): (Fraction(1, 2),) * 2, (1,): (Fraction(1, 2), Fraction(1, 3))}},
        r"request 1, target p, tail \(1,\): \(1/2, 1/3\) sums to 5/6, a law must sum to exactly 1",
    ),
    "negative": (
        {"draft": (everywhere((Fraction(3, 2), Fraction(-1, 2)), order=1),) * 2},
        r"draft q, position 1, tail \(0,\): the mass of token 1 is -1/2",
    ),
    "support": (
        {"draft": (everywhere(law("1/2", "1/4", "1/4"), order=1),) * 2},
        r"no law for|has 3 masses, but the vocabulary has 2 tokens",
    ),
    "missing tail": (
        {"target": {(0,): law("1/2", "1/2")}},
        r"target p: no law for the tail \(1,\)",
    ),
    "gamma": ({"draft": BASE.requests[0].draft[:1]}, "1 draft laws, one for each of gamma = 2"),
    "confidence gamma": ({"confidence": ()}, "0 confidence tables"),
    "confidence range": (
        {"confidence": (BASE.requests[0].confidence[0], {(0,): Fraction(3, 2), (1,): Fraction(0)})},
        r"confidence 2 at \(0,\): 3/2 is not between 0 and 1",
    ),
    "confidence missing": (
        {"confidence": (BASE.requests[0].confidence[0], {(0,): Fraction(1)})},
        r"confidence 2: none for \(1,\)",
    ),
    "start": ({"start": (0, 0)}, r"start \(0, 0\) must be 1 tokens of 0..1"),
    "start token": ({"start": (2,)}, r"start \(2,\) must be"),
    "joins": ({"joins_at": -1}, "joins_at -1 must be at least 0"),
    "leaves": ({"leaves_after": 0}, "leaves_after 0 at least 1"),
    "believed": (
        {"believed_draft": (everywhere(law("1/2", "1/2"), order=1),)},
        "1 believed draft laws",
    ),
    "believed law": (
        {"believed_target": everywhere((Fraction(1, 2), Fraction(1, 4)), order=1)},
        "believed target, tail",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_named(name):
    changes, message = BAD_REQUESTS[name]
    with pytest.raises(InputError, match=message) as caught:
        changed(BASE, **changes)
    assert 'world "appendix-a"' in str(caught.value)


BAD_WORLDS = {
    "none": ({"requests": ()}, "has no requests"),
    "gamma": ({"gamma": 0}, "gamma 0 must be at least 1"),
    "ids": ({"requests": BASE.requests * 2}, "are not unique"),
    "table": ({"verify_s_B": BASE.verify_s_B[:3]}, "has 3 entries .* 4 are needed"),
    "seconds": (
        {"verify_s_B": (Fraction(0), Fraction(1), Fraction(0), Fraction(1))},
        "a forward of 2 tokens takes 0 s",
    ),
    "no seconds": (
        {"verify_s_B": (0.0, 1.0, float("nan"), 1.0)},
        "a forward of 2 tokens takes nan",
    ),
    "fixed": ({"fixed_s": Fraction(-1)}, "fixed_s is -1"),
    "endless": ({"fixed_s": float("inf")}, "fixed_s is inf"),
}


@pytest.mark.parametrize("name", BAD_WORLDS)
def test_bad_worlds_are_named(name):
    changes, message = BAD_WORLDS[name]
    with pytest.raises(InputError, match=message):
        replace(BASE, **changes)


def test_law_refuses_what_is_none():
    assert law("7/10", "3/10") == (Fraction(7, 10), Fraction(3, 10))
    with pytest.raises(InputError, match="sums to 9/10"):
        law("7/10", "1/5")
    with pytest.raises(InputError, match="mass of token 1 is -1/10"):
        law("11/10", "-1/10")
    for nothing in ("much", "1/0", float("nan"), float("inf"), None):
        with pytest.raises(InputError, match=r"law: .*; give fractions such as 7/10"):
            law("7/10", nothing)


def test_exact_worlds_take_exact_masses_only():
    floats = dict.fromkeys(tails(2, BASE.order), (0.75, 0.25))
    with pytest.raises(InputError, match=r"token 0 is 0\.75; enumeration is exact"):
        changed(BASE, target=floats)


def test_support_may_differ_either_way():
    leaks.plain(law(0, 1), law("1/2", "1/2"), name="q where p is zero")
    leaks.plain(law("1/2", "1/2"), law(0, 1), name="p where q is zero")


def test_tails_and_masses():
    world = leaks.nested()
    request = world.requests[0]
    assert tails(2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert world.tail((0, 1)) == (1,)
    assert leaks.post_token().tail((0, 1)) == ()
    assert world.confidences(request, (0,), (1, 0, 0)) == tuple(map(Fraction, ("4/5", "0", "1")))
    assert world.draft_mass(request, (0,), (1, 0, 1)) == Fraction(1, 2) * Fraction(4, 5) * Fraction(
        1, 2
    )
    post = leaks.tetris()
    assert post.confidences(post.requests[0], (), (1,)) == (Fraction(1, 10),)


def test_zero_mass_drafts_have_zero_mass():
    world = leaks.plain(law("1/2", "1/2"), law(0, 1), name="z", gamma=2)
    assert world.draft_mass(world.requests[0], (), (1, 1)) == 1
    assert world.draft_mass(world.requests[0], (), (1, 0)) == 0
    assert world.draft_mass(world.requests[0], (), (0, 1)) == 0


def test_description_can_be_read():
    text = leaks.appendix_a().describe()
    assert "p: (7/10, 3/10)" in text
    assert "c of draft 2 after 1: 0" in text
    assert "seconds of 1, 2, .. tokens: 1, 2, 20/9; fixed 0" in text
    assert "believed q 1" in leaks.bfloat16().describe()
    joining = changed(BASE, joins_at=1, leaves_after=2)
    assert "joins at step 1, leaves after 2 tokens" in joining.describe()
    assert "post-token" in leaks.tetris().describe()


def test_tempering_and_nucleus():
    assert leaks.tempered(law("1/2", "1/4", "1/4"), 2) == law("2/3", "1/6", "1/6")
    assert leaks.nucleus(law("1/2", "3/10", "1/5"), "4/5") == law("5/8", "3/8", 0)
    assert leaks.nucleus(law("1/5", "3/10", "1/2"), "1/2") == law(0, 0, 1)
    assert leaks.nucleus(law("1/4", "1/4", "1/2"), "3/5") == law("1/3", 0, "2/3")


def test_random_worlds_are_varied_and_seeded():
    made = [random_world(chooser(np.random.default_rng(s))) for s in range(150)]
    assert {len(w.requests) for w in made} == {1, 2, 3}
    assert {w.gamma for w in made} == {1, 2, 3}
    assert {w.vocabulary for w in made} == {2, 3}
    assert any(r.joins_at for w in made for r in w.requests)
    assert any(r.leaves_after for w in made for r in w.requests)
    seen = {c for w in made for r in w.requests for t in r.confidence for c in t.values()}
    assert {Fraction(0), Fraction(1)} <= seen
    assert any(len(set(w.verify_s_B[1:])) == 1 for w in made)
    assert any(
        a > b for w in made for a, b in zip(w.verify_s_B[1:], w.verify_s_B[2:], strict=False)
    )
    assert all(w.vocabulary ** (w.gamma * len(w.requests)) <= 256 for w in made)
    again = random_world(chooser(np.random.default_rng(5)))
    assert again == made[5]


def test_random_worlds_have_something_to_say_and_someone_to_say_it():
    choose = chooser(np.random.default_rng(7))
    made = [random_world(choose, max_outcomes=limit) for limit in (4, 8, 64) for _ in range(60)]
    assert {world.vocabulary for world in made} == {2, 3}
    roomy = [random_world(choose, num_requests=1) for _ in range(200)]
    assert 0.1 < np.mean([world.vocabulary == 3 for world in roomy]) < 0.4
    masses = [
        (mass for world in roomy for law in table(world).values() for mass in law)
        for table in (lambda w: w.requests[0].target, lambda w: w.requests[0].draft[0])
    ]
    assert all(0 in set(own) for own in masses)
    for world in made:
        assert world.requests[0].joins_at == 0
        if len(world.requests) == 1:
            assert world.requests[0].leaves_after is None
    together = [r.leaves_after for world in made if len(world.requests) > 1 for r in world.requests]
    assert set(together) == {None, 1, 2}


def test_random_worlds_keep_to_what_is_asked():
    choose = chooser(np.random.default_rng(1))
    for _ in range(20):
        world = random_world(choose, num_requests=2, gamma=2, post_token=True)
        assert (len(world.requests), world.gamma, world.post_token) == (2, 2, True)
        tight = random_world(choose, num_requests=2, gamma=2, max_outcomes=16)
        assert (len(tight.requests), tight.gamma, tight.vocabulary) == (2, 2, 2)
        small = random_world(choose, max_outcomes=4)
        assert small.vocabulary ** (small.gamma * len(small.requests)) <= 4
    for _ in range(20):
        world = tempting_world(choose, num_requests=1)
        assert len(world.requests) == 1
        assert world.gamma in (2, 3)
        assert tempting_world(choose, num_requests=2).gamma == 2
        post = tempting_world(choose, post_token=True)
        request = post.requests[0]
        assert request.confidence[0][(0, 1)] == request.draft[0][(0,)][1]


def test_the_battery_begins_small_and_is_seeded():
    made = list(worlds(seed=3, count=5))
    assert [w.name for w in made[:5]] == ["appendix-a", "nested", "deep", "tie", "cross"]
    sizes = [len(w.requests) for w in made[5:]]
    assert sizes == sorted(sizes)
    assert len(made) == 15
    assert made == list(worlds(seed=3, count=5))
    assert made != list(worlds(seed=4, count=5))
    assert all(w.post_token for w in worlds(seed=3, count=3, post_token=True))
    assert tokens_for(leaks.appendix_a()) == 3
    assert tokens_for(leaks.tie()) == 2


def test_view_runs_cover_ties_saturation_joins_and_leaves():
    runs = list(view_runs(seed=1, count=200))
    ids = [[step[0].tolist() for step in run.steps] for run in runs]
    pairs = [(a, b) for steps in ids for a, b in itertools.pairwise(steps)]
    assert any(set(b) - set(a) for a, b in pairs)
    assert any(set(a) - set(b) for a, b in pairs)
    for steps in ids:
        assert all(len(set(step)) == len(step) for step in steps)
        # A request that left does not come back, not even as another of the same number.
        for number in {number for step in steps for number in step}:
            there = [at for at, step in enumerate(steps) if number in step]
            assert there == list(range(there[0], there[-1] + 1))
    values = np.concatenate([c.ravel() for run in runs for _, c in run.steps])
    assert (values == 0).any()
    assert (values == 1).any()
    assert values.min() >= 0
    assert values.max() <= 1
    assert {run.gamma for run in runs} == set(range(1, 8))
    crowds = {max(len(ids) for ids, _ in run.steps) for run in runs}
    assert {8, 12, 24, 64} <= crowds
    assert crowds - {8, 12, 24, 64} == {1, 2, 3, 4, 5}
    for run in runs:
        for view in run.views(frozenset({"live"}), 0):
            assert view.base_tokens == view.num_requests + run.prefill
            assert len(view.verify_s_B) > view.base_tokens + view.num_requests * view.gamma
            assert (view.verify_s_B[view.base_tokens :] > 0).all()
    assert {run.prefill for run in runs} == {0, 37}
    rng = np.random.default_rng(0)
    kinds = [confidences(rng, 3, 6) for _ in range(80)]
    assert all(kind.shape == (3, 6) for kind in kinds)
    values = [set(np.unique(kind)) for kind in kinds]
    assert any(found <= {0.95, 0.02} for found in values)
    assert any(found <= {0.0, 1.0} for found in values)
    assert any(found <= {0.25, 0.5, 1.0} and 0.25 in found for found in values)
    halves = [(kind == kind.astype(np.float16)).all() for kind in kinds]
    various = [len(found) > 12 for found in values]
    assert any(h and v for h, v in zip(halves, various, strict=True))
    assert any(v and not h for h, v in zip(halves, various, strict=True))


def test_views_show_what_is_declared_and_lag_by_id():
    for run in view_runs(seed=2, count=40):
        views = run.views(frozenset({"live", "lagged", "history"}), 1)
        for view, (ids, confidence) in zip(views, run.steps, strict=True):
            np.testing.assert_array_equal(view.confidence_RG, confidence)
            np.testing.assert_allclose(view.survival_RG, np.cumprod(confidence, axis=1))
            assert not view.survival_RG.flags.writeable
            assert (view.history.accepted_R <= view.history.verified_R).all()
            assert view.request_id_R.tolist() == ids.tolist()
        for old, new in itertools.pairwise(views):
            rows = {int(i): row for row, i in enumerate(old.request_id_R)}
            for row, request in enumerate(new.request_id_R):
                expected = (
                    old.survival_RG[rows[int(request)]]
                    if int(request) in rows
                    else np.ones(run.gamma)
                )
                np.testing.assert_array_equal(new.lagged_survival_RG[row], expected)


@pytest.mark.parametrize("kind", ["humped", "shelf", "cliff"])
@pytest.mark.parametrize("base", [0, 50])
def test_what_tempts_in_a_step_table_lies_where_plans_end(kind, base):
    rng = np.random.default_rng(3)
    made = [_table(kind, base + 30, base, rng) for _ in range(100)]
    assert all((table[: base + 2] <= table[base + 2 :].max()).all() for table in made)
    rises = [len(set(table[base + 1 :].round(1).tolist())) > 1 for table in made]
    assert np.mean(rises) > 0.6


def test_step_tables_of_random_worlds_come_in_every_shape():
    rng = np.random.default_rng(5)
    made = [_random_seconds(chooser(rng), 8, 2)[1:] for _ in range(400)]
    rises = [np.diff([float(s) for s in seconds]) for seconds in made]
    flat = np.mean([not rise.any() for rise in rises])
    falling = np.mean([(rise < 0).any() for rise in rises])
    # Two anchors at 1 s each, a step of half a second or more, and evenly on from there.
    humped = np.mean(
        [
            s[0] == s[1] == 1 and s[2] >= 1.5 and len(set(r[2:])) == 1
            for s, r in zip(made, rises, strict=True)
        ]
    )
    assert 0.08 < flat < 0.2
    assert 0.05 < falling < 0.2
    assert 0.3 < humped < 0.5


def test_a_jagged_step_table_rises_in_uneven_stairs():
    rises = np.diff(_table("jagged", 200, 0, np.random.default_rng(1)))
    assert set(rises.tolist()) == {0.0, 0.25, 0.5}
