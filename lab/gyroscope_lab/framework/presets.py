"""Settings of the papers' own trainings by name, for `gyroscope train --preset` and for experiments of that size.

Each paper's folder has them in `_presets.py`: PRESETS = {"resnet20": {"task": "cifar10", …}, …}, as settings of
`TrainConfig`. The name of a preset begins with the paper: `re/resnet20`.
"""

from importlib import import_module
from typing import Any

from gyroscope.spelling import one_of

PAPERS_WITH_PRESETS = ("re", "sp", "smd", "ct")


def preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset, or raise a ValueError that names the nearest ones."""
    known = presets()
    return dict(known[one_of("preset", name, known)])


def presets() -> dict[str, dict[str, Any]]:
    """Return all presets by name."""
    modules = {paper: import_module(f"gyroscope_lab.{paper}._presets") for paper in PAPERS_WITH_PRESETS}
    return {
        f"{paper}/{name}": settings for paper, module in modules.items() for name, settings in module.PRESETS.items()
    }
