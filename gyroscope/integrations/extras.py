"""Packages that are only needed by those who have them."""

from importlib import import_module
from typing import Any


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package, or say how to get it.

    >>> extra("json", "tensorboard").dumps({})
    '{}'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'gyroscope[{name}]' ({error})") from error
