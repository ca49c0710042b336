"""Gradients are measured as a loop of one's own would measure them, and the model is left as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from gyroscope.model.gradients import gradients, preserved, unit_grad_norms
from gyroscope.model.selection import select


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False), nn.Dropout(0.5))


def loss(model):
    return model(torch.randn(16, 6)).square().mean()


def disturb(model):
    with preserved(model):
        model.eval()
        loss(model).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        np.random.rand()  # noqa: NPY002
        random.random()
        raise ZeroDivisionError


def test_norms_of_gradients_times_weights_are_an_rms_over_batches_for_each_vector():
    model = network()
    weights = select(model)
    torch.manual_seed(1)
    measured = unit_grad_norms(model, loss, weights, batches=3)
    torch.manual_seed(1)
    squares: dict = dict.fromkeys(measured, 0.0)
    for _ in range(3):
        model.zero_grad()
        loss(model).backward()
        for weight in weights:
            product = weight.parameter.grad.norm(dim=1) * weight.parameter.detach().norm(dim=1)
            squares[weight.name] += product.double().square() / 3
    assert set(measured) == {"0.weight", "2.weight"}
    for name, square in squares.items():
        torch.testing.assert_close(measured[name], square.sqrt(), rtol=1e-6, atol=0)


def test_a_weight_without_gradient_has_zeros():
    model = network()
    model.unused = nn.Linear(2, 2, bias=False)
    norms = unit_grad_norms(model, lambda model: loss(model[:4]), select(model), batches=1)
    assert norms["unused.weight"].tolist() == [0.0, 0.0]


def test_a_model_is_preserved_bit_for_bit_with_gradients_modes_and_random_states_also_after_an_error():
    model = network()
    loss(model).backward()
    grads = [p.grad for p in model.parameters()]
    values = copy.deepcopy([grad for grad in grads if grad is not None])
    before = copy.deepcopy(model.state_dict())
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    with pytest.raises(ZeroDivisionError):
        disturb(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, [g for g in grads if g is not None], strict=True))
    assert model.training
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert states[2] == random.getstate()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda model: 1.0, r"loss\(model\) gave 1\.0\. It must be a scalar tensor"),
        (lambda model: model(torch.randn(4, 6)), "must be a scalar tensor that depends on the parameters"),
        (lambda model: torch.tensor(1.0), "must be a scalar tensor that depends on the parameters"),
        (lambda model: loss(model) * torch.inf, r"loss\(model\) gave inf: pass a model whose loss is finite"),
    ],
)
def test_a_loss_that_cannot_be_measured_is_quoted(bad, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        gradients(model, bad, list(model.parameters()))
