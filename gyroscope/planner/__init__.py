"""Settings or a model to a plan: what a choice of optimizer, learning rate, weight decay and schedule will do."""

from typing import TYPE_CHECKING

from gyroscope._lazy import lazy_names

if TYPE_CHECKING:
    from gyroscope.planner.run_plan import Plan
    from gyroscope.planner.settings import PlanSettings, plan_settings, read_config, read_settings

__all__ = ["Plan", "PlanSettings", "plan_settings", "read_config", "read_settings"]

SETTINGS = "gyroscope.planner.settings"
__getattr__ = lazy_names(__name__, {"Plan": "gyroscope.planner.run_plan", **dict.fromkeys(__all__[1:], SETTINGS)})
