"""A scheduler from the user's own file, `kind: my_module:MyScheduler`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from specsim.errors import InputError
from specsim.registry import Config, is_user_kind, load_user_class
from specsim.schedulers.base import Scheduler


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

    def build(self) -> Scheduler:
        """Import the class and make the scheduler.

        Raises:
            InputError: it cannot be imported or made, or lacks a part of the protocol.
        """
        made = load_user_class(self.kind)
        try:
            scheduler = made(**self.params)
        except TypeError as error:
            raise InputError(f'"{self.kind}" cannot be made with params: {error}') from error
        needed = ("plan", "reads", "lag", "lossless")
        missing = [name for name in needed if not hasattr(scheduler, name)]
        if missing:
            raise InputError(
                f'"{self.kind}" is no scheduler: it lacks {", ".join(missing)}; see '
                "specsim.schedulers.base.Scheduler"
            )
        unknown = set(scheduler.reads) - {"live", "lagged", "history"}
        if unknown or ("lagged" in scheduler.reads) != (scheduler.lag > 0):
            raise InputError(
                f'"{self.kind}" reads {sorted(scheduler.reads)} with lag {scheduler.lag}: legal '
                'are live, lagged, history, and a lag of at least 1 exactly if it reads "lagged"'
            )
        checked: Scheduler = scheduler
        return checked
