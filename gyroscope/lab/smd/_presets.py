"""The paper's own training settings (Spherical Motion Dynamics, section 5), in the words of `TrainConfig`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {}
