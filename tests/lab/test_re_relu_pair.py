"""Two layers around a ReLU: their scales can be traded, and SGD then learns them at other speeds (RE 92, 93)."""

import pytest
import torch
from gyroscope_lab.re import ReluPair


def drawn() -> tuple[ReluPair, torch.Tensor]:
    torch.manual_seed(0)
    pair = ReluPair(*(torch.randn(shape, dtype=torch.float64) for shape in ((5, 5), (5, 5), (1, 5), (1, 5))))
    return pair, torch.randn(7, 5, dtype=torch.float64)


def relative_updates(pair: ReluPair, x: torch.Tensor) -> list[float]:
    """‖ΔW‖/‖W‖ of both weights after a step of SGD on the sum of squared outputs."""
    weights = [tensor.clone().requires_grad_() for tensor in pair]
    before = [weight.detach().clone() for weight in weights]
    ReluPair(*weights)(x).square().sum().backward()
    torch.optim.SGD(weights, lr=1e-3).step()
    return [float((w.detach() - b).norm() / b.norm()) for w, b in list(zip(weights, before, strict=True))[:2]]


def test_the_output_is_that_of_two_torch_layers():
    pair, x = drawn()
    layers = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.ReLU(), torch.nn.Linear(5, 5)).double()
    with torch.no_grad():
        for layer, weight, bias in (
            (layers[0], pair.first, pair.first_bias),
            (layers[2], pair.second, pair.second_bias),
        ):
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias[0])
        torch.testing.assert_close(pair(x), layers(x))


@pytest.mark.parametrize("r", [0.25, 3.0])
def test_rescaling_keeps_the_output_and_moves_learning_between_the_layers(r):
    pair, x = drawn()
    rescaled = pair.rescaled(r)
    torch.testing.assert_close(rescaled(x), pair(x))
    first, second = relative_updates(pair, x)
    assert relative_updates(rescaled, x) == pytest.approx([first / r**2, second * r**2], rel=1e-9)


def test_a_factor_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="r="):
        drawn()[0].rescaled(-1.0)
