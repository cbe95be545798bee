from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

from specsim.errors import InputError, SchedulerFault
from specsim.lossless import blocks, leaks, liars, montecarlo
from specsim.lossless.blocks import Sums, uniforms
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.models import Models, sample_models
from specsim.lossless.montecarlo import Sampler, sample_world
from specsim.lossless.random_worlds import chooser, random_world
from specsim.lossless.rejection import BLOCK_RULE, draw
from specsim.lossless.significance import g_test, sequential_test
from specsim.lossless.worlds import Request, World, everywhere
from specsim.lossless.worlds import law as law_of
from specsim.schedulers.feedback import Goodput
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK, GlobalSearch


class Counting:
    """Has a memory: verifies 0, 1, 2, .. drafts as it goes."""

    reads = frozenset()
    lag = 0
    lossless = True

    def __init__(self):
        self.calls = 0

    def plan(self, view):
        self.calls += 1
        return np.full(view.num_requests, min(self.calls - 1, view.gamma))


class Remembers:
    """Verifies as many drafts as were ever accepted, and one more: reads the history itself."""

    reads = frozenset({"history"})
    lag = 0
    lossless = True

    def plan(self, view):
        history = view.history
        assert history.rounds_R.max() <= view.step
        assert (history.accepted_R <= history.verified_R).all()
        return np.minimum(1 + history.accepted_R, view.gamma)


class Trespasses(Remembers):
    reads = frozenset({"live"})


def own_law(world, factory, num_tokens, watch, **more):
    """The exact law that enumeration gives, in the order in which sampling counts outcomes."""
    found = enumerate_world(world, factory, num_tokens=num_tokens, watch=watch, **more)
    lengths = [len(run) for run in next(iter(found.target))]
    keys = itertools.product(
        *(list(itertools.product(range(world.vocabulary), repeat=n)) for n in lengths)
    )
    return np.array([float(found.law.get(key, 0)) for key in keys])


SCHEDULERS = {
    "async": lambda: AsyncTopK(1),
    "global": GlobalSearch,
    "hysteresis": lambda: liars.UniformHysteresis(lag=0),
    "peek": liars.PeekNext,
    "cross": liars.CrossPeek,
    "learner": lambda: Goodput(1, 0.9, 0.2, 1.1),
    "counting": Counting,
    "history": Remembers,
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_sampling_follows_the_enumerated_law_of_safe_and_leaky_rules(name):
    factory = SCHEDULERS[name]
    choose = chooser(np.random.default_rng(len(name)))
    worlds = [leaks.appendix_a(), leaks.nested(), leaks.cross()]
    worlds += [random_world(choose, max_outcomes=16) for _ in range(4)]
    for seed, world in enumerate(worlds):
        watch = tuple(request.request_id for request in world.requests)
        tokens = 2 if len(watch) < 3 else 1
        law = own_law(world, factory, tokens, watch)
        found = sample_world(
            world, factory, num_samples=8000, seed=seed, num_tokens=tokens, watch=watch
        )
        assert found.counts_V.sum() == 8000
        assert g_test(found.counts_V, law)[2] > 1e-5, world.describe()


def test_block_rule_is_sampled_too():
    world = leaks.block_world()
    law = own_law(world, lambda: FixedLength(2), 3, None, rule=BLOCK_RULE)
    found = sample_world(
        world, lambda: FixedLength(2), num_samples=20_000, num_tokens=3, rule="block"
    )
    np.testing.assert_allclose(found.law_V, law)
    assert found.p_value > 1e-4


def test_a_leak_is_found_and_a_safe_rule_is_not():
    leak = sample_world(leaks.appendix_a(), GlobalSearch, num_samples=100_000)
    assert leak.p_value < 1e-12
    assert leak.distance.low < 0.15 < leak.distance.high
    assert leak.distance.low > 0.14
    safe = sample_world(leaks.appendix_a(), Greedy, num_samples=100_000)
    assert safe.p_value > 1e-3
    assert safe.law_V.tolist() == [0.7, 0.3]


def test_same_seed_same_counts_and_common_numbers():
    def counts(factory, seed):
        return sample_world(leaks.nested(), factory, num_samples=5000, seed=seed).counts_V.tolist()

    assert counts(Greedy, 1) == counts(Greedy, 1)
    assert counts(Greedy, 1) != counts(Greedy, 2)
    # Neither verifies anything in step 0, so the same numbers give the same tokens; a scheduler
    # found to have a memory meets them too.
    assert counts(Greedy, 1) == counts(lambda: FixedLength(0), 1) == counts(Counting, 1)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_kernels_count_what_numpy_counts(name):
    factory = SCHEDULERS[name]
    choose = chooser(np.random.default_rng(11 * len(name)))
    worlds = [leaks.appendix_a(), leaks.nested(), leaks.cross()]
    worlds += [random_world(choose, max_outcomes=64) for _ in range(8)]
    for seed, world in enumerate(worlds):
        watch = tuple(request.request_id for request in world.requests)
        more = {"seed": seed, "num_tokens": 3, "watch": watch}
        twin = Sampler(world, factory, **more)
        fast = Sampler(world, factory, **more, kernels=True)
        assert twin.counts(600).tolist() == fast.counts(600).tolist(), world.describe()
        assert twin.num_blocks == fast.num_blocks >= 600


def test_uniforms_are_those_of_splitmix64():
    # The first five outputs for seed 1234567, as Vigna's reference implementation gives them.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    numbers = np.arange(1, 6, dtype=np.uint64)
    found = uniforms(np.uint64(1234567), numbers)
    assert found.tolist() == [(word >> 11) * 2.0**-53 for word in known]
    key = np.uint64(1234567)
    with np.errstate(over="ignore"):
        assert [blocks._uniform(key, number) for number in numbers] == found.tolist()


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 8, 100, 1000])
def test_guided_inversion_draws_what_plain_inversion_draws(vocabulary):
    rng = np.random.default_rng(vocabulary)
    for peaked in (False, True):
        law = rng.random(vocabulary) ** (40 if peaked else 1)
        law[rng.random(vocabulary) < 0.3] = 0.0
        law[rng.integers(vocabulary)] = 0.5
        sums = Sums.of(law)
        edges = np.concatenate([sums.sums / sums.sums[-1], np.arange(64) / 64])
        picks = np.concatenate([rng.random(500), edges, np.nextafter(edges, 0), [1 - 2.0**-53]])
        picks = picks[(picks >= 0) & (picks < 1)]
        drawn = [blocks._invert(sums.sums, sums.last, sums.guide, pick) for pick in picks]
        assert drawn == draw(law[None], picks).tolist()
        assert (law[drawn] > 0).all()


def test_a_world_with_too_many_views_is_refused():
    class Ranks:
        reads = frozenset({"sampled"})
        lag = 0
        lossless = False

        def plan(self, view):
            return np.zeros(view.num_requests, dtype=np.int64)

    masses = [Fraction(2 * k + 1, 40**2) for k in range(40)]
    law = everywhere(masses, order=0)
    half = everywhere([Fraction(1, 2)] * 2, order=0)
    sure = {(): Fraction(1)}

    def world(table, gamma):
        request = Request(1, table, (table,) * gamma, (sure,) * gamma, ())
        seconds = tuple(Fraction(1) for _ in range(gamma + 2))
        return World("wide", (request,), gamma, 0, seconds)

    with pytest.raises(InputError, match=f"{40**8} views of one block could differ"):
        Sampler(world(law, 8), Ranks)
    assert Sampler(world(law, 8), Greedy).counts(50).sum() == 50
    assert Sampler(world(half, 8), Ranks).counts(50).sum() == 50


def test_chunks_use_new_numbers(monkeypatch):
    monkeypatch.setattr(montecarlo, "CHUNK", 1000)
    sampler = Sampler(leaks.appendix_a(), GlobalSearch, seed=3)
    first, second = sampler.counts(1000), sampler.counts(1000)
    assert first.tolist() != second.tolist()
    whole = Sampler(leaks.appendix_a(), GlobalSearch, seed=3).counts(2000)
    assert (first + second).tolist() == whole.tolist()


def test_sequential_stopping_on_a_world():
    sampler = Sampler(leaks.appendix_a(), GlobalSearch)
    found = sequential_test(sampler.counts, sampler.law_V, alpha=1e-12, batch=1000)
    assert found.biased
    assert found.num_samples < 10_000


def test_bad_input_is_named():
    world = leaks.appendix_a()
    with pytest.raises(InputError, match='rule "blok" is not one of token, block'):
        sample_world(world, Greedy, num_samples=1, rule="blok")
    with pytest.raises(InputError, match=r"no request 7, it has \[1\]"):
        sample_world(world, Greedy, num_samples=1, watch=(7,))
    with pytest.raises(InputError, match="samples is 0"):
        sample_world(world, Greedy, num_samples=0)


def test_large_codes_are_compressed_without_mixing_groups():
    big = montecarlo.COMPRESS_ABOVE // 4
    codes = montecarlo._Codes(np.array([big, big, big + 1, 0]), 2 * big)
    codes.add(np.array([5, 6, 5, 5]), 8)
    assert len(set(codes.code_S.tolist())) == 4
    assert codes.code_S.max() < codes.bound < 100
    assert not codes.lasting
    small = montecarlo._Codes(np.array([1, 0]), 2)
    small.add(np.array([2, 2]), 3)
    assert small.code_S.tolist() == [5, 2]
    assert small.bound == 6
    assert small.lasting


@pytest.mark.parametrize("bound", [10, 1 << 30])
def test_groups_are_found_alike_in_tables_and_by_sorting(bound):
    codes = montecarlo._Codes(np.array([7, 2, 7, 9, 2]), bound)
    first, group = codes.groups()
    assert first.tolist() == [1, 0, 3]
    assert group.tolist() == [1, 0, 1, 2, 0]


P = np.array([0.4, 0.3, 0.2, 0.1])
Q = np.array([0.25, 0.25, 0.25, 0.25])


def table_models(**changes):
    """Laws that depend on the last token by rotation."""

    def target(prefix):
        return np.stack([np.roll(P, t) for t in prefix[:, -1]])

    def draft(prefix, k):
        return np.stack([np.roll(Q, t) for t in prefix[:, -1]])

    def confidence(prefix, k):
        return np.where(prefix[:, -1] % 2 == 0, 0.95, 0.05) if k else np.full(len(prefix), 0.8)

    return Models(**{"target": target, "draft": draft, "confidence": confidence, **changes})


TABLE_B = np.array([0.0, 1.0, 2.0, 2.05, 2.1, 2.15, 2.2, 2.25, 2.3])


@pytest.mark.parametrize(
    ("factory", "biased"),
    [(Greedy, False), (lambda: AsyncTopK(1), False), (GlobalSearch, True)],
)
def test_models_as_functions(factory, biased):
    found = sample_models(
        table_models(),
        factory,
        contexts=((0, 1),),
        gamma=2,
        verify_s_B=TABLE_B,
        num_samples=30_000,
    )
    np.testing.assert_allclose(found.law_V, np.roll(P, 1))
    assert (found.p_value < 1e-9) == biased
    assert biased or found.p_value > 1e-4


def test_models_with_several_requests_and_a_believed_draft():
    common = {"contexts": ((0,), (1,)), "gamma": 2, "verify_s_B": TABLE_B, "num_samples": 20_000}
    exact = sample_models(table_models(), lambda: liars.FixedTopK(2), **common)
    assert exact.p_value > 1e-4
    wrong = sample_models(
        table_models(
            believed_draft=lambda prefix, k: np.tile([0.1, 0.2, 0.3, 0.4], (len(prefix), 1))
        ),
        lambda: FixedLength(1),
        **common,
    )
    assert wrong.p_value < 1e-9
    with pytest.raises(InputError, match="0 contexts"):
        sample_models(table_models(), Greedy, **{**common, "contexts": ()})
    with pytest.raises(SchedulerFault, match="history"):
        sample_models(table_models(), HistoryReader, **common)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target": lambda prefix: np.tile([0.5, 0.5, 0.1, 0.0], (len(prefix), 1))},
            "target p of request 0 sums to 1.1; a law must sum to 1",
        ),
        (
            {"draft": lambda prefix, k: np.tile([1.2, -0.2, 0.0, 0.0], (len(prefix), 1))},
            "draft q, draft 1 of request 0 has a mass of -0.2; masses are at least 0",
        ),
        (
            {"draft": lambda prefix, k: np.full((len(prefix), 4), np.nan if k else 0.25)},
            "draft q, draft 2 of request 0 has a mass of nan",
        ),
        ({"target": lambda prefix: P}, r"target p of request 0 has shape \(4,\)"),
        (
            {"confidence": lambda prefix, k: np.full(len(prefix), 1.5 if k else 0.5)},
            "confidence of draft 2 of request 0 is 1.5, not between 0 and 1",
        ),
    ],
)
def test_models_that_return_no_laws_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        sample_models(
            table_models(**changes),
            Greedy,
            contexts=((0,),),
            gamma=2,
            verify_s_B=TABLE_B,
            num_samples=100,
        )


class HistoryReader:
    reads = frozenset()
    lag = 0
    lossless = True

    def plan(self, view):
        return view.history.rounds_R


def test_torch_models():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    vocabulary = 50
    embed = torch.nn.Embedding(vocabulary, 16)
    target_head, draft_head = torch.nn.Linear(16, vocabulary), torch.nn.Linear(16, vocabulary)

    @torch.no_grad()
    def law(head, prefix):
        return torch.softmax(3 * head(embed(torch.from_numpy(prefix[:, -1]))), dim=-1)

    models = Models(
        target=lambda prefix: law(target_head, prefix),
        draft=lambda prefix, k: law(draft_head, prefix),
        confidence=lambda prefix, k: torch.minimum(
            law(target_head, prefix), law(draft_head, prefix)
        ).sum(-1),
    )
    common = {"contexts": ((3, 7),), "gamma": 2, "verify_s_B": TABLE_B, "num_samples": 20_000}
    exact = sample_models(models, lambda: FixedLength(2), **common)
    assert exact.p_value > 1e-4
    assert len(exact.law_V) == vocabulary
    greedy = Models(
        target=models.target,
        draft=lambda prefix, k: torch.nn.functional.one_hot(
            law(draft_head, prefix).argmax(-1), vocabulary
        ),
        confidence=models.confidence,
        believed_draft=models.draft,
    )
    assert sample_models(greedy, lambda: FixedLength(2), **common).p_value < 1e-9


def test_the_block_rule_has_no_kernel_and_needs_none():
    world = leaks.block_world()
    counts = [
        Sampler(world, lambda: FixedLength(2), rule="block", num_tokens=2, kernels=kernels)
        .counts(3000)
        .tolist()
        for kernels in (False, True)
    ]
    assert counts[0] == counts[1]
    token = Sampler(world, lambda: FixedLength(2), num_tokens=2).counts(3000).tolist()
    assert token != counts[0]


def test_what_is_left_out_is_one_token_of_the_first_request_under_seed_0():
    world = leaks.cross()
    plain = sample_world(world, Greedy, num_samples=500)
    said = {"num_samples": 500, "seed": 0, "num_tokens": 1, "watch": (1,), "rule": "token"}
    assert plain.counts_V.tolist() == sample_world(world, Greedy, **said).counts_V.tolist()
    assert plain.law_V.tolist() == [0.7, 0.3]
    drawn = Sampler(world, Greedy).counts(500)
    assert drawn.tolist() == plain.counts_V.tolist()
    other = sample_world(world, Greedy, num_samples=500, watch=(2,))
    assert other.counts_V.tolist() != plain.counts_V.tolist()


def test_outcomes_are_counted_in_the_order_of_their_digits():
    """Two tokens of request 2, then one of request 1: the first digit counts most."""
    world = leaks.nested()
    one = world.requests[0]
    world = World(
        "two",
        (one, dataclasses.replace(one, request_id=2, leaves_after=1)),
        world.gamma,
        world.order,
        tuple(Fraction(1) for _ in range(9)),
    )
    sampler = Sampler(world, lambda: FixedLength(1), num_tokens=2, watch=(2, 1))
    assert len(sampler.law_V) == 2 * 4  # request 2 leaves after one
    first, both = [0.7, 0.3], [0.49, 0.21, 0.12, 0.18]
    np.testing.assert_allclose(sampler.law_V, np.outer(first, both).ravel())
    assert g_test(sampler.counts(8000), sampler.law_V)[2] > 1e-4


def test_keys_are_named_by_seed_chunk_and_what_they_decide():
    keys = montecarlo.Streams(1).key_numbers("draft/0/0", 3)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 3
    assert (montecarlo.Streams(1).key_numbers("draft/0/0", 2) == keys[:2]).all()
    others = (
        montecarlo.Streams(2).key_numbers("draft/0/0", 3),
        montecarlo.Streams(1, 1).key_numbers("draft/0/0", 3),
        montecarlo.Streams(1).key_numbers("draft/0/1", 3),
    )
    for other in others:
        assert not set(other.tolist()) & set(keys.tolist())
    assert keys.tolist() == montecarlo.Streams(1, 0).key_numbers("draft/0/0", 3).tolist()
    streams = montecarlo.Streams(1)
    assert streams["a"] is streams["a"]


def test_runs_are_made_in_whole_chunks_and_a_rest(monkeypatch):
    monkeypatch.setattr(montecarlo, "CHUNK", 10)
    made = {n: montecarlo.chunk_sizes(n) for n in (1, 9, 10, 11, 20, 25)}
    assert made == {1: [1], 9: [9], 10: [10], 11: [10, 1], 20: [10, 10], 25: [10, 10, 5]}
    with pytest.raises(InputError, match="samples is -1; at least 1"):
        montecarlo.chunk_sizes(-1)


def test_codes_are_compressed_only_where_they_would_grow_too_large():
    limit = montecarlo.COMPRESS_ABOVE
    for bound, lasting in ((limit // 8, True), (limit // 8 + 1, False)):
        codes = montecarlo._Codes(np.array([bound - 1, 3, 3]), bound)
        codes.add(np.array([7, 1, 1]), 8)
        assert codes.lasting is lasting
        assert codes.bound == (8 * bound if lasting else 16)
        first, group = codes.groups()
        assert first.tolist() == [1, 0]
        assert group.tolist() == [1, 0, 0]


def test_a_guide_points_at_the_first_token_of_its_part():
    law = np.array([[0.0, 0.3, 0.0, 0.7, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    sums = Sums.of(law)
    assert sums.last.tolist() == [3, 0]
    buckets = sums.guide.shape[1]
    assert buckets >= 4 * law.shape[1]
    assert buckets & (buckets - 1) == 0
    starts = np.arange(buckets) / buckets
    for row, guide in zip(law, sums.guide, strict=True):
        assert guide.tolist() == draw(row[None], starts).tolist()
    assert Sums.of(np.ones(1000)).guide.shape[-1] >= 4000


def test_tables_hold_the_laws_of_each_tail():
    world = leaks.nested()
    made = blocks.tables(world, world.requests[0], confidence=True, sampled=True)
    assert made.tails == [(0,), (1,)]
    assert made.p_TV.tolist() == [[0.7, 0.3], [0.4, 0.6]]
    assert made.q_GTV[2].tolist() == made.drawn_GTV[0].tolist() == [[0.5, 0.5], [0.8, 0.2]]
    assert made.next_TV.tolist() == [[0, 1], [0, 1]]
    left = np.diff(made.left_sums.sums, prepend=0.0)
    np.testing.assert_allclose(left[0], [[0.2, 0.0], [0.0, 0.4]], atol=1e-12)
    # c and q of what was drafted: (4/5, 1/2) twice, then (3/5, 4/5) and (3/5, 1/5).
    assert made.class_GTV[0].tolist() == [[0, 0], [1, 2]]
    assert made.classes_G.tolist() == [3, 3, 3]
    assert made.num_views == 27
    blind = blocks.tables(world, world.requests[0], confidence=False, sampled=False)
    assert blind.num_views == 1
    seen = blocks.tables(world, world.requests[0], confidence=True, sampled=False)
    assert seen.class_GTV[0].tolist() == [[0, 0], [1, 1]]
    post = leaks.tetris()
    told = blocks.tables(post, post.requests[0], confidence=True, sampled=False)
    assert told.class_GTV.tolist() == [[[0, 1]]]
    equal = leaks.plain(law_of("1/2", "1/2"), law_of("1/2", "1/2"), name="equal")
    same = blocks.tables(equal, equal.requests[0], confidence=False, sampled=False)
    assert same.left_sums.sums.tolist() == [[[0.5, 1.0]]]  # nothing is left: p itself


def test_one_outcome_for_each_group_of_equal_views():
    """A planner is asked once for each distinct view, however many copies have it."""
    asked = []

    class Watching:
        reads, lag, lossless = frozenset({"live"}), 0, True

        def plan(self, view):
            asked.append(view.confidence_RG.tolist())
            return np.zeros(view.num_requests, dtype=np.int64)

    sampler = Sampler(leaks.appendix_a(), Watching, num_tokens=1)
    sampler.counts(4000)
    assert sorted(asked) == [[[0.8, 0.0]], [[0.8, 0.9]]]
    sampler.counts(4000)
    assert len(asked) == 2
    assert sampler.num_blocks == 8000


def test_what_is_not_declared_is_not_shown_in_sampling_either():
    with pytest.raises(SchedulerFault, match='add "history" to its `reads`'):
        sample_world(leaks.nested(), Trespasses, num_samples=10)


def test_histories_are_counted_alike_in_sampling_and_in_enumeration():
    seen = []

    class Watching(Remembers):
        def plan(self, view):
            history = view.history
            rows = zip(history.rounds_R, history.verified_R, history.accepted_R, strict=True)
            seen.append((view.step, tuple(tuple(map(int, row)) for row in rows)))
            return super().plan(view)

    enumerate_world(leaks.nested(), Watching, num_tokens=3)
    known = set(seen)
    seen.clear()
    sample_world(leaks.nested(), Watching, num_samples=5000, num_tokens=3)
    assert set(seen) == known
    assert len(known) > 3


def test_a_request_that_joins_later_begins_with_its_first_token():
    world = leaks.cross()
    one, two = world.requests
    world = dataclasses.replace(world, requests=(one, dataclasses.replace(two, joins_at=2)))
    for watch in ((2,), (1, 2)):
        law = own_law(world, lambda: FixedLength(1), 2, watch)
        given = {"num_tokens": 2, "watch": watch}
        for kernels in (False, True):
            counts = Sampler(world, lambda: FixedLength(1), **given, kernels=kernels).counts(3000)
            assert counts.sum() == 3000
            assert g_test(counts, law)[2] > 1e-5
