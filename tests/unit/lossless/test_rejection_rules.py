from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from specsim.lossless import wrong_rules
from specsim.lossless.rejection import (
    BLOCK_RULE,
    ONE,
    TARGET_SAMPLE_RULE,
    TOKEN_RULE,
    ZERO,
    acceptance,
    draw,
    expected_accepted,
    residual,
    to_bfloat16,
    total_variation,
    verify_block,
    verify_tokens,
)
from specsim.lossless.significance import g_test
from specsim.lossless.worlds import law

P = law("1/2", "3/10", "1/5")
Q = law("1/5", "1/2", "3/10")
HONEST = (TOKEN_RULE, BLOCK_RULE, TARGET_SAMPLE_RULE)
WRONG = (
    wrong_rules.FRESH_ON_MISMATCH,
    wrong_rules.TARGET_ON_REJECT,
    wrong_rules.BLOCK_TOKEN_RESIDUAL,
    wrong_rules.BLOCK_WEIGHT_ACCEPT,
)


def two_token_law(rule, p_of, q_of, length):
    """Law of the first two output tokens of one block, the rest drawn from p."""
    vocabulary = len(p_of[()])
    out = {}
    for first in range(vocabulary):
        for second in range(vocabulary):
            drafts = (first, second)[:length]
            mass = (q_of[()][first] if length else ONE) * (
                q_of[(first,)][second] if length > 1 else ONE
            )
            if length == 0 and (first or second):
                continue
            if length == 1 and second:
                continue
            rows = [p_of[()], p_of.get(drafts[:1]), p_of.get(drafts[1:2])][: length + 1]
            q_rows = [q_of[()], q_of.get(drafts[:1])][:length]
            for run, share in rule.commit_law(drafts, rows, q_rows).items():
                runs = {run[:2]: ONE}
                if len(run) == 1:
                    runs = {(run[0], t): p for t, p in enumerate(p_of[(run[0],)])}
                for key, more in runs.items():
                    out[key] = out.get(key, ZERO) + mass * share * more
    return {key: value for key, value in out.items() if value}


def context_laws(vocabulary, seed, *, least=0):
    rng = np.random.default_rng(seed)

    def one():
        weights = [least + int(w) for w in rng.integers(0, 5, vocabulary)]
        weights[int(rng.integers(vocabulary))] += 1
        return tuple(Fraction(w, sum(weights)) for w in weights)

    return {key: one() for key in [(), *((t,) for t in range(vocabulary))]}


@pytest.mark.parametrize("rule", HONEST, ids=lambda r: r.name)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_honest_rules_emit_the_target_law_exactly(rule, length):
    for seed in range(25):
        p_of, q_of = context_laws(2 + seed % 2, seed), context_laws(2 + seed % 2, 1000 + seed)
        target = {
            (a, b): p_of[()][a] * p_of[(a,)][b]
            for a in range(len(p_of[()]))
            for b in range(len(p_of[()]))
            if p_of[()][a] * p_of[(a,)][b]
        }
        assert two_token_law(rule, p_of, q_of, length) == target


@pytest.mark.parametrize("rule", WRONG, ids=lambda r: r.name)
def test_wrong_rules_do_not(rule):
    biased = 0
    for seed in range(60):
        p_of, q_of = context_laws(3, seed), context_laws(3, 1000 + seed)
        target = {
            (a, b): p_of[()][a] * p_of[(a,)][b]
            for a in range(3)
            for b in range(3)
            if p_of[()][a] * p_of[(a,)][b]
        }
        biased += two_token_law(rule, p_of, q_of, 2) != target
    assert biased >= 3


def test_commit_laws_sum_to_one():
    for rule in (*HONEST, *WRONG):
        for drafts in [(), (0,), (1, 2), (2, 2, 2)]:
            made = rule.commit_law(drafts, [P] * (len(drafts) + 1), [Q] * len(drafts))
            assert sum(made.values()) == 1
            assert all(1 <= len(run) <= len(drafts) + 1 and mass > 0 for run, mass in made.items())


def test_token_rule_by_hand():
    # Draft 1 has p/q = 3/5: kept with 3/5, else corrected from (p - q)+ = (3/10, 0, 0).
    assert TOKEN_RULE.commit_law((1,), [P, Q], [Q]) == {
        (0,): Fraction(2, 5),
        (1, 0): Fraction(3, 5) * Fraction(1, 5),
        (1, 1): Fraction(3, 5) * Fraction(1, 2),
        (1, 2): Fraction(3, 5) * Fraction(3, 10),
    }


def test_acceptance_rates():
    def rate(rule):
        return sum(Q[x] * expected_accepted(rule.commit_law((x,), [P, P], [Q])) for x in range(3))

    assert rate(TOKEN_RULE) == 1 - total_variation(P, Q) == Fraction(7, 10)
    assert rate(BLOCK_RULE) == rate(TOKEN_RULE)
    assert rate(TARGET_SAMPLE_RULE) == sum(p * q for p, q in zip(P, Q, strict=True))


def test_block_accepts_at_least_as_much_as_token():
    better = 0
    for seed in range(40):
        p_of, q_of = context_laws(3, seed), context_laws(3, 500 + seed)
        means = []
        for rule in (TOKEN_RULE, BLOCK_RULE):
            mean = ZERO
            for a in range(3):
                for b in range(3):
                    made = rule.commit_law(
                        (a, b), [p_of[()], p_of[(a,)], p_of[(b,)]], [q_of[()], q_of[(a,)]]
                    )
                    mean += q_of[()][a] * q_of[(a,)][b] * expected_accepted(made)
            means.append(mean)
        assert means[1] >= means[0]
        better += means[1] > means[0]
    assert better > 10


def test_pieces():
    assert residual(P, Q) == (1, 0, 0)
    assert residual(P, P) == P
    assert residual(P, Q, Fraction(1, 5)) == P
    assert acceptance(P, Q, 0) == 1
    assert acceptance(P, Q, 1) == Fraction(3, 5)
    assert acceptance(law(0, 1), law("1/2", "1/2"), 0) == 0
    assert acceptance(law(1, 0), law(1, 0), 1) == 1
    assert total_variation(P, P) == 0


def test_to_bfloat16_is_round_to_nearest_even():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.random(5000), [0.0, 1.0, 0.5019, 1.00390625, 1.01171875, 3.3895e38 * 0.9]]
    ).astype(np.float32)
    ours = to_bfloat16(values)
    theirs = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert ours.dtype == np.float32
    # 1 + 3/256 lies in the middle of two bfloat16 numbers: ties go to the even one, up here.
    assert to_bfloat16(np.array([1.00390625, 1.01171875], np.float32)).tolist() == [1.0, 1.015625]


def test_draw_inverts_the_law():
    rows = np.array([[0.2, 0.0, 0.8], [1.0, 0.0, 0.0]])
    assert draw(rows, np.array([0.19, 0.99])).tolist() == [0, 0]
    assert draw(rows, np.array([0.2, 0.0])).tolist() == [2, 0]
    assert draw(rows[:1], np.array([0.1, 0.2, 0.999999])).tolist() == [0, 2, 2]
    # A level that rounding carries to the very end still lands on a token with mass.
    almost = np.nextafter(1.0, 0.0)
    assert draw(np.array([[0.1, 0.2, 0.7, 0.0]] * 2), np.array([almost, almost])).tolist() == [2, 2]
    assert draw(np.array([[0.3, 0.7, 0.0]]), np.array([almost])).tolist() == [1]


def uniforms(seed, num, gamma):
    rng = np.random.default_rng(seed)
    return rng.random((num, gamma)), rng.random(num), rng


def _float_rows(p_of, q_of, draft_SG):
    p = np.array([[float(x) for x in p_of[key]] for key in [(), (0,), (1,), (2,)]])
    q = np.array([[float(x) for x in q_of[key]] for key in [(), (0,), (1,), (2,)]])
    first, second = draft_SG[:, 0] + 1, draft_SG[:, 1] + 1
    zero = np.zeros_like(first)
    return np.stack([p[zero], p[first], p[second]], 1), np.stack([q[zero], q[first]], 1)


@pytest.mark.parametrize(
    ("sampler", "rule"), [(verify_tokens, TOKEN_RULE), (verify_block, BLOCK_RULE)]
)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_samplers_follow_their_exact_law(sampler, rule, length):
    # Drafts 1 and 2 are each rejected at times: p/q is 3/5 and then 1/2.
    p_of = {(): P, (0,): P, (1,): law("3/5", "1/5", "1/5"), (2,): Q}
    q_of = {(): Q, (0,): Q, (1,): law("1/5", "2/5", "2/5"), (2,): P}
    drafts = (1, 2)
    rows = [p_of[()], p_of[(1,)], p_of[(2,)]][: length + 1]
    exact = rule.commit_law(drafts[:length], rows, [q_of[()], q_of[(1,)]][:length])
    num = 60_000
    accept, pick, _ = uniforms(length, num, 2)
    draft_SG = np.tile(np.array(drafts), (num, 1))
    p_rows, q_rows = _float_rows(p_of, q_of, draft_SG)
    accepted, token = sampler(draft_SG, p_rows, q_rows, np.full(num, length), accept, pick)
    runs = [(*drafts[:j], t) for j in range(length + 1) for t in range(3)]
    counts = np.array([np.sum((accepted == len(r) - 1) & (token == r[-1])) for r in runs])
    law_V = np.array([float(exact.get(r, 0)) for r in runs])
    assert counts.sum() == num
    assert g_test(counts, law_V)[2] > 1e-4
    if length:
        assert len(exact) > 3
        # The same counts against another law must fail, or this test could not.
        assert g_test(counts, np.roll(law_V, 1))[2] < 1e-9


def test_the_block_sampler_differs_from_the_token_sampler():
    p_of, q_of = context_laws(3, 3, least=1), context_laws(3, 4, least=1)
    num = 20_000
    accept, pick, rng = uniforms(5, num, 2)
    draft_SG = rng.integers(0, 3, (num, 2))
    rows = _float_rows(p_of, q_of, draft_SG)
    full = np.full(num, 2)
    one = verify_tokens(draft_SG, *rows, full, accept, pick)[0]
    two = verify_block(draft_SG, *rows, full, accept, pick)[0]
    assert (one != two).any()


def test_one_row_stands_for_all_and_no_drafts_means_a_bonus():
    p = np.array([[[0.5, 0.5], [0.5, 0.5]]])
    q = np.array([[[0.5, 0.5]]])
    draft = np.array([[0], [1], [0]])
    accept, pick = np.full((3, 1), 0.5), np.array([0.1, 0.7, 0.7])
    for sampler in (verify_tokens, verify_block):
        accepted, token = sampler(draft, p, q, np.array([1, 1, 0]), accept, pick)
        assert accepted.tolist() == [1, 1, 0]
        assert token.tolist() == [0, 1, 1]
        none = np.zeros((3, 0))
        accepted, token = sampler(
            none.astype(np.int64), p[:, :1], np.zeros((1, 0, 2)), np.zeros(3, int), none, pick
        )
        assert accepted.tolist() == [0, 0, 0]
        assert token.tolist() == [0, 1, 1]


def test_torch_twin_is_the_same_number_by_number():
    torch = pytest.importorskip("torch")
    from specsim.lossless.rejection_torch import verify_tokens_torch

    rng = np.random.default_rng(11)
    for gamma in (0, 1, 4):
        num, vocabulary = 500, 6
        p = rng.dirichlet(np.full(vocabulary, 0.5), (num, gamma + 1))
        q = rng.dirichlet(np.full(vocabulary, 0.5), (num, gamma))
        q[: num // 4] = p[: num // 4, :gamma]
        draft = rng.integers(0, vocabulary, (num, gamma))
        length = rng.integers(0, gamma + 1, num)
        accept, pick = rng.random((num, gamma)), rng.random(num)
        ours = verify_tokens(draft, p, q, length, accept, pick)
        theirs = verify_tokens_torch(*map(torch.from_numpy, (draft, p, q, length, accept, pick)))
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, two.numpy())
    shared = verify_tokens_torch(
        *map(torch.from_numpy, (draft, p[:1], q[:1], length, accept, pick))
    )
    expected = verify_tokens(draft, p[:1], q[:1], length, accept, pick)
    np.testing.assert_array_equal(expected[1], shared[1].numpy())


def test_a_level_carried_to_the_very_end_falls_on_the_last_token_with_mass():
    torch = pytest.importorskip("torch")
    from specsim.lossless.rejection_torch import verify_tokens_torch

    # Rounding can do what a pick of 1 does here.
    p = np.array([[[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]])
    q = np.array([[[0.25, 0.25, 0.5]]])
    draft, length = np.array([[0], [2]]), np.array([0, 1])
    given = (draft, p, q, length, np.full((2, 1), 0.999), np.ones(2))
    for verify in (verify_tokens, verify_block):
        accepted, token = verify(*given)
        assert accepted.tolist() == [0, 0]
        assert token.tolist() == [1, 1]
    accepted, token = verify_tokens_torch(*map(torch.from_numpy, given))
    assert accepted.tolist() == [0, 0]
    assert token.tolist() == [1, 1]


def test_a_draft_that_the_target_never_says_is_rejected_even_at_a_uniform_of_zero():
    torch = pytest.importorskip("torch")
    from specsim.lossless.rejection_torch import verify_tokens_torch

    p = np.array([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]])
    q = np.array([[[0.25, 0.25, 0.5]]])
    given = (np.array([[2]]), p, q, np.array([1]), np.zeros((1, 1)), np.zeros(1))
    assert verify_tokens(*given)[0].tolist() == [0]
    assert verify_block(*given)[0].tolist() == [0]
    assert verify_tokens_torch(*map(torch.from_numpy, given))[0].tolist() == [0]


@pytest.mark.parametrize("verify", [verify_tokens, verify_block])
def test_a_drafter_that_is_the_target_is_never_rejected(verify):
    rng = np.random.default_rng(17)
    p = rng.dirichlet(np.full(5, 0.7), (1, 4)).repeat(300, axis=0)
    draft = rng.integers(0, 5, (300, 3))
    length = rng.integers(0, 4, 300)
    given = (draft, p, p[:, :3], length, rng.random((300, 3)), rng.random(300))
    assert verify(*given)[0].tolist() == length.tolist()


@pytest.mark.parametrize("verify", [verify_tokens, verify_block])
@pytest.mark.parametrize("count", [2, 3])
def test_blocks_verified_together_end_as_each_alone(verify, count):
    rng = np.random.default_rng(count)
    for _ in range(40):
        p = rng.dirichlet(np.full(4, 0.5), (count, 3))
        q = rng.dirichlet(np.full(4, 0.5), (count, 2))
        draft = rng.integers(0, 4, (count, 2))
        length, accept, pick = rng.integers(0, 3, count), rng.random((count, 2)), rng.random(count)
        given = (draft, p, q, length, accept, pick)
        together = np.stack(verify(*given))
        alone = [np.stack(verify(*(x[i : i + 1] for x in given)))[:, 0] for i in range(count)]
        assert together.T.tolist() == np.array(alone).tolist()


@pytest.mark.parametrize("drafts", [(1, 0), (1, 2), (2, 0), (0, 1)])
def test_drafts_that_the_drafter_never_says_end_as_the_formulas_say(drafts):
    """q = 0 there: a ratio of 1, which for blocks starts the weight anew."""
    p_of = {(): P, (0,): P, (1,): law("3/5", "1/5", "1/5"), (2,): Q}
    q_of = {(): Q, (0,): law("1/2", 0, "1/2"), (1,): law(0, 1, 0), (2,): law(0, "1/2", "1/2")}
    num = 60_000
    accept, pick, _ = uniforms(drafts[0], num, 2)
    draft_SG = np.tile(np.array(drafts), (num, 1))
    given = (draft_SG, *_float_rows(p_of, q_of, draft_SG), np.full(num, 2), accept, pick)
    rows, q_rows = [p_of[()], p_of[drafts[:1]], p_of[drafts[1:]]], [q_of[()], q_of[drafts[:1]]]
    for sampler, rule in ((verify_tokens, TOKEN_RULE), (verify_block, BLOCK_RULE)):
        accepted, token = sampler(*given)
        exact = rule.commit_law(drafts, rows, q_rows)
        runs = [(*drafts[:j], t) for j in range(3) for t in range(3)]
        counts = np.array([np.sum((accepted == len(r) - 1) & (token == r[-1])) for r in runs])
        assert g_test(counts, np.array([float(exact.get(r, 0)) for r in runs]))[2] > 1e-4


def test_block_weights_by_hand():
    """w_1 = (3/10) / (1/2) = 3/5; S_1 over (3/5 Q - P)+ is 0, so one draft alone is never kept."""
    made = BLOCK_RULE.commit_law((1, 0), [P, Q, P], [Q, P])
    # w_2 = 3/5 (1/5) / (1/2) = 6/25: both kept, then p; else the correction of the first: p - q.
    both = Fraction(6, 25)
    assert made == {
        (1, 0, 0): both * P[0],
        (1, 0, 1): both * P[1],
        (1, 0, 2): both * P[2],
        (0,): 1 - both,
    }
    assert BLOCK_RULE.accepts_inner(ONE, ZERO) == 1
    assert BLOCK_RULE.accepts_inner(Fraction(1, 2), Fraction(1, 4)) == Fraction(1, 3)


def test_a_target_sample_is_emitted_whatever_was_drafted():
    assert TARGET_SAMPLE_RULE.commit_law((2,), [P, Q], [Q]) == {
        (0,): P[0],
        (1,): P[1],
        (2, 0): P[2] * Q[0],
        (2, 1): P[2] * Q[1],
        (2, 2): P[2] * Q[2],
    }
    assert expected_accepted({(0,): Fraction(1, 4), (1, 1, 1): Fraction(3, 4)}) == Fraction(3, 2)
    assert total_variation(P, Q) == Fraction(3, 10)
