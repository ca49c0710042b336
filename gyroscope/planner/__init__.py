"""Settings or a model to a plan: norms and rotation, predicted before training."""

from typing import TYPE_CHECKING

from gyroscope._lazy import lazy_names

if TYPE_CHECKING:
    from gyroscope.planner.settings import plan_settings, read_settings

__all__ = ["plan_settings", "read_settings"]
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "gyroscope.planner.settings"))
