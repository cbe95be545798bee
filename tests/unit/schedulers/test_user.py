"""A scheduler in the user's own file: whatever it does wrong is said in one line."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from specsim.errors import InputError, SchedulerFault
from specsim.registry import load_user_class
from specsim.schedulers.base import (
    BatchView,
    StepOutcome,
    checked_observe,
    checked_plan,
)
from specsim.schedulers.user import UserConfig


class Base:
    reads = frozenset({"live"})
    lag = 0
    lossless = True

    def plan(self, view):
        return np.zeros(view.num_requests, np.int64)


def _fails(error):
    def method(self, *args):
        raise error

    return method


@pytest.fixture
def make(monkeypatch):
    """Put a class with the given parts into a module and return the config that names it."""

    def make(**parts):
        module = types.ModuleType("own_schedulers")
        module.Own = type("Own", (Base,), parts)
        monkeypatch.setitem(sys.modules, "own_schedulers", module)
        return UserConfig(kind="own_schedulers:Own")

    return make


WRONG = {
    "reads of another type": {"reads": 5},
    "reads that are no names": {"reads": {("a",): 1, 3: 2}},
    "reads of the oracle": {"reads": {"oracle"}},
    "a lag that is text": {"reads": {"lagged"}, "lag": "2"},
    "a lag that is a fraction": {"reads": {"lagged"}, "lag": 1.5},
    "a lag of one too many": {"reads": {"lagged"}, "lag": 65},
    "a lag that no memory holds": {"reads": {"lagged"}, "lag": 10**12},
    "a lag without reading it": {"lag": 1},
    "a lossless that is text": {"lossless": "maybe"},
    "a plan that is a number": {"plan": 3},
    "a property that raises": {"reads": property(_fails(ValueError("x")))},
    "a constructor that raises": {"__init__": _fails(KeyError("x"))},
    "a constructor that exits": {"__init__": _fails(SystemExit(0))},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_scheduler_is_refused_when_it_is_made(make, name) -> None:
    with pytest.raises(InputError, match="own_schedulers:Own"):
        make(**WRONG[name]).build()


def test_a_right_one_is_made(make) -> None:
    assert make(reads=["live", "lagged"], lag=64).build().lag == 64


@pytest.mark.parametrize("text", ["x = (", "raise ValueError('two\\nlines')", "raise SystemExit"])
def test_a_module_that_fails_is_named_in_one_line(tmp_path, monkeypatch, text) -> None:
    (tmp_path / "own_broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"own_broken.*fails when it is imported") as caught:
        load_user_class("own_broken:Own")
    assert "\n" not in str(caught.value)


def _view() -> BatchView:
    return BatchView(
        step=7,
        gamma=2,
        request_id_R=np.arange(3),
        base_tokens=3,
        verify_s_B=np.ones(10),
        fixed_s=0.0,
    )


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), SystemExit(3), RecursionError()])
def test_what_plan_or_observe_raises_is_a_fault_with_its_step(error) -> None:
    own = type("Own", (Base,), {"plan": _fails(error), "observe": _fails(error)})()
    none_R = np.zeros(3, np.int64)
    outcome = StepOutcome(7, np.arange(3), none_R, none_R, 0.1)
    for call in (lambda: checked_plan(own, _view()), lambda: checked_observe(own, outcome)):
        with pytest.raises(SchedulerFault, match=r"step 7: Own\.(plan|observe) raised") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "test_user.py" in str(caught.value)


def test_an_interrupt_is_no_fault_of_the_scheduler() -> None:
    own = type("Own", (Base,), {"plan": _fails(KeyboardInterrupt())})()
    with pytest.raises(KeyboardInterrupt):
        checked_plan(own, _view())


def test_the_file_of_a_users_class_is_found(tmp_path, monkeypatch):
    (tmp_path / "lone_policy.py").write_text("class Mine: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert UserConfig(kind="lone_policy:Mine").module_file() == tmp_path / "lone_policy.py"
    (tmp_path / "no_file").mkdir()  # a package without a file of its own
    for name in ("no_such_policy", "no_file"):
        with pytest.raises(InputError, match=f'cannot find module "{name}" of "{name}:Mine"'):
            UserConfig(kind=f"{name}:Mine").module_file()
