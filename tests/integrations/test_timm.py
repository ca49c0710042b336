"""timm makes our optimizers by name. It needs the torchvision that belongs to the torch; without it this is skipped."""

import pytest
import torch
from torch import nn

from gyroscope import optim


@pytest.fixture(scope="module")
def factory():
    reason = "timm is not installed, or its torchvision does not fit this torch: pip install 'gyroscope[timm]'"
    # Not only ImportError: a torchvision that does not fit raises RuntimeError when it is imported.
    try:
        import timm.optim
    except (ImportError, RuntimeError):
        pytest.skip(reason)
    from gyroscope.integrations.timm import register_timm

    register_timm()
    return timm.optim.create_optimizer_v2


@pytest.mark.parametrize("name", [name for name in optim.names() if name != "lion"])
def test_timm_makes_our_optimizers_by_name(factory, name):
    from gyroscope.integrations.timm import group_fn

    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    optimizer = factory(model, name, lr=1e-3, weight_decay=0.1, param_group_fn=group_fn(0.1))
    assert type(optimizer).__name__.lower() == name.replace("-", "")
    turning = [n for group in optimizer.param_groups if group["granularity"] != "none" for n in group["param_names"]]
    assert turning == ["1.weight"]
    model(torch.tensor([1])).sum().backward()
    optimizer.step()


def test_a_name_of_timms_own_stays_timms(factory):
    from gyroscope.integrations.timm import register_timm

    assert register_timm() == []
    assert not isinstance(factory(nn.Linear(4, 4), "lion", lr=1e-3), optim.Lion)
