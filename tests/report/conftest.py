"""The run that the tests of pages look at, for the tests of their data too."""

from tests.render.conftest import path

__all__ = ["path"]
