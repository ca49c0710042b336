"""Measure, predict and control how fast every neuron of a network rotates.

    import gyroscope as gyro

`gyro.theory` predicts rotation from hyper-parameters alone, without torch. `gyro.plan` predicts it for a model.
`gyro.Tracker` measures a training run, and `gyro.store.open_run` reads the run. `gyro.autopsy` reads a checkpoint.
`gyro.optim` controls rotation. `gyro.probe` finds the scale-invariant weights of a model, and `gyro.param_groups` sorts
its parameters into groups.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyroscope import advice, measure, nn, optim, store, theory
    from gyroscope.checkpoint.checkpoint_autopsy import autopsy
    from gyroscope.measure.tracker import Tracker
    from gyroscope.model.groups import param_groups
    from gyroscope.model.invariance_probe import probe
    from gyroscope.optim.torch_rules import rule_of
    from gyroscope.planner.model_plan import plan
    from gyroscope.planner.transfer_optimizer import transfer

__version__ = "0.1.0"
__all__ = [
    "Tracker",
    "advice",
    "autopsy",
    "measure",
    "nn",
    "optim",
    "param_groups",
    "plan",
    "probe",
    "rule_of",
    "store",
    "theory",
    "transfer",
]

# Name -> (module, attribute in it, or None for the module itself). Imported at first use, so that theory and the
# planner start fast and never wait for torch.
_LAZY: dict[str, tuple[str, str | None]] = {
    "Tracker": ("gyroscope.measure.tracker", "Tracker"),
    "autopsy": ("gyroscope.checkpoint.checkpoint_autopsy", "autopsy"),
    "nn": ("gyroscope.nn", None),
    "optim": ("gyroscope.optim", None),
    "param_groups": ("gyroscope.model.groups", "param_groups"),
    "plan": ("gyroscope.planner.model_plan", "plan"),
    "probe": ("gyroscope.model.invariance_probe", "probe"),
    "rule_of": ("gyroscope.optim.torch_rules", "rule_of"),
    "store": ("gyroscope.store", None),
    "theory": ("gyroscope.theory", None),
    "transfer": ("gyroscope.planner.transfer_optimizer", "transfer"),
    "measure": ("gyroscope.measure", None),
    "advice": ("gyroscope.advice", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gyroscope' has no attribute {name!r}. It has {', '.join(sorted(__all__))}")
    module, attribute = _LAZY[name]
    value = import_module(module)
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
