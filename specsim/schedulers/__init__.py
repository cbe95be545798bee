"""Which drafts a step verifies: one protocol (`base`), one small object a rule."""

from specsim.schedulers.bandit import BanditConfig
from specsim.schedulers.base import BatchView, History, LaggedSurvival, Scheduler, SchedulerFactory
from specsim.schedulers.engines import SglangConfig, TrtllmConfig, VllmConfig
from specsim.schedulers.feedback import AdaptiveStepsConfig, GoodputConfig
from specsim.schedulers.greedy import GreedyConfig, PatienceConfig
from specsim.schedulers.guarded import (
    DCutConfig,
    MinimumGainConfig,
    TierAwareConfig,
    UniformConfig,
)
from specsim.schedulers.lookahead import LookaheadConfig
from specsim.schedulers.oracle import OptimalConfig, OracleConfig
from specsim.schedulers.per_request import SpecDecPlusConfig, TetrisConfig
from specsim.schedulers.static import FixedConfig, NoneConfig
from specsim.schedulers.tables import BatchTableConfig
from specsim.schedulers.threshold import ThresholdConfig
from specsim.schedulers.topk import AsyncTopKConfig, GlobalConfig, StaleConfig
from specsim.schedulers.user import UserConfig
from specsim.schedulers.wrapped import CalibratedConfig, GatedConfig

CONFIGS = (
    NoneConfig,
    FixedConfig,
    ThresholdConfig,
    GreedyConfig,
    PatienceConfig,
    AsyncTopKConfig,
    StaleConfig,
    GlobalConfig,
    BatchTableConfig,
    GoodputConfig,
    AdaptiveStepsConfig,
    BanditConfig,
    SpecDecPlusConfig,
    TetrisConfig,
    DCutConfig,
    UniformConfig,
    MinimumGainConfig,
    TierAwareConfig,
    VllmConfig,
    SglangConfig,
    TrtllmConfig,
    LookaheadConfig,
    CalibratedConfig,
    GatedConfig,
    OptimalConfig,
    OracleConfig,
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
