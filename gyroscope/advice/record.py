"""What a diagnosis reads: a run's series and configuration, and ratios with gaps and infinities left out."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, Protocol

import numpy as np

from gyroscope._types import Array, Int64
from gyroscope.theory.law import safe_divide


class Record(Protocol):
    """A run as measured: `gyroscope.store.Run` is one. It may also have `status`, `raw` and `scalars`."""

    @property
    def layers(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def steps(self) -> Int64: ...  # noqa: D102
    @property
    def quantities(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def config(self) -> Mapping[str, Any]: ...  # noqa: D102

    def series(self, layer: str, quantity: str, stat: str = "mean") -> Array:
        """Return a statistic over the layer's vectors at each of `steps`. NaN if there is no value."""

    def layer(self, name: str) -> Any:
        """Return what is known about a layer: shape, vectors, fan_in and group."""


def group_config(config: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return what the configuration of a run contains about a parameter group, empty if nothing."""
    groups = config.get("groups")
    group = groups[number] if isinstance(groups, Sequence) and 0 <= number < len(groups) else None
    return group if isinstance(group, Mapping) else {}


def finite_ratio(numerator: Array, denominator: Array) -> Array:
    """Return a quotient, NaN where it is not finite."""
    ratio = safe_divide(numerator, denominator)
    return np.where(np.isfinite(ratio), ratio, nan)


def positive_ratio(numerator: Array, denominator: Array) -> Array:
    """Return a quotient, NaN where it is not finite or not above 0."""
    ratio = finite_ratio(numerator, denominator)
    return np.where(ratio > 0, ratio, nan)
