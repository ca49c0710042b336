"""The paper's own training settings (Spherical Perspective, Tables 3 and 4), in the words of `TrainConfig`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {}
