from __future__ import annotations

import pytest

from specsim.errors import InputError
from specsim.lossless.kinds import factory_of, parse_settings, shipped
from specsim.lossless.notes import rank_disagreement, sts_reordering
from specsim.schedulers import CONFIGS
from specsim.schedulers.static import FixedLength
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
