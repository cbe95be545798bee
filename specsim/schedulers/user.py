"""A scheduler from the user's own file, `kind: my_module:MyScheduler`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from specsim.errors import InputError, in_one_line
from specsim.registry import Config, is_user_kind, load_user_class
from specsim.schedulers.base import Scheduler

MAX_LAG = 64


class UserConfig(Config):
    """Any class with the scheduler protocol, made with `params` as keyword arguments."""

    kind: str = Field(description="my_module:MyScheduler, importable from the working directory")
    params: dict[str, Any] = Field(default_factory=dict, description="keyword arguments")

    @field_validator("kind")
    @classmethod
    def _names_a_class(cls, kind: str) -> str:
        if not is_user_kind(kind):
            raise ValueError(f'"{kind}" is not of the form my_module:MyScheduler')
        return kind

    def module_file(self) -> Path:
        """Return the file that the class comes from, so that a run's hash can cover it.

        Raises:
            InputError: there is no such module.
        """
        name = self.kind.partition(":")[0]
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise InputError(f'cannot find module "{name}" of "{self.kind}"')
        return Path(found.origin)

    def build(self) -> Scheduler:
        """Import the class and make the scheduler.

        Raises:
            InputError: it cannot be imported or made, or lacks a part of the protocol.
        """
        made = load_user_class(self.kind)
        try:
            scheduler = made(**self.params)
            needed = ("plan", "reads", "lag", "lossless")
            missing = [name for name in needed if not hasattr(scheduler, name)]
            read = list(getattr(scheduler, "reads", ()))
        except TypeError as error:
            raise InputError(f'"{self.kind}" cannot be made with params: {error}') from error
        except (Exception, SystemExit) as error:
            raise InputError(
                f'"{self.kind}" fails when it is made: {in_one_line(error)}'
            ) from error
        if not missing and not callable(scheduler.plan):
            missing = ["a callable plan"]
        if missing:
            raise InputError(
                f'"{self.kind}" is no scheduler: it lacks {", ".join(missing)}; see '
                "specsim.schedulers.base.Scheduler"
            )
        lag, lossless = scheduler.lag, scheduler.lossless
        if (
            not all(part in ("live", "lagged", "history", "sampled") for part in read)
            or type(lag) is not int
            or not 0 <= lag <= MAX_LAG
            or ("lagged" in read) != (lag > 0)
        ):
            raise InputError(
                f'"{self.kind}" reads {sorted(map(str, read))} with lag {lag!r}: legal are live, '
                f"lagged, history, sampled, and a lag of 1 to {MAX_LAG} exactly if it reads "
                '"lagged", else of 0'
            )
        if not isinstance(lossless, bool):
            raise InputError(f'"{self.kind}" says lossless is {lossless!r}: legal are True, False')
        checked: Scheduler = scheduler
        return checked
