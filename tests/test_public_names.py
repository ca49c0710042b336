"""The names that users import, and when they are imported."""

import subprocess
import sys

import pytest

import gyroscope as gyro


@pytest.mark.parametrize("name", gyro.__all__)
def test_every_public_name_is_there(name):
    assert getattr(gyro, name) is not None
    assert name in dir(gyro)


def test_the_error_for_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'optimizer'.*optim"):
        _ = gyro.optimizer


def test_nothing_is_imported_before_its_first_use():
    check = "import gyroscope, sys; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
