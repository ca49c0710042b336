"""Marks of tests that need something that the oldest supported torch lacks."""

from collections.abc import Iterable

import pytest
import torch

needs_muon = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason=f"torch {torch.__version__} has no torch.optim.Muon"
)


def muon_for(needing: str, values: Iterable[str]) -> list:
    """Return the values as parameters of a test, of which one needs Muon."""
    return [pytest.param(value, marks=needs_muon) if value == needing else value for value in values]
