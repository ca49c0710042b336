"""Optimizers by the names of their package and class, because nothing is imported to recognise them."""

from typing import Any


def named(name: str, package: str = "gyroscope", **attributes: Any) -> Any:
    """Return an object whose class has that name and is defined in that package."""
    return type(name, (), {"__module__": f"{package}.somewhere", **attributes})()
