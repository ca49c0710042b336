"""The papers, one file per figure, table or theorem: what it claims, and what is measured here.

    gyroscope lab list
    gyroscope lab run smd/fig4
    gyroscope lab show smd/fig4

An experiment is a module `gyroscope_lab/<paper>/<name>.py`. Its id is `<paper>/<name>`. Two experiments that differ
only in their settings share a module, which has both names. The papers are `re` (Rotational Equilibrium), `smd`
(Spherical Motion Dynamics), `sp` (Spherical Perspective), `ct` (Continuous-Time Adam) and `beyond`. `remedies` tries
the remedies of `gyroscope.advice` on real training, `sentences` what is said at the head of plans and reports, and
`speed` whether rotation shows a learning rate that is too low or too high.

Training by name is `gyroscope_lab.train(gyroscope_lab.TrainConfig(task="digits", epochs=5))`, or `gyroscope train`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["TrainConfig", "TrainResult", "train"]


def __getattr__(name: str) -> Any:
    # On demand: a list of experiments does without torch.
    if name not in __all__:
        raise AttributeError(f"module 'gyroscope_lab' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module("gyroscope_lab.training"), name)
