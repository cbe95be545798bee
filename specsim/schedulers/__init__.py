"""Which drafts a step verifies: one protocol (`base`), one small object a rule."""

from specsim.schedulers.base import BatchView, History, LaggedSurvival, Scheduler, SchedulerFactory
from specsim.schedulers.greedy import GreedyConfig, PatienceConfig
from specsim.schedulers.static import FixedConfig, NoneConfig
from specsim.schedulers.threshold import ThresholdConfig
from specsim.schedulers.topk import AsyncTopKConfig, GlobalConfig, StaleConfig
from specsim.schedulers.user import UserConfig

CONFIGS = (
    NoneConfig,
    FixedConfig,
    ThresholdConfig,
    GreedyConfig,
    PatienceConfig,
    AsyncTopKConfig,
    StaleConfig,
    GlobalConfig,
)
"""Every scheduler that a scenario can name by kind; `UserConfig` takes `module:Class` besides."""

__all__ = [
    "CONFIGS",
    "BatchView",
    "History",
    "LaggedSurvival",
    "Scheduler",
    "SchedulerFactory",
    "UserConfig",
]
