"""Forecasts followed from sample to sample equal forecasts made at once."""

from dataclasses import replace

import numpy as np
import pytest

from gyroscope.measure._pipeline.optimizers import GroupRule
from gyroscope.measure._pipeline.prediction import Forecaster, LayerState, StepRates
from gyroscope.theory import SGDM, SGDMRT, AdamL2, AdamSRT, AdamW, Hyperball, Lion, Muon, Rule, forecast

LAYERS = [
    LayerState("a", fan_in=64, shape=(16, 64), norm=1.0, unit_grad_norm=0.3),
    LayerState("b", fan_in=256, shape=(8, 256), norm=2.0, unit_grad_norm=0.7),
]
RULES = [
    SGDM(0.1, 5e-3, 0.9),
    SGDM(0.1, 5e-3, 0.9, nesterov=True),
    AdamW(1e-2, 0.5),
    AdamL2(1e-2, 1e-2),
    Lion(1e-3, 1.0),
]


def of(rule, norms_kept=False, **options):
    return GroupRule.of(rule, options, norms_kept)


def followed(rule, group=None, counts=(1, 3, 10, 300), lrs=None, layers=LAYERS):
    """Predictions after each of `counts` steps, and the learning rates used."""
    forecaster, found, step = Forecaster(), [], 0
    for count in counts:
        rates = [StepRates(lrs[step + i] if lrs is not None else rule.lr, rule.weight_decay) for i in range(count)]
        found.append(forecaster.predict(of(rule, **(group or {})), rates, layers))
        step += count
    return found


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_forecast_in_parts_is_the_forecast_in_one(rule):
    lrs = rule.lr * np.linspace(1, 0.1, 314)
    found = followed(rule, lrs=lrs.tolist())
    for number, layer in enumerate(LAYERS):
        expected = forecast(
            rule, list(lrs / rule.lr), norm=layer.norm, fan_in=layer.fan_in, unit_grad_norm=layer.unit_grad_norm
        )
        for step, predicted in zip((0, 3, 13, 313), found, strict=True):
            one = predicted["ab"[number]]
            assert one.forecast_norm == pytest.approx(expected.norm[step], rel=1e-6)
            assert one.forecast_angular_update == pytest.approx(expected.angular_update[step], rel=1e-6)
            equal = expected.equilibrium_angular_update[step], expected.equilibrium_norm[step]
            assert found[-1]["ab"[number]].predicted_timescale > 0
            if step == 0:
                assert (one.predicted_angular_update, one.predicted_norm) == pytest.approx(equal, rel=1e-9)


def test_dampening_is_a_smaller_learning_rate():
    damped = followed(SGDM(0.05, 5e-3, 0.9), {"lr": 0.1, "dampening": 0.5}, lrs=[0.1] * 314)
    plain = followed(SGDM(0.05, 5e-3, 0.9), lrs=[0.05] * 314)
    assert damped[-1]["a"] == plain[-1]["a"]


def test_muon_is_predicted_for_the_matrix_and_told_per_vector():
    rule, layer = Muon(1e-2, 0.1), LayerState("m", 64, (32, 64), 0.5, 1.0)
    found = followed(rule, layers=[layer], counts=(1, 50))
    whole = forecast(rule, steps=51, norm=0.5 * 32**0.5, shape=(32, 64))
    assert found[-1]["m"].forecast_norm == pytest.approx(whole.norm[-1] / 32**0.5, rel=1e-9)
    assert found[-1]["m"].predicted_norm == pytest.approx(rule.equilibrium(shape=(32, 64)).norm / 32**0.5, rel=1e-9)


def test_where_norms_are_held_a_layer_is_where_it_stays():
    forecaster = Forecaster()
    rule = AdamW(1e-3, 0.1)
    first = forecaster.predict(of(rule, norms_kept=True), [StepRates(1e-3, 0.1)], LAYERS)["a"]
    later = forecaster.predict(of(rule, norms_kept=True), [StepRates(1e-3, 0.1, 10)], [replace(LAYERS[0], norm=1.001)])[
        "a"
    ]
    assert (first.predicted_norm, first.forecast_norm, later.predicted_norm) == (1.0, 1.0, 1.0)
    eta_r = np.arctan(rule.equilibrium(leading_order=True).angular_update)
    assert (first.predicted_angular_update, first.forecast_angular_update) == (eta_r, eta_r)


def test_a_rule_without_decay_or_gradient_is_no_obstacle():
    found = Forecaster().predict(of(Hyperball(0.01), norms_kept=True), [StepRates(0.01, 0.0)], LAYERS)["a"]
    assert found.predicted_angular_update == pytest.approx(np.arctan(0.01))
    silent = [replace(layer, unit_grad_norm=0.0) for layer in LAYERS]
    without = Forecaster().predict(of(SGDM(0.1, 5e-3, 0.9)), [StepRates(0.1, 5e-3)], silent)["a"]
    assert np.isnan(without.predicted_norm)
    assert without.predicted_angular_update > 0


def test_a_gradient_that_fails_once_does_not_end_the_forecast():
    forecaster, rule = Forecaster(), SGDM(0.1, 5e-3, 0.9)
    for gradient in (0.3, 0.0, float("nan"), 0.3):
        layer = replace(LAYERS[0], unit_grad_norm=gradient)
        found = forecaster.predict(of(rule), [StepRates(0.1, 5e-3, 10)], [layer])["a"]
    assert found.forecast_norm > 0


def test_a_new_rule_goes_on_from_the_same_norm():
    forecaster = Forecaster()
    before = forecaster.predict(of(AdamW(1e-2, 0.5)), [StepRates(1e-2, 0.5)], LAYERS)["a"]
    for rule in (AdamW(1e-2, 0.5, (0.8, 0.99)), Lion(1e-2, 0.5)):
        after = forecaster.predict(of(rule), [StepRates(1e-2, 0.5)], LAYERS)["a"]
        assert after.forecast_norm == pytest.approx(before.forecast_norm, rel=0.05)


@pytest.mark.parametrize("rule", [*RULES, AdamSRT(1e-2, 1e-2), SGDMRT(0.1, 5e-3), Rule(1e-2, 5.0, 1e-2)], ids=repr)
def test_a_forecast_that_begins_in_mid_run_goes_on_as_one_from_the_start_would(rule):
    rates = [StepRates(rule.lr if rule.has_weight_decay else 1.0, rule.weight_decay, 700)]
    step = [rates[0]._replace(steps=1)]
    whole = Forecaster()
    whole.predict(of(rule), step, LAYERS)
    before = whole.predict(of(rule), rates, LAYERS)
    resumed = Forecaster()
    states = [replace(layer, norm=before[layer.name].forecast_norm, had_momentum=True) for layer in LAYERS]
    for count in (1, 5, 20, 100):
        expected = whole.predict(of(rule), [step[0]._replace(steps=count)], LAYERS)
        found = resumed.predict(of(rule), [step[0]._replace(steps=count)], states)
        for name in "ab":
            assert found[name].forecast_angular_update == pytest.approx(
                expected[name].forecast_angular_update, rel=0.05
            )
            assert found[name].forecast_norm == pytest.approx(expected[name].forecast_norm, rel=0.02)
