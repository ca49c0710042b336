"""Settings or a model to a plan: what a choice of optimizer, learning rate, weight decay and schedule will do."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyroscope.planner.run_plan import Plan
    from gyroscope.planner.settings import PlanSettings, plan_settings, read_config, read_settings

__all__ = ["Plan", "PlanSettings", "plan_settings", "read_config", "read_settings"]


def __getattr__(name: str) -> Any:
    """Import the plan when it is first asked for: `transfer` and `convert` start without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gyroscope.planner import run_plan, settings

    return getattr(run_plan if name == "Plan" else settings, name)
