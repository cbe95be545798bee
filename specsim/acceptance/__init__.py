"""How many drafts are accepted, and how confident the drafter is."""

from __future__ import annotations

from specsim.acceptance.parametric import ParametricConfig
from specsim.acceptance.replay import TraceConfig
from specsim.registry import Config

CONFIGS: tuple[type[Config], ...] = (TraceConfig, ParametricConfig)
"""What a scenario can name as its source of acceptances."""
