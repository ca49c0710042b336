"""The names that users import, and how they come."""

import subprocess
import sys

import pytest

import gyroscope as gyro


@pytest.mark.parametrize("name", gyro.__all__)
def test_every_public_name_is_there(name):
    assert getattr(gyro, name) is not None
    assert name in dir(gyro)


def test_an_unknown_name_is_told_with_those_that_are_known():
    with pytest.raises(AttributeError, match=r"no attribute 'optimizer'.*optim"):
        _ = gyro.optimizer


def test_nothing_is_imported_before_it_is_asked_for():
    check = "import gyroscope, sys; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
