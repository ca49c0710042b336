"""Optional packages, imported when they are used."""

from importlib import import_module
from typing import Any


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package; `ImportError` says how to install it.

    >>> extra("json", "tensorboard").dumps({})
    '{}'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'gyroscope[{name}]' ({error})") from error
