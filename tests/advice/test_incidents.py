"""Incidents on records made of arrays: each is found with its step and cause, and a schedule or noise is none."""

import numpy as np
import pytest

from gyroscope.advice import diagnose
from gyroscope.advice.baseline import Baseline
from gyroscope.advice.incident_findings import incident_finding
from gyroscope.advice.incidents import incidents, loss_name
from tests.advice.memory import Memory

NAMES = ("a", "b", "c")
STEPS = 1500
EVERY = 10
AT = np.arange(0, STEPS, EVERY)
PLACE = 100  # the sample of step 1,000


class Logged(Memory):
    """A record with a logged loss."""

    loss = None
    resumed_at = ()

    @property
    def scalars(self):
        return () if self.loss is None else ("loss",)

    def scalar(self, name):
        return np.arange(len(self.loss)), self.loss


def quiet(lr=None, seed=0, loss=True, noise=0.3, names=NAMES):
    """A run in which nothing happens: gradients of log-normal noise, norms that stand still."""
    random = np.random.default_rng(seed)
    rate = np.full(len(AT), 1e-2) if lr is None else lr(AT)
    data = {}
    batch = random.normal(0, noise, STEPS)
    for name in names:
        gradient = np.exp(batch[AT] + random.normal(0, 0.1, len(AT)))
        data[name] = {
            "lr": rate.copy(),
            "highest_lr": rate.copy(),
            "weight_decay": np.full(len(AT), 0.1),
            "beta1": np.full(len(AT), 0.9),
            "beta2": np.full(len(AT), 0.999),
            "unit_grad_norm": gradient,
            "tangential_update": rate * np.exp(random.normal(0, 0.05, len(AT))),
            "effective_lr": rate * np.exp(random.normal(0, 0.005, len(AT))),
            "norm": np.exp(random.normal(0, 0.002, len(AT))),
            "update_norm": rate,
            "angular_update": rate,
            "accumulated_angle": 3 * rate * np.exp(random.normal(0, 0.1, len(AT))),
        }
    made = Logged(AT, data)
    made.loss = 0.5 * np.exp(batch) if loss else None
    return made


def only(record):
    found = incidents(record)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_where_nothing_happens(seed, loss):
    assert incidents(quiet(seed=seed, loss=loss)) == []


SCHEDULES = {
    "cosine": lambda t: 1e-2 * (0.5 + 0.5 * np.cos(np.pi * t / STEPS)),
    "warmup": lambda t: 1e-2 * np.minimum(1, (t + 1) / 300),
    "warmup from zero": lambda t: 1e-2 * np.minimum(1, t / 300),
    "milestones": lambda t: 1e-2 * 0.1 ** np.digitize(t, [750, 1125]),
    "restarts": lambda t: 1e-2 * (0.5 + 0.5 * np.cos(np.pi * (t % 500) / 500)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_no_incident(name):
    assert incidents(quiet(lr=SCHEDULES[name])) == []


def test_a_decay_that_falls_with_the_rate_at_a_milestone_is_no_incident():
    record = quiet(lr=SCHEDULES["milestones"])
    for series in record.data.values():
        series["weight_decay"] = series["lr"] * 10
    assert incidents(record) == []


@pytest.mark.parametrize(("sampled", "step"), [(True, 1000), (False, 1010)])
def test_a_learning_rate_raised_for_three_steps_is_named_also_between_samples(sampled, step):
    record = quiet()
    for series in record.data.values():
        series["highest_lr"][step == AT] *= 10
        if sampled:
            series["lr"][step == AT] *= 10
    found = only(record)
    assert (found.cause, found.since, found.step, found.end) == ("lr", step - 9, step, step)
    assert found.layers == NAMES
    text = incident_finding(found).sentence
    assert "10 times as high as before, 0.1 after 0.01, and came back to 0.01" in text


def test_a_learning_rate_that_rises_and_stays_is_one_incident():
    record = quiet()
    for series in record.data.values():
        series["lr"][PLACE:] *= 4
        series["highest_lr"][PLACE:] *= 4
    found = only(record)
    assert (found.cause, found.step) == ("lr", 1000)
    assert "came back" not in incident_finding(found).sentence


@pytest.mark.parametrize(
    ("quantity", "value", "cause", "words"),
    [
        ("weight_decay", 10.0, "weight_decay", "weight decay changed from 0.1 to 10"),
        ("beta2", 0.99, "betas", "β2 changed from 0.999 to 0.99"),
        ("beta1", 0.95, "betas", "the momentum (β1) changed from 0.9 to 0.95"),
    ],
)
def test_a_setting_that_jumps_is_named_with_both_values(quantity, value, cause, words):
    record = quiet()
    for series in record.data.values():
        series[quantity][PLACE:] = value
    found = only(record)
    assert (found.cause, found.step) == (cause, 1000)
    assert words in incident_finding(found).sentence


def test_a_layer_without_gradient_is_named_from_its_first_sample_on():
    record = quiet()
    for values in record.data["b"].values():
        values[PLACE:] = np.nan
    found = only(record)
    assert (found.cause, found.since, found.step, found.layers) == ("frozen", 991, 1000, ("b",))
    assert "b has had no gradient since step 1,000" in incident_finding(found).sentence


def test_a_layer_whose_gradients_are_all_zero_is_frozen_too():
    record = quiet()
    record.data["c"]["unit_grad_norm"][PLACE:] = 0
    assert (only(record).cause, only(record).layers) == ("frozen", ("c",))


def test_a_layer_that_now_and_then_takes_no_part_is_not_frozen():
    """As experts and dropped layers do."""
    record = quiet()
    for values in record.data["b"].values():
        values[5::7] = np.nan
    assert incidents(record) == []


@pytest.mark.parametrize("change", ["norm", "direction"])
def test_weights_that_something_else_wrote_to_are_named(change):
    record = quiet()
    if change == "norm":
        record.data["b"]["norm"][PLACE:] *= 2
    else:
        record.data["b"]["accumulated_angle"][PLACE] = 1.5
    found = only(record)
    assert (found.cause, found.step, found.layers) == ("weights", 1000, ("b",))
    assert "something else than the optimizer" in incident_finding(found).sentence


def test_weights_that_updates_can_have_moved_are_not_changed_from_outside():
    record = quiet()
    record.data["b"]["norm"][PLACE:] *= 2
    record.data["b"]["update_norm"][PLACE] = 0.2  # ten steps of it
    assert incidents(record) == []


def test_one_batch_is_told_from_many_by_the_logged_loss():
    one = quiet()
    one.loss[1003] *= 100
    found = only(one)
    assert (found.cause, found.since, found.step, found.end) == ("batches", 1003, 1003, 1003)
    finding = incident_finding(found)
    assert finding.remedy == "Look at the batch of step 1,003."
    assert "the batch of that step is unlike the others" in finding.sentence
    many = quiet()
    many.loss[1000:1050] *= 100
    found = only(many)
    assert (found.step, found.end) == (1000, 1049)
    assert incident_finding(found).remedy.startswith("Look at the batches of steps 1,000 to 1,049")


def test_gradients_say_which_layers_a_batch_reached_the_most_affected_first():
    record = quiet(loss=False)
    for factor, series in zip((10, 40, 20), record.data.values(), strict=True):
        series["unit_grad_norm"][PLACE] *= factor
    found = only(record)
    assert (found.cause, found.since, found.step) == ("batches", 991, 1000)
    assert found.layers == ("b", "c", "a")


def test_a_burst_between_samples_shows_in_the_denominators_of_adam():
    record = quiet(loss=False)
    for series in record.data.values():
        series["effective_lr"][PLACE + 1 :] /= 1.3
    assert (only(record).cause, only(record).step) == ("batches", 1010)


def test_what_follows_from_a_setting_is_no_incident_of_its_own():
    record = quiet()
    for series in record.data.values():
        series["highest_lr"][PLACE] *= 10
        series["unit_grad_norm"][PLACE + 1] *= 1000
    record.loss[1001:1020] *= 1000
    found = only(record)
    assert found.cause == "lr"
    assert "From step 1,001 on the loss" in incident_finding(found).sentence


def test_the_recovery_after_a_bad_batch_is_no_incident_of_its_own():
    record = quiet()
    record.loss[1000] *= 3000
    record.loss[1005:1060] *= np.exp(np.linspace(3, 0, 55))
    assert only(record).end == 1000


def test_a_resumed_run_is_a_note_and_numbers_that_are_not_finite_have_a_finding_of_their_own():
    record = quiet()
    record.resumed_at = (500,)
    finding = incident_finding(only(record))
    assert (finding.severity, finding.sentence) == ("note", "The run was resumed at step 500.")
    for series in record.data.values():
        series["unit_grad_norm"][PLACE:] = np.nan
    assert [found.cause for found in incidents(record)] == ["resumed", "not_finite"]
    diagnosis = diagnose(record)
    assert diagnosis.kinds[0] == "diverged"
    assert diagnosis[0].mark == "not finite"
    assert sum("not finite" in finding.sentence for finding in diagnosis) == 1


def test_a_run_with_an_incident_is_not_green_and_its_finding_has_a_mark():
    record = quiet()
    for series in record.data.values():
        series["weight_decay"][PLACE:] = 10.0
    diagnosis = diagnose(record)
    finding = next(finding for finding in diagnosis if finding.kind == "incident")
    assert (finding.severity, finding.mark, finding.evidence["step"]) == ("warn", "weight decay", 1000)
    assert "well" not in diagnosis.kinds


def test_the_loss_of_training_is_told_from_others():
    assert loss_name(["accuracy", "validation_loss", "loss"]) == "loss"
    assert loss_name(["test/loss", "train_loss"]) == "train_loss"
    assert loss_name(["accuracy"]) is None


def test_a_baseline_alarms_as_seldom_as_its_thresholds_say():
    """Of normal numbers five standard deviations: none in 10,000 values, and a jump is seen at once."""
    baseline = Baseline(level=30, memory=100, floor=0.0)
    values = np.random.default_rng(0).normal(size=10_000)
    assert sum(baseline.excess(float(value)) > 0 for value in values) == 0
    assert baseline.excess(20.0) == pytest.approx(20, abs=1)
