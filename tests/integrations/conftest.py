"""timm for the tests, on machines whose torch has no torchvision that would load."""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

# What `import timm.optim` imports of torchvision on its way through timm's models and data sets.
IMPORTED = [
    "torchvision",
    "torchvision.datasets",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
]


class NameOnly(type):
    """A class of nothing: its attributes are their own names, as those of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class StandIn(ModuleType):
    """A module that has a class for every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NameOnly(name, (), {})


def stand_in_for_torchvision() -> None:
    """Put nothing behind torchvision's names, if torchvision cannot be imported."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # RuntimeError: operators that are missing
        for name in IMPORTED:
            sys.modules[name] = StandIn(name)
            package, _, module = name.rpartition(".")
            if package:
                setattr(sys.modules[package], module, sys.modules[name])


@pytest.fixture(scope="module")
def timm():
    """The real timm, with nothing behind torchvision's names where torchvision cannot be imported.

    timm's optimizers need no torchvision, but `import timm.optim` imports all of timm. A torchvision belongs to one
    build of torch, and for the torch that is pinned here there may be none, or one whose operators do not load. The
    package itself never does this. Afterwards both are forgotten, for transformers and Lightning ask for them too.
    """
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install --no-deps timm")
    before = dict(sys.modules)
    stand_in_for_torchvision()
    try:
        import timm
        import timm.optim

        yield timm
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})
