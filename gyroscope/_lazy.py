"""Names of a package that are imported at first use, so that commands start fast."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, given the module of each name.

    >>> lazy_names("gyroscope.report", {"gather": "gyroscope.report.run_gather"})("gather").__name__
    'gather'
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return find
