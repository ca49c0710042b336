"""Predictions of a run's layers: the warmup that is named is enough, and half of it is not."""

import numpy as np
import pytest

from gyroscope.theory import SGDM, AdamW, FixedNorm, Lion, Muon, constant, cosine, forecast
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import MAX_START_ANGLE, InitialLayer, needed_warmups, predict_layers
from gyroscope.theory.rules import lion

RULES = [AdamW(1e-3, 0.1), AdamW(1e-2, 0.5, (0.95, 0.99)), Lion(1e-3, 1.0), Muon(0.02, 0.01), SGDM(0.1, 1e-3, 0.9)]


def layer(norm):
    return InitialLayer("weight", Weights(64.0, 0.5, (16, 64)), norm)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("start", [0.03, 0.1, 0.5, 1.0])
def test_the_needed_warmup_is_the_first_round_one_that_keeps_the_start_below_a_tenth_of_a_radian(rule, start):
    equilibrium = rule.equilibrium(**layer(1.0).known)
    begin = layer(start * float(equilibrium.norm))
    needed = needed_warmups(rule, 3000, [begin])[0]

    def fastest(warmup):
        steps = warmup + round(5 * rule.momentum_memory)
        course = forecast(rule, constant(steps, warmup), norm=begin.norm, **begin.known)
        return course.angular_update.max()

    limit = max(MAX_START_ANGLE, 1.1 * equilibrium.angular_update)
    tried = (0, 10, 20, 50, 100, 200)
    assert needed == next((warmup for warmup in tried if fastest(warmup) <= limit), None)


def test_each_layer_has_its_own_warmup_also_if_a_longer_one_is_not_enough():
    rule = AdamW(1e-2, 0.1)
    norm = float(rule.equilibrium(fan_in=64.0).norm)
    layers = [InitialLayer(str(share), Weights(64.0), share * norm) for share in (0.001, 0.05, 0.2, 2.0)]
    together = needed_warmups(rule, 3000, layers)
    assert together == [needed_warmups(rule, 3000, [each])[0] for each in layers]
    assert together == [None, 50, 10, 0]
    assert needed_warmups(rule, 99, layers[1:2]) == [None]


def test_layers_are_predicted_together_as_they_are_alone():
    rule = AdamW(1e-2, 0.5)
    layers = [InitialLayer(f"layer {norm}", Weights(64.0), norm) for norm in (0.1, 1.0, 3.0)]
    together = predict_layers(rule, constant(500, 20), layers)
    for begin, prediction in zip(layers, together, strict=True):
        alone = predict_layers(rule, constant(500, 20), [begin])[0]
        assert prediction.name == begin.name
        assert prediction.forecast.norm == pytest.approx(alone.forecast.norm)
        assert (prediction.warmup, prediction.settled_at) == (alone.warmup, alone.settled_at)
        assert prediction.fastest[0] == pytest.approx(alone.fastest[0])


def test_a_layer_without_an_input_has_its_equilibrium_and_no_forecast():
    prediction = predict_layers(SGDM(0.1, 1e-3), constant(100), [InitialLayer("weight", Weights(64.0), 1.0)])[0]
    assert prediction.forecast is None
    assert prediction.equilibrium.angular_update > 0
    assert np.isnan(prediction.fastest[0])


def test_a_norm_that_a_falling_equilibrium_passes_by_has_not_settled():
    rule = AdamW(1e-3, 0.1)
    start = layer(0.6 * rule.equilibrium(fan_in=64).norm)
    prediction = predict_layers(rule, cosine(2000), [start])[0]
    assert not prediction.is_longer_than_memory
    assert prediction.forecast.settled_at is not None
    assert prediction.forecast.falls_out_at is not None
    assert (prediction.settled_at, prediction.falls_out_at) == (None, None)


def test_a_held_norm_has_the_memory_of_its_rule():
    rule = AdamW(1e-3, 0.1)
    held = predict_layers(FixedNorm(rule), constant(1000), [layer(0.1)])[0]
    assert held.total_decay == pytest.approx(0.1)
    assert held.is_longer_than_memory
    plain = predict_layers(rule, constant(1000), [layer(0.1)])[0]
    assert not plain.is_longer_than_memory


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.9999, 0.99999), (0.999999, 0.9999999)])
def test_merging_the_terms_of_lions_series_keeps_eight_digits(betas, monkeypatch):
    merged = lion.correlation(*betas)
    monkeypatch.setattr(lion, "_merged", lambda powers, weights: (powers, weights))
    exact = lion.correlation(*betas)
    assert len(merged.powers) <= 2000
    for decay in (0.0, 1e-9, 1e-6, 1e-3, 0.5):
        assert merged.time(decay) == pytest.approx(exact.time(decay), rel=1e-8)
