"""Runs that several files look at and none changes."""

import pytest

from tests.render import make

STORIES = {"healthy": make.healthy, "imbalanced": make.imbalanced, "fell_out": make.fell_out}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A directory with a run of each story."""
    folder = tmp_path_factory.mktemp("stories")
    for i, (name, story) in enumerate(STORIES.items()):
        make.run_at(folder / name, story(), seed=i)
    return folder


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    """An imbalanced run of two layers and thirty samples."""
    return make.run_at(tmp_path_factory.mktemp("small") / "small", make.imbalanced(**make.SMALL))
