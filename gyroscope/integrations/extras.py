"""Optional packages, imported when they are used."""

from importlib import import_module
from typing import Any


class MissingExtraError(ImportError):
    """An optional package is not installed. The message contains the command that installs it."""


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package, or raise `MissingExtraError`.

    >>> extra("json", "tensorboard").dumps({})
    '{}'
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.rpartition(".")[2]
        raise MissingExtraError(f"{package} is not installed: pip install 'gyroscope[{name}]' ({error})") from error
