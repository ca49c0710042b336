"""Experiments on the papers' claims: one file per figure, table or theorem, with the measured numbers.

    gyroscope lab list
    gyroscope lab run smd/fig4
    gyroscope lab show smd/fig4

An experiment is a module `gyroscope_lab/<paper>/<name>.py`. Its id is `<paper>/<name>`. Two experiments that differ
only in their settings share a module, which has both names. The papers are `re` (Rotational Equilibrium), `smd`
(Spherical Motion Dynamics), `sp` (Spherical Perspective), `ct` (Continuous-Time Adam) and `beyond`. `remedies` tests
the remedies of `gyroscope.advice` on real training. `sentences` tests the summaries of plans and reports. `speed` tests
whether rotation shows a learning rate that is too low or too high. `transfer` tests rules for other batches, run
lengths, widths and optimizers.

To train a network, call `gyroscope_lab.train(gyroscope_lab.TrainConfig(task="digits", epochs=5))` or run
`gyroscope train`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["TrainConfig", "TrainResult", "train"]


def __getattr__(name: str) -> Any:
    # On demand, because a list of experiments does not need torch.
    if name not in __all__:
        raise AttributeError(f"module 'gyroscope_lab' has no attribute {name!r}. It has {', '.join(__all__)}")
    return getattr(import_module("gyroscope_lab.training"), name)
