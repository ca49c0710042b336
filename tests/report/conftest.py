"""The runs that the tests of pages look at, for the tests of their data too."""

from tests.render.conftest import path, runs

__all__ = ["path", "runs"]
