"""See, predict and steady how fast every neuron of a network turns.

    import gyroscope as gyro

`gyro.theory` predicts from hyper-parameters alone, without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyroscope import theory

__version__ = "0.1.0"
__all__ = ["theory"]

# Name -> (module, attribute in it, or None for the module itself): imported when first asked for, so that theory and
# the planner start fast and never wait for torch.
_LAZY: dict[str, tuple[str, str | None]] = {
    "theory": ("gyroscope.theory", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gyroscope' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
    module, attribute = _LAZY[name]
    value = import_module(module)
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
