"""Incidents on records made of arrays: each is found with its step and cause, and a schedule or noise is none."""

import numpy as np
import pytest

from gyroscope.advice import diagnose
from gyroscope.advice.incidents import IncidentSearch, incident_finding, incidents, judged_steps, loss_name
from gyroscope.advice.incidents.samples import Samples
from gyroscope.advice.incidents.unusual_values import (
    OF_SAMPLES,
    deviations,
    middle_of,
    regular_since,
    single_layers,
    unusual_losses,
)
from gyroscope.store import Run, Sample, open_run
from tests.advice.memory import Memory
from tests.render import make

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


def after_spike(record):
    """Of a record with a spike of the loss at step 500, which is found too, the one incident after it."""
    spike, found = incidents(record)
    assert (spike.cause, spike.since, spike.step, spike.end) == ("batches", 500, 500, 500)
    return found


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
    assert "10 times as high as before, 0.1 instead of 0.01, and came back to 0.01" in text


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
    assert "modified outside the optimizer" in incident_finding(found).sentence


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


def test_the_gradient_of_one_layer_is_named_with_the_layer():
    record = quiet()
    record.data["b"]["unit_grad_norm"][PLACE] *= 100
    found = only(record)
    assert (found.cause, found.since, found.step, found.layers) == ("layer_gradient", 991, 1000, ("b",))
    finding = incident_finding(found)
    assert "the gradient of b reached" in finding.sentence
    assert "No other layer did this." in finding.sentence
    assert finding.remedy == "Look at what reaches b in steps 991 to 1,000: its inputs, its losses and its masks."
    assert (finding.severity, finding.mark) == ("warn", "a layer's gradient")


def test_what_adam_keeps_of_one_layers_gradient_belongs_to_the_same_incident():
    record = quiet()
    record.data["b"]["unit_grad_norm"][PLACE] *= 100
    record.data["b"]["tangential_update"][PLACE : PLACE + 2] *= 10
    record.data["b"]["effective_lr"][PLACE + 1 :] /= 3.3
    record.loss[1001:1020] *= 100
    found = only(record)
    assert (found.cause, found.end) == ("layer_gradient", 1010)
    text = incident_finding(found).sentence
    assert "Adam's denominator became 3.3 times as large, which slows the layer's rotation" in text
    assert "for about 2,000 steps" in text
    assert "From step 1,001 on the loss reached" in text


@pytest.mark.parametrize(
    ("quantity", "factor", "words"),
    [("tangential_update", 20, "the updates of b reached 18"), ("effective_lr", 1 / 1.6, "b had a far too large")],
)
def test_a_gradient_of_one_layer_between_samples_shows_in_what_it_left(quantity, factor, words):
    record = quiet(loss=False)
    until = PLACE + 2 if quantity == "tangential_update" else None
    record.data["b"][quantity][PLACE + 1 : until] *= factor
    found = only(record)
    assert (found.cause, found.step, found.layers) == ("layer_gradient", 1010, ("b",))
    assert words in incident_finding(found).sentence


@pytest.mark.parametrize(("factor", "causes"), [(20, ["layer_gradient"]), (5, [])])
def test_updates_that_are_small_in_all_layers_do_not_hide_one_that_is_large(factor, causes):
    """One that is as large as usual while the others are small is no incident."""
    record = quiet(loss=False)
    for series in record.data.values():
        series["tangential_update"][PLACE + 1] /= 5
    record.data["b"]["tangential_update"][PLACE + 1] *= factor
    found = incidents(record)
    assert [(each.cause, each.step, each.layers) for each in found] == [(cause, 1010, ("b",)) for cause in causes]
    assert all("the updates of b reached 3.6 times the usual" in incident_finding(each).sentence for each in found)


def test_weights_that_a_large_gradient_moved_were_not_written_from_outside():
    record = quiet()
    record.data["b"]["tangential_update"][PLACE] *= 20
    record.data["b"]["norm"][PLACE:] *= 2
    assert only(record).cause == "layer_gradient"


def test_a_gradient_that_grows_for_good_is_told_once_and_becomes_the_usual():
    record = quiet(loss=False)
    record.data["b"]["unit_grad_norm"][PLACE:] *= 100
    assert only(record).end < 1000 + 20 * EVERY


@pytest.mark.parametrize("layers", [2, 50])
def test_one_layer_raises_no_alarm_in_layers_of_noise(layers):
    """With heavy tails, one value in a hundred being three times as far from the middle: one in 10,000 values."""
    random = np.random.default_rng(0)
    spread = np.where(random.random((4000, layers)) < 0.01, 0.6, 0.2)
    table = np.full((3, 4000, layers), np.nan)
    table[0] = random.normal(0, spread)
    missing = np.full((4000, layers), np.nan)
    samples = Samples([str(number) for number in range(layers)], np.arange(4000), {"beta2": missing})
    assert len(list(single_layers(samples, table))) <= 4000 * layers / 10_000
    table[0, -1, 1] = 10.0
    *_, found = single_layers(samples, table)
    assert (found.step, found.layers) == (3999, ("1",))


FUSED = ("0.qkv[q]", "0.qkv[k]", "0.qkv[v]", "1.qkv[q]", "1.qkv[k]", "1.qkv[v]", "0.out", "1.out", "head")
TOGETHER = {"0.qkv[q]": 70, "0.qkv[k]": 60, "1.qkv[q]": 30, "1.qkv[k]": 25}
OF_ONE_WEIGHT = {"0.qkv[q]": 90, "0.qkv[k]": 95, "0.qkv[v]": 100}


@pytest.mark.parametrize(("factors", "causes"), [(TOGETHER, []), (OF_ONE_WEIGHT, ["layer_gradient"])])
def test_the_gradient_of_one_layer_is_its_own_only_if_those_of_other_parameters_do_not_grow(factors, causes):
    record = quiet(loss=False, names=FUSED)
    for name, factor in factors.items():
        record.data[name]["unit_grad_norm"][PLACE] *= factor
    assert [found.cause for found in incidents(record)] == causes


def test_the_losses_after_the_last_sample_of_a_run_that_has_ended_are_judged():
    for status, steps in (("finished", [1497]), ("running", [])):
        record = quiet()
        record.loss[1497] *= 33
        record.status = status
        assert [found.step for found in incidents(record)] == steps


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


@pytest.mark.parametrize("start", [1000, 1003, 1006])
def test_a_jump_that_lasts_is_found_whatever_single_spike_there_was(start):
    """One spike of × 33 once demanded × 1,089 of all losses after it."""
    record = quiet()
    record.loss[500] *= 33
    record.loss[start : start + 24] *= 300
    found = after_spike(record)
    assert (found.cause, found.since, found.step) == ("batches", start, start)
    assert start + 15 <= found.end < start + 24
    finding = incident_finding(found)
    assert "the loss jumped to as much as " in finding.sentence
    assert f"and stayed high until step {found.end:,}. No setting changed" in finding.sentence
    assert finding.mark == "loss jump"


def test_a_jump_does_not_hide_the_next_one():
    record = quiet()
    record.loss[500] *= 33
    for start in (850, 1250):
        record.loss[start : start + 24] *= 300
    assert [(found.cause, found.step) for found in incidents(record)] == [
        ("batches", 500),
        ("batches", 850),
        ("batches", 1250),
    ]


@pytest.mark.parametrize("start", [1000, 1003, 1006])
def test_shuffled_labels_are_a_jump_of_the_loss_and_not_two_gradients_of_a_layer(start):
    record = quiet()
    record.loss[500] *= 33
    record.loss[start : start + 50] *= 300
    for place in (PLACE + 1, PLACE + 3):
        record.data["b"]["unit_grad_norm"][place] *= 100
    found = after_spike(record)
    assert (found.cause, found.since, found.step) == ("batches", start, start)
    assert "the gradient of b" not in incident_finding(found).sentence


def test_weights_that_move_far_after_a_jump_of_the_loss_were_moved_by_its_gradients():
    record = quiet()
    record.loss[500] *= 33
    record.loss[1000:1050] *= 300
    record.data["b"]["accumulated_angle"][PLACE + 1] = 1.5
    assert after_spike(record).cause == "batches"


def test_the_loss_of_a_layers_gradient_rises_after_it_and_does_not_explain_it():
    record = quiet()
    record.loss[500] *= 33
    record.data["b"]["unit_grad_norm"][PLACE] *= 100
    record.loss[1001:1050] *= 300
    found = after_spike(record)
    assert (found.cause, found.step, found.layers) == ("layer_gradient", 1000, ("b",))
    assert "From step 1,001 on the loss reached" in incident_finding(found).sentence


def test_a_loss_that_rises_with_the_learning_rate_is_no_incident():
    """As after a restart of a cosine schedule."""
    for lr, expected in ((SCHEDULES["restarts"], []), (None, [500, 1000])):
        record = quiet(lr=lr, noise=0.1)
        record.loss[500] *= 33  # single losses are not judged by less
        record.loss[1000:1300] *= 3
        assert [found.step for found in incidents(record)] == expected


@pytest.mark.parametrize("step", [60, 300, 503])
def test_a_loss_is_judged_after_fifty_logged_values(step):
    """A jump from 0.66 to 4.5 at step 503 was once missed, because the first 600 losses were not judged."""
    record = quiet(noise=0.1)
    record.loss[step] *= 7
    found = only(record)
    assert (found.cause, found.since, found.step, found.end) == ("batches", step, step, step)


def test_a_detector_tells_from_which_step_it_judges():
    search = IncidentSearch()
    search.read_on(quiet())
    assert (search.losses_judged_from, search.gradients_judged_from) == (50, 200)


def losses_found(losses):
    """What is found in losses of every step under a constant learning rate."""
    nowhere = np.zeros(len(losses), bool)
    return unusual_losses(np.arange(len(losses)), losses, nowhere, nowhere)


def test_a_loss_that_stays_high_for_good_becomes_the_usual():
    losses = 0.5 * np.exp(np.random.default_rng(0).normal(0, 0.1, 3000))
    losses[1000:] *= 5
    losses[2500:2550] *= 5
    found = losses_found(losses)
    assert min(each.step for each in found) == 1000
    assert not [each for each in found if 1300 < each.step < 2500]
    assert min(each.step for each in found if each.step > 1300) == 2500


def spiked(random, count, share):
    return random.normal(0, 0.3, count) + (random.random(count) < share) * random.uniform(1, 4, count)


def wandering(random, count):
    """Noise that hardly changes from one step to the next, and noise that does."""
    steps = random.normal(0, 0.1, count)
    return np.convolve(steps, 0.95 ** np.arange(200))[:count] + random.normal(0, 0.2, count)


CLEAN = {
    "normal": lambda random, count: random.normal(0, 0.2, count),
    "wide": lambda random, count: random.normal(0, 0.6, count),
    "heavy tails": lambda random, count: 0.2 * random.standard_t(3, count),
    "rare spikes": lambda random, count: spiked(random, count, 0.002),
    "many spikes": lambda random, count: spiked(random, count, 0.1),
    "wandering": wandering,
    "near zero": lambda random, count: np.log(0.05 + random.gamma(0.15, 1, count)),
}


@pytest.mark.parametrize("name", CLEAN)
def test_no_jump_is_found_in_20_000_losses_of_noise_that_fall(name):
    steps = np.arange(20_000)
    noise = CLEAN[name](np.random.default_rng(0), len(steps))
    losses = 2.3 * (1 + steps / 300) ** -0.6 * np.exp(noise)
    assert not [each for each in losses_found(losses) if "lasting" in each.evidence]


def test_a_resumed_run_is_a_note_and_numbers_that_are_not_finite_have_a_finding_of_their_own():
    record = quiet()
    record.resumed_at = (500,)
    finding = incident_finding(only(record))
    assert (finding.severity, finding.sentence) == ("note", "The run was resumed at step 500.")
    for series in record.data.values():
        series["unit_grad_norm"][PLACE:] = np.nan
        series["non_finite"] = np.where(np.arange(len(AT)) < PLACE, 0.0, 1.0)
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


def test_a_deviation_is_measured_from_the_median_of_the_values_before_it():
    values = np.random.default_rng(0).normal(size=(103, 2))
    found = deviations(values, OF_SAMPLES)
    assert np.isnan(found[:10]).all()
    np.testing.assert_allclose(found[10:15], values[10:15] - np.sort(values[:10], axis=0)[5])
    np.testing.assert_allclose(found[100:], values[100:] - np.sort(values[70:100], axis=0)[15])
    later = deviations(values[20:], OF_SAMPLES, first=20)
    np.testing.assert_array_equal(later[30:], found[50:])


def test_a_median_leaves_out_what_is_missing():
    values = np.random.default_rng(0).normal(size=(20, 7))
    values[3:, 2] = np.nan
    values[5, :] = np.nan
    values[6, 1:] = np.nan
    known = [row[~np.isnan(row)] for row in values]
    np.testing.assert_allclose(middle_of(values), [np.median(row) if len(row) else np.nan for row in known])


def test_samples_are_compared_with_those_since_they_became_rarer():
    steps = np.array([0, 1, 2, 3, 10, 20, 30, 50, 60, 220])
    assert regular_since(steps).tolist() == [0, 0, 0, 0, 4, 4, 4, 7, 7, 9]


def test_of_a_long_run_that_grows_only_the_new_samples_are_read(tmp_path, monkeypatch):
    asked = []
    read = Run.every_sample
    monkeypatch.setattr(Run, "every_sample", lambda run, series, after: asked.append(after) or read(run, series, after))
    story = make.healthy(**make.SMALL)
    faster = make.healthy(**make.SMALL, schedule=None, rule=make.RULE.replace(lr=4 * make.RULE.lr))
    samples = [*list(make.samples(story))[:20], *list(make.samples(faster))[20:]]
    with make.writer(tmp_path, story) as writer, open_run(tmp_path, limit=8) as run:
        found = []
        for first in (0, 15, 30):
            for step, layers in samples[first : first + 15]:
                writer.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
            writer.flush()
            run.refresh()
            found.append([(each.cause, each.step) for each in incidents(run)])
        assert asked == [-1, 140, 290]
        assert found[0] == []
        assert found[1] == found[2] == [("lr", 200)]
        with open_run(tmp_path) as whole:
            assert [(each.cause, each.step) for each in incidents(whole)] == found[2]


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (True, "Incidents are judged by losses from step 50 on and gradients from step 200 on. Expect"),
        (False, "Incidents are judged by gradients from step 200 on. Log the loss to judge it too. Expect"),
    ],
)
def test_a_sentence_says_from_which_steps_on_incidents_are_judged(loss, sentence):
    assert judged_steps(quiet(loss=loss)).startswith(sentence)


def test_a_run_of_a_hugging_face_trainer_is_told_the_option_that_logs_every_loss():
    record = quiet(loss=False)
    record.config = {"user": {"logging_steps": 500}}
    assert " Log the loss at every step (logging_steps=1) to judge it too. " in judged_steps(record)


def test_a_short_run_says_nothing_about_incidents():
    record = quiet(loss=False)
    record.steps = record.steps[:15]
    record.data = {
        layer: {name: values[:15] for name, values in series.items()} for layer, series in record.data.items()
    }
    assert judged_steps(record) is None
