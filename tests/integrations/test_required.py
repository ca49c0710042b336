"""The gate has every library for which there is an adapter; elsewhere the tests of a missing one are skipped."""

import os
from importlib.util import find_spec

import pytest

LIBRARIES = ("lightning", "transformers", "accelerate", "tensorboard", "wandb", "trackio", "timm")


@pytest.mark.skipif("GYROSCOPE_REQUIRE_INTEGRATIONS" not in os.environ, reason="only the gate requires all libraries")
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gate_has_the_library(library):
    assert find_spec(library) is not None, f"{library} is not installed: `make` installs it"
