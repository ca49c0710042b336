"""The paper's own training settings (Continuous-Time Adam, Appendix H), in the words of `TrainConfig`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {}
