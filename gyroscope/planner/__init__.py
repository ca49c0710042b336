"""Settings or a model to a plan: what a choice of optimizer, learning rate, weight decay and schedule will do."""

from gyroscope.planner.run_plan import Plan
from gyroscope.planner.settings import PlanSettings, plan_settings, read_config, read_settings

__all__ = ["Plan", "PlanSettings", "plan_settings", "read_config", "read_settings"]
