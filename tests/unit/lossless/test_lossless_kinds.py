from __future__ import annotations

import pytest

from specsim.errors import InputError
from specsim.lossless.kinds import VARIANTS, factory_of, parse_settings, shipped
from specsim.lossless.notes import rank_disagreement, sts_reordering
from specsim.schedulers import CONFIGS
from specsim.schedulers.greedy import PatientGreedy
from specsim.schedulers.per_request import FixedBudget, Tetris
from specsim.schedulers.static import FixedLength
from specsim.schedulers.threshold import Threshold
from specsim.schedulers.topk import AsyncTopK


def test_kinds_and_settings():
    assert factory_of("async_topk", ("lag=1",))() == AsyncTopK(1)
    assert factory_of("fixed")() == FixedLength(2)
    assert factory_of("fixed", ("k=5",))() == FixedLength(5)
    assert factory_of("threshold", ("threshold=0.25", "on=cumulative"))().threshold == 0.25
    assert parse_settings(("a=1", "b=x", "c=0.5", "d=true")) == {
        "a": 1,
        "b": "x",
        "c": 0.5,
        "d": True,
    }


@pytest.mark.parametrize(
    ("what", "settings", "message"),
    [
        ("async_topkk", (), 'no scheduler or group "async_topkk"; did you mean "async_topk"'),
        ("async_topk", ("lag=0",), "async_topk: lag: .*greater than or equal to 1"),
        ("async_topk", ("lagg=1",), r"async_topk: lagg: .*\(parameters: lag\)"),
        ("none", ("k=1",), r"\(parameters: none\)"),
        ("fixed", ("k",), '--set "k" is not of the form name=value'),
        ("fixed", ("=1",), "not of the form"),
        ("fixed", ("k=1", "k=2"), 'names "k" twice'),
        ("no_module:Thing", (), 'cannot import module "no_module"'),
    ],
)
def test_mistakes_are_named(what, settings, message):
    with pytest.raises(InputError, match=message):
        factory_of(what, settings)


def test_every_shipped_kind_is_tried():
    names = [name for name, _ in shipped()]
    kinds = {config.model_fields["kind"].annotation.__args__[0] for config in CONFIGS}
    assert {name.split()[0] for name in names} == kinds - {"oracle"}
    assert len(names) == len(set(names))


def test_temperatures_by_position_swap_two_requests():
    found = sts_reordering()
    assert found.before == (pytest.approx(0.45), pytest.approx(0.475))
    assert found.after[0] == pytest.approx(0.45)
    assert found.after[1] == pytest.approx(0.407, abs=5e-4)
    assert not found.preserved


def test_ranks_that_see_slightly_other_confidences_disagree():
    ours, theirs = rank_disagreement()
    assert sum(ours) == sum(theirs)
    assert ours != theirs
    assert rank_disagreement(shift=0.0)[0] == rank_disagreement(shift=0.0)[1]
    # Lengths that read no confidence cannot disagree.
    same = rank_disagreement(FixedLength(2))
    assert same[0] == same[1]


def test_kinds_without_defaults_are_judged_in_a_form_that_matters():
    """Long enough to have something to cut, short enough that two requests compete."""
    assert factory_of("threshold")() == Threshold(0.5, "conditional")
    assert factory_of("batch_table")().ranges == ((1, 1, 2), (2, 64, 1))
    assert factory_of("tetris")() == FixedBudget(1)
    assert factory_of("tetris", ("score=sampled", "k=3"))() == Tetris(3)
    for kind in ("calibrated", "gated"):
        scheduler = factory_of(kind)()
        assert scheduler.inner == AsyncTopK(1)
        assert scheduler.lossless
    made = [
        factory_of(kind, tuple(f"{k}={v}" for k, v in more.items()))() for kind, more in VARIANTS
    ]
    assert {s.lag for s in made if isinstance(s, PatientGreedy)} == {0, 1}
    assert {s.lag for s in made if isinstance(s, AsyncTopK)} == {1, 2}


def test_values_are_numbers_truths_or_words():
    found = parse_settings(("a=0", "b=-2", "c=1e-3", "d=false", "e=", "f=x=y"))
    assert found == {"a": 0, "b": -2, "c": 1e-3, "d": False, "e": "", "f": "x=y"}
    assert isinstance(found["a"], int)
    assert parse_settings(()) == {}
