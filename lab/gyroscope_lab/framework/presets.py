"""Settings of the papers' own trainings by name, for `gyroscope train --preset` and for experiments of that size.

Each paper's folder has them in `_presets.py`: PRESETS = {"resnet20": {"task": "cifar10", …}, …}, in the words of
`TrainConfig`. The name of a preset is that of the paper and its own: `re/resnet20`.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

PAPERS_WITH_PRESETS = ("re", "sp", "smd", "ct")


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset; ValueError that lists all where there is none of this name."""
    known = presets()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no preset {name!r}; {guess}choose one of {', '.join(known)}")
    return dict(known[name])


def presets() -> dict[str, dict[str, Any]]:
    """All presets by name."""
    modules = {paper: import_module(f"gyroscope_lab.{paper}._presets") for paper in PAPERS_WITH_PRESETS}
    return {
        f"{paper}/{name}": settings for paper, module in modules.items() for name, settings in module.PRESETS.items()
    }
