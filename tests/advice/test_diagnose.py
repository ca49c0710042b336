"""Findings on records made of arrays: what is said, with which numbers, and that nothing can upset it."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyroscope.advice import Finding, Findings, diagnose
from gyroscope.advice.findings import KINDS, MARKS
from gyroscope.advice.history import layer_histories
from gyroscope.advice.layer_facts import state_of_run
from gyroscope.advice.run_layer import noise_ratio
from gyroscope.theory import SGDM, AdamL2, AdamW, Lion, forecast
from tests.advice.memory import Memory, record
from tests.walk import adamw, angle_between, sgdm


def states(run):
    return {state_of_run(history) for history in layer_histories(run)}


def only(diagnosis, kind):
    found = [finding for finding in diagnosis if finding.kind == kind]
    assert len(found) == 1, str(diagnosis)
    return found[0]


def test_layers_in_equilibrium_are_well_with_the_evidence():
    diagnosis = diagnose(record())
    assert diagnosis.kinds == ("well",)
    assert "All 3 layers rotate as predicted by the equilibrium, within 0.25 %: 0.023 rad" in diagnosis[0].sentence
    assert "does not judge the loss" in diagnosis[0].sentence
    assert diagnosis[0].evidence["largest_error"] < 0.02


@pytest.mark.parametrize("empty", [Memory(np.array([])), Memory(np.arange(100)), record(steps=20, every=1)])
def test_an_empty_or_short_record_is_too_short(empty):
    diagnosis = diagnose(empty)
    assert diagnosis.kinds == ("too_short",)
    assert "Too short to judge" in str(diagnosis)


def test_few_samples_are_too_short_however_many_steps():
    assert diagnose(record(steps=10_000, every=2000)).kinds == ("too_short",)


@pytest.mark.parametrize(
    ("rule", "start"),
    [(AdamW(1e-2, 0.1), 6.0), (SGDM(0.1, 1e-3), 8.0), (Lion(1e-3, 1.0), 6.0)],
)
def test_a_layer_on_its_way_is_off_equilibrium_and_is_not_compared(rule, start):
    settled = rule.equilibrium(fan_in=64, unit_grad_norm=1.0)
    steps = round(1.1 * settled.timescale)
    course = forecast(rule, steps=steps, norm=start * settled.norm, fan_in=64, unit_grad_norm=1.0)
    part = record(rule=rule, steps=steps, norm=course.norm[:steps:10] / settled.norm)
    assert states(part) == {"off equilibrium"}
    part.data["b"]["angular_update"] /= 3
    assert "layer_imbalance" not in diagnose(part).kinds


def test_layers_whose_norm_stands_still_far_from_its_prediction_are_compared():
    run = record(norm=1.4)
    assert states(run) == {"off equilibrium"}
    run.data["b"]["angular_update"] /= 3
    assert "layer_imbalance" in diagnose(run).kinds


def test_a_run_shorter_than_its_memory_is_a_state_without_advice():
    diagnosis = diagnose(record(rule=AdamW(1e-3, 0.1), norm=0.4))
    assert states(record(rule=AdamW(1e-3, 0.1), norm=0.4)) == {"short"}
    assert all(finding.remedy == "" for finding in diagnosis)


def test_a_short_run_is_compared_with_its_forecast_and_not_with_equilibrium():
    """nanoGPT's setting on Shakespeare: layers turned 1.74 times as in equilibrium, and as forecast."""
    rule = AdamW(1e-3, 0.1)
    short = record(rule=rule, norm=0.57, speed=1.74)
    for series in short.data.values():
        series["forecast_angular_update"] = 1.7 * series["predicted_angular_update"]
        series["forecast_norm"] = series["norm"] * 1.02
    found = only(diagnose(short), "well")
    assert found.evidence["fastest"] == pytest.approx(1.02, rel=0.01)
    assert "as predicted by the forecast, within 2.6 %" in found.sentence
    for series in short.data.values():
        series["forecast_angular_update"] = series["predicted_angular_update"]
    diagnosis = diagnose(short)
    assert "well" not in diagnosis.kinds
    assert "1.7 times as far as predicted by the forecast" in only(diagnosis, "off_prediction").sentence


def test_a_falling_target_that_passes_the_norm_of_a_short_run_is_neither_settling_nor_falling_out():
    """X = 0.1: the norm stays, and the equilibrium of a falling rate comes down past it."""
    steps = np.arange(0, 2000, 10)
    rate = 0.1 + 0.9 * (1 + np.cos(np.pi * steps / 2000)) / 2
    short = record(rule=AdamW(1e-3, 0.1), steps=2000, lr=lambda t: 1e-3 * rate, norm=0.5 / rate**0.5, speed=rate**0.5)
    assert states(short) == {"short"}


def test_a_rate_that_was_raised_for_a_moment_is_not_the_peak_of_the_schedule():
    spiked = np.full(100, 1e-2)
    spiked[60:63] = 0.1
    fast = np.ones(100)
    fast[60:63] = 10**0.5
    assert "over_rotation" not in diagnose(record(lr=lambda t: spiked, speed=fast)).kinds


def test_a_start_is_the_start():
    """Step 720 of 1,000 is not."""
    fast = np.where(np.arange(100) == 72, 3.0, 1.0)
    assert "over_rotation" not in diagnose(record(speed=fast)).kinds


def test_no_decay_at_all_is_a_state():
    without = record(rule=AdamW(1e-2, 0.1), weight_decay=np.zeros(100), predicted_norm=np.full(100, np.inf))
    without.config["groups"][0]["rule"]["weight_decay"] = 0.0
    assert states(without) == {"no decay"}
    assert diagnose(without).summary[-1] == "The run has no equilibrium because it has no weight decay."


def test_a_layer_without_decay_is_not_taken_for_one_with_little():
    mixed = record(rule=AdamW(1e-3, 0.1))
    mixed.data["b"] |= {"weight_decay": np.zeros(100), "predicted_timescale": np.full(100, np.inf)}
    assert diagnose(mixed).summary[-1] == (
        "The run is too short for equilibrium (run length: 0.099 memories of 10,000 steps), so weight decay has little "
        "effect, except b (no decay)."
    )


def test_a_layer_that_another_finding_explains_does_not_hide_how_the_others_turn():
    run = record()
    pushed = {"angular_update": 0.5 * run.data["c"]["angular_update"], "lambda_u": np.full(100, -0.3)}
    run.data["c"] |= pushed
    diagnosis = diagnose(run)
    assert only(diagnosis, "scale_sensitive").layers == ("c",)
    assert "so predictions are rough. The gradient acts like a weight decay of -0.3 (λ_u)" in str(diagnosis)
    well = only(diagnosis, "well")
    assert well.layers == ("a", "b")
    assert "2 of 3 layers rotate as predicted by the equilibrium, within 0.25 %" in well.sentence


def test_one_layer_alone_is_named_not_counted():
    assert only(diagnose(record(["a"])), "well").sentence.startswith("a rotates as predicted by the equilibrium,")


def cosine(steps):
    return lambda t: 1e-2 * (1 + np.cos(np.pi * t / steps)) / 2


def test_a_norm_that_lags_behind_a_falling_rate_falls_out():
    steps = np.arange(0, 1000, 10)
    rate = (1 + np.cos(np.pi * steps / 1000)) / 2
    lagging = np.maximum(1.0, np.where(steps > 600, rate[60] ** 0.5 / rate**0.5, 1.0))
    run = record(lr=cosine(1000), norm=lagging, speed=1 / lagging)
    assert states(run) == {"falls out"}
    assert (
        diagnose(run)
        .summary[-1]
        .startswith("The run reaches equilibrium in its first step and falls out of it at the end")
    )


def test_a_norm_off_its_prediction_that_turns_as_predicted_has_not_fallen_out():
    assert states(record(norm=np.where(np.arange(100) < 60, 1.0, 1.35))) == {"in equilibrium"}


def starting_at(angle, samples=1):
    """A record whose first samples rotate by an angle instead of 0.023 rad."""
    return record(speed=np.where(np.arange(100) < samples, angle / 0.0229, 1.0))


def test_first_steps_that_are_too_fast_give_a_warmup_that_is_enough():
    diagnosis = diagnose(starting_at(0.15))
    found = only(diagnosis, "over_rotation")
    assert found.evidence["angle"] == pytest.approx(0.15, rel=0.1)
    assert found.evidence["step"] == 0
    assert found.sentence.startswith("The first steps rotate all 3 layers by 0.15 rad, which is very fast")
    assert (found.severity, diagnosis.changes) == ("warn", {"warmup": 10})


def test_a_ratio_to_equilibrium_is_not_what_decides():
    """A start at 44 times equilibrium cost a GPT nothing, because it was 0.05 rad."""
    rule = AdamW(1e-3, 1e-3)
    run = record(rule=rule, speed=np.where(np.arange(100) < 1, 44.0, 1.0))
    assert 44 * rule.equilibrium(fan_in=64).angular_update < 0.1
    assert "over_rotation" not in diagnose(run).kinds


def test_a_start_that_only_one_layer_has_is_not_said_of_the_run():
    run = record()
    run.data["b"]["angular_update"] = run.data["b"]["angular_update"] * np.where(np.arange(100) < 1, 10.0, 1.0)[:, None]
    assert "over_rotation" not in diagnose(run).kinds


def test_very_fast_rotation_is_named_in_a_run_as_in_a_plan():
    found = only(diagnose(record(rule=AdamW(0.5, 0.5))), "fast_rotation")
    assert (found.severity, found.trial) == ("warn", "remedies/slower_rotation")
    assert "rad per step in equilibrium, which is very fast" in found.sentence
    assert "fast_rotation" not in diagnose(record()).kinds


def test_a_layer_that_turns_at_another_speed_than_the_rest_is_named():
    mixed = record()
    mixed.data["b"]["angular_update"] /= 3
    found = only(diagnose(mixed), "layer_imbalance")
    assert found.evidence["ratio"] == pytest.approx(3.0, rel=0.02)
    assert found.layers[1] == "b"
    assert "rotates 3 times as fast as b" in found.sentence
    assert (found.severity, found.remedy) == ("note", "")


def test_predictions_that_differ_within_a_group_are_imbalance_too():
    mixed = record(rule=AdamL2(1e-2, 1e-2))
    for series in ("angular_update", "predicted_angular_update"):
        mixed.data["b"][series] = mixed.data["b"][series] * 4
    found = only(diagnose(mixed), "layer_imbalance")
    assert found.layers[0] == "b"
    assert (found.severity, found.trial) == ("warn", "remedies/decoupled_decay")
    assert "AdamW" in found.remedy


def test_neurons_at_two_speeds_are_told_from_noise():
    mixed = record()
    mixed.data["a"]["angular_update"][:, :8] *= 6
    found = only(diagnose(mixed), "neuron_imbalance")
    assert found.layers == ("a",)
    assert found.evidence["ratio"] > 6
    assert found.evidence["noise_ratio"] == pytest.approx(1.31, abs=0.02)


def walk_angles(step, lr, norm, dim, vectors=64, steps=900, seed=0):
    """Angles (step, vector) of a random walk under tangential white noise, once it has settled."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((vectors, dim))
    w *= norm / np.linalg.norm(w, axis=1, keepdims=True)
    state, angles = {}, []
    for t in range(1, steps + 1):
        g = rng.standard_normal((vectors, dim))
        g -= w * ((g * w).sum(1) / (w * w).sum(1))[:, None]
        new = step(w, g / np.linalg.norm(w, axis=1, keepdims=True), state, lr, t)
        angles.append(angle_between(w, new))
        w = new
    return np.array(angles)[300:]


@pytest.mark.parametrize("dim", [9, 64])
@pytest.mark.parametrize("rule", ["adamw", "sgdm"])
def test_the_noise_ratio_is_that_of_a_simulation(rule, dim):
    if rule == "adamw":
        angles = walk_angles(adamw(0.5, (0.9, 0.99)), 1e-2, (1e-2 * dim / (2 * 0.5)) ** 0.5, dim)
    else:
        angles = walk_angles(sgdm(5e-3, 0.9), 0.1, (0.1 * dim / (2 * 5e-3 * 0.1)) ** 0.25, dim)
    low, high = np.quantile(angles, [0.05, 0.95], axis=1)
    assert np.exp(np.log(high / low).mean()) == pytest.approx(noise_ratio(dim, 64), rel=0.05)


def test_scale_sensitivity_quotes_lambda_u_and_what_was_measured():
    sensitive = record(speed=0.6, norm=1.5)
    rng = np.random.default_rng(0)
    sensitive.data["a"]["lambda_u"] = -0.3 + 0.1 * rng.standard_normal((100, 32))
    found = only(diagnose(sensitive), "scale_sensitive")
    assert (found.severity, found.remedy) == ("note", "")
    assert found.evidence["lambda_u"] == pytest.approx(-0.3, rel=0.05)
    assert found.evidence["decay_error"] == pytest.approx(0.4, rel=0.1)
    assert "weight decay of -0.3 (λ_u), which makes the effective one 0.39 times the one that is set" in found.sentence


def test_a_scale_sensitive_layer_that_turns_as_predicted_is_not_mentioned():
    sensitive = record(speed=0.99)
    sensitive.data["c"]["lambda_u"] = np.full(100, -0.3)
    assert diagnose(sensitive).kinds == ("well",)


def test_a_radial_gradient_that_is_noise_is_not_scale_sensitivity():
    noisy = record(lambda_u=np.random.default_rng(0).standard_normal((100, 32)))
    assert diagnose(noisy).kinds == ("well",)


def test_dead_vectors_are_those_without_gradient_in_every_sample():
    found = only(diagnose(record(("a",), dead_vectors=np.full(100, 4.0))), "dead_vectors")
    assert (found.severity, found.evidence["dead_vectors"]) == ("bad", 4.0)
    assert "4 in a, 12 % of it" in found.sentence
    now_and_then = np.where(np.arange(100) % 2, 4.0, 0.0)
    assert "dead_vectors" not in diagnose(record(("a",), dead_vectors=now_and_then)).kinds


def test_an_optimizer_that_sets_the_angle_itself_earns_no_green():
    """RotationalAdamW took a char-GPT to 2.04 where AdamW came to 1.91, and turned by its own angle throughout."""
    run = record()
    assert only(diagnose(run), "well").severity == "good"
    run.config["groups"][0]["optimizer"] = "RotationalAdamW"
    assert [(finding.kind, finding.severity) for finding in diagnose(run)] == [("well", "note")]


def test_a_few_vectors_that_are_not_finite_are_seen_and_nothing_beside_them_is_green():
    share = np.where(np.arange(100) < 40, 0.0, 1 / 32)
    run = record(non_finite=np.zeros(100))
    run.data["b"]["non_finite"] = share
    diagnosis = diagnose(run)
    found = only(diagnosis, "diverged")
    assert (found.severity, found.layers, found.evidence["step"]) == ("bad", ("b",), 400)
    assert "weights or gradients of b are not finite from step 400 on. 3.1 % of the vectors are lost" in found.sentence
    assert "well" not in diagnosis.kinds


def test_embeddings_are_not_judged():
    run = record()
    run.data["b"]["angular_update"] /= 5
    run.data["b"]["dead_vectors"] = np.full(100, 20.0)
    assert "layer_imbalance" in diagnose(run).kinds
    plain = run.layer
    run.layer = lambda name: SimpleNamespace(**vars(plain(name)), granularity="token" if name == "b" else "neuron")
    assert diagnose(run).kinds == ("well",)


def test_frozen_entries_are_a_share_of_those_measured():
    found = only(diagnose(record(("a",), frozen_entries=np.full(100, 1024.0))), "frozen_entries")
    assert found.evidence["worst_share"] == pytest.approx(0.5)
    assert "50 % in a" in found.sentence
    assert "frozen_entries" not in diagnose(record(("a",), frozen_entries=np.full(100, 20.0))).kinds


def test_unstable_betas_warn():
    found = only(diagnose(record(rule=AdamW(1e-2, 0.5, (0.9, 0.7)))), "unstable_betas")
    assert found.severity == "warn"
    assert "beta2 above beta1² = 0.81" in found.remedy
    assert found.changes == {"betas": (0.9, 0.99)}
    assert "unstable_betas" not in diagnose(record()).kinds


def test_layers_without_measurement_or_prediction_are_named():
    gaps = record()
    gaps.data["a"]["angular_update"] = np.full(100, np.nan)
    for name in ("predicted_angular_update", "predicted_norm"):
        gaps.data["b"][name] = np.full(100, np.nan)
    assert only(diagnose(gaps), "not_measured").layers == ("a",)
    found = only(diagnose(gaps), "missing_input")
    assert (found.layers, found.sentence) == (("b",), "b has no prediction: the theory does not cover the optimizer.")
    assert "2 of 2" not in str(diagnose(gaps))


def test_a_rule_without_the_size_of_its_updates_is_asked_for_it():
    run = record(predicted_norm=np.full(100, np.nan))
    run.config = {"groups": [{"optimizer": "Mine", "rule": {"name": "Rule", "decay": 5e-3, "correlation_time": 19.0}}]}
    diagnosis = diagnose(run)
    assert only(diagnosis, "missing_input").layers == ("a", "b", "c")
    assert "Rule needs update_rms, the RMS norm of one vector's update. Pass it to the rule." in str(diagnosis)
    assert diagnosis.summary[-1] == "It is unknown whether the run reaches equilibrium."


def test_layers_that_stay_off_their_prediction_are_neither_well_nor_wrong():
    diagnosis = diagnose(record(norm=1.4, speed=1 / 1.4))
    assert diagnosis.kinds == ("off_prediction",)
    assert "rotate 0.72 times as far as predicted" in diagnosis[0].sentence


def test_a_run_at_rate_zero_says_something():
    still = record(lr=lambda t: 0.0 * t)
    assert "no prediction to compare all 3 layers with" in str(diagnose(still))


def test_many_layers_are_counted_not_listed():
    names = [f"blocks.{i}.weight" for i in range(15)]
    found = only(diagnose(record(names, rule=AdamW(0.5, 0.5))), "fast_rotation")
    assert found.sentence.startswith("All 15 layers rotate by")
    assert len(found.layers) == 15


def test_the_worst_is_said_first():
    said = Findings([Finding(kind, severity, "…") for severity in MARKS for kind in reversed(KINDS)])
    severities, kinds = list(MARKS), list(KINDS)
    places = [(severities.index(finding.severity), kinds.index(finding.kind)) for finding in said]
    assert places == sorted(places)
    assert str(said).startswith("✗ …")


holes = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, 1e-30, 5.0])


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 99), st.integers(1, 100), holes), max_size=12),
    st.sets(st.integers(0, 40), max_size=6),
    st.sampled_from([AdamW(1e-2, 0.5), SGDM(0.1, 1e-3, 0.9), AdamL2(1e-3, 1e-2)]),
    st.sampled_from(
        [{}, {"groups": None}, {"groups": []}, {"groups": [3]}, {"groups": [{"rule": {"name": "Nix"}}]}, None]
    ),
)
def test_no_record_however_broken_raises(spoils, dropped, rule, config):
    extra = {"lambda_u": np.zeros(100), "max_update": np.ones(100), "unit_grad_norm": np.ones(100)}
    broken = copy.deepcopy(record(("a", "b"), rule=rule, **extra))
    places = [(layer, name) for layer in broken.data for name in broken.data[layer]]
    for number, first, length, value in spoils:
        layer, name = places[number % len(places)]
        broken.data[layer][name] = np.array(broken.data[layer][name], dtype=np.float64)
        broken.data[layer][name][first : first + length] = value
    for number in dropped:
        for layer in broken.data:
            broken.data[layer].pop(places[number % len(places)][1], None)
    if config is not None:
        broken.config = config
    diagnosis = diagnose(broken)
    assert len(diagnosis) > 0
    assert "nan" not in str(diagnosis)
    assert all(finding.kind in KINDS and finding.sentence.endswith(".") for finding in diagnosis)
