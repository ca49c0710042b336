"""The trial of speeds: the search, the alarm, its counts and suggestions on runs made up for it, and tiny trainings."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.framework.runner import read_result
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.speed import _chosen, second_look, speedometer
from gyroscope_lab.speed._alarm import (
    Confusion,
    baselines,
    best_correction,
    candidates,
    choose_alarm,
    chosen_candidate,
    default_lrs,
)
from gyroscope_lab.speed._lr_search import MARGIN, PLACES, lr_at, search
from gyroscope_lab.speed._runs import Runs, at_best, refined_place, scatter, table
from gyroscope_lab.speed._suggestion import near_best, suggested_lrs, suggestions
from gyroscope_lab.speed._training import QUANTITIES, angle_to_start, train

from gyroscope.theory import AdamW, forecast

RESULTS = Path(__file__).parents[2] / "results"
TINY = replace(
    speedometer.QUICK,
    tasks={name: speedometer.EMBEDDED[name] for name in ("MLP, layer norm", "MLP, batch norm")},
    held_out=("MLP, batch norm",),
    optimizers=("AdamW", "SGDM"),
    steps=12,
    more=(),
    seeds=1,
)


def made_up(speed_of_best=None, seeds=1):
    """A result in which every cell is best where it rotates 10 mrad in mid-run, or as given by task."""
    config = replace(speedometer.PAPER, more=(), seeds=seeds)
    values = {name: np.full((seeds, len(config.parts), len(PLACES)), np.nan) for name in QUANTITIES}
    for number, (task, optimizer, _) in enumerate(config.parts):
        best = {"SGDM": -1, "Lion": -6}.get(optimizer, -4)
        mid = (speed_of_best or {}).get(task, 0.01)
        for i, place in enumerate(PLACES):
            if abs(place - best) <= MARGIN:
                values["loss"][:, number, i] = 1 + 0.05 * (place - best) ** 2
                for name in QUANTITIES[1:]:
                    values[name][:, number, i] = mid * 10 ** ((place - best) / 2)
    return Result(config, values)


@pytest.mark.parametrize("best", [-10, -8, -3, 1, 3])
def test_a_search_ends_with_two_learning_rates_on_each_side_of_the_best_or_at_the_edge(best):
    losses = search(-4, lambda place: abs(place - best))
    assert min(losses, key=losses.get) == best
    assert min(losses) <= max(best - MARGIN, PLACES[0])
    assert max(losses) >= min(best + MARGIN, PLACES[-1])


def test_the_best_place_is_that_of_a_parabola():
    loss = np.full(len(PLACES), np.nan)
    loss[4:7] = (np.array(PLACES[4:7]) + 4.7) ** 2
    assert refined_place(loss) == pytest.approx(-4.7)


def test_runs_are_good_or_bad_by_their_distance_from_the_best_of_their_cell():
    runs = table(made_up())
    cells = len(np.unique(runs.cell))
    assert [kind.sum() / cells for kind in (runs.good, runs.too_slow, runs.too_fast)] == [1, 1, 1]
    assert at_best(runs, runs.mid) == pytest.approx(np.full(cells, 0.01))
    assert at_best(runs, runs.lr)[0] == pytest.approx(lr_at(-4))


def test_an_alarm_marks_what_is_outside_of_good_runs():
    choosing, judging = speedometer.halves(made_up())
    candidate = candidates(choosing)["mid-run rotation"]
    assert candidate.alarm.slow == pytest.approx(0.01)
    counts = Confusion.of(candidate.alarm, judging, candidate.values(judging))
    assert (counts.slow_hits, counts.fast_hits) == (counts.slow_runs, counts.fast_runs)
    assert counts.slow_false == counts.fast_false == 0


def test_a_threshold_allows_two_percent_of_good_runs():
    runs = table(made_up(seeds=10))
    values = np.where(runs.good, np.arange(len(runs.lr), dtype=float), np.nan)
    alarm = choose_alarm("number", runs, values)
    good = runs.good.sum()
    assert (values < alarm.slow).sum() == int(0.02 * good) == (values > alarm.fast).sum() > 0


def test_a_run_without_a_number_is_not_marked():
    runs = table(made_up())
    alarm = choose_alarm("mid", runs, runs.mid)
    counts = Confusion.of(alarm, runs, np.full(len(runs.lr), np.nan))
    assert counts.slow_hits == counts.fast_hits == 0


def test_a_correction_finds_the_power_of_the_width():
    result = made_up()
    fan_in = {task: 2.0 ** (3 + number) for number, task in enumerate(result.config.tasks)}
    for number, (task, _, _) in enumerate(result.config.parts):
        result.values["fan_in"][:, number] = fan_in[task]
        result.values["mid"][:, number] /= fan_in[task] ** 0.5
    correction = best_correction(table(result), "mid-run rotation")
    assert (correction.width, correction.length) == (0.5, -0.5)  # all lengths are the same, so that the first is taken


def test_baselines_know_the_median_of_the_best_learning_rates():
    choosing, _ = speedometer.halves(made_up())
    assert default_lrs(choosing)["Lion"] == pytest.approx(lr_at(-6))
    assert set(baselines(choosing)) == {"lr over the usual one", "lr over the median best one"}


def test_a_suggestion_is_the_learning_rate_at_the_target():
    _, judging = speedometer.halves(made_up())
    lrs = suggested_lrs(judging, judging.forecast_total, 0.01)
    assert near_best(judging, lrs, 1.05).all()
    assert not near_best(judging, suggested_lrs(judging, judging.forecast_total, 1e3), 3.0).any()


def test_suggestions_follow_the_choosing_half():
    slow = dict.fromkeys(speedometer.HELD_OUT, 0.001)
    methods = suggestions(*speedometer.halves(made_up(slow)))
    _, judging = speedometer.halves(made_up(slow))
    assert near_best(judging, methods["median best lr of the optimizer"], 1.05).all()
    assert not near_best(judging, methods["forecast mid-run rotation, one target"], 3.0).any()


def test_scatter_is_a_factor():
    assert scatter(np.array([2.0, 2.0, 2.0])) == 1.0


def test_muon_does_not_train_convolutions():
    assert ("CNN, batch norm", "Muon", 200) not in speedometer.PAPER.parts
    assert ("ViT", "Muon", 200) in speedometer.PAPER.parts
    assert not set(speedometer.HELD_OUT) - set(speedometer.TASKS)


def test_the_angle_to_the_start_is_that_of_a_random_walk():
    walk = forecast(AdamW(1e-2, 0.5), steps=300, norm=1.0, fan_in=64)
    rng = np.random.default_rng(0)
    w = rng.normal(size=(400, 64))
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    first = w.copy()
    m = np.zeros_like(w)
    for t in range(1, 301):
        g = rng.normal(size=w.shape)
        m = 0.9 * m + 0.1 * g
        w = (1 - 5e-3) * w - 1e-2 * m / (1 - 0.9**t)
    cosines = (w * first).sum(1) / np.linalg.norm(w, axis=1)
    assert angle_to_start(walk) == pytest.approx(np.arccos(cosines).mean(), rel=0.05)


def test_a_training_measures_rotation_and_stops_if_it_diverges():
    settings = {**speedometer.EMBEDDED["MLP, batch norm"], "schedule": "linear", "steps": 20, "warmup": 1}
    measured = train({**settings, "optimizer": "adamw", "lr": 1e-3})
    assert set(measured) == set(QUANTITIES)
    assert all(np.isfinite(value) for value in measured.values())
    lost = train({**settings, "optimizer": "sgd", "lr": 1e3, "norm": "none"})
    assert np.isnan(lost["mid"])
    assert np.isnan(train({**settings, "optimizer": "adamw", "lr": 20.0})["forecast_total"])


@pytest.mark.slow
def test_it_trains_draws_and_judges():
    result = run_trials(speedometer, TINY)
    assert result["loss"].shape == (1, 4, len(PLACES))
    assert len(speedometer.plot(result).data) > 0
    claims = speedometer.claims(result)
    assert len({claim.sentence for claim in claims}) == len(claims) > 0
    assert isinstance(table(result), Runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", second_look.CLAIMS)
def test_a_later_look_trains_draws_and_judges(name):
    config = replace(second_look.QUICK[name], steps=12, optimizers=("AdamW", "SGDM"), seeds=1)
    result = run_trials(second_look, config)
    assert len(second_look.plot(result).data) > 0
    claims = second_look.claims(result)
    assert len({claim.sentence for claim in claims}) == len(claims) > 0


def test_a_later_experiment_has_other_seeds_and_tasks():
    assert all(config.first_seed >= second_look.FIRST_SEED for config in second_look.PAPER.values())
    assert not set(second_look.NEW) & set(speedometer.TASKS)
    assert set(second_look.SAME) <= set(speedometer.HELD_OUT)


RECORDS = [f"speed/{name}" for name in ("speedometer", *second_look.CLAIMS)]


@pytest.mark.parametrize("name", RECORDS)
def test_the_record_is_what_its_values_say(name):
    experiment, result = read_result(RESULTS, name)
    record = ExperimentRecord.read(RESULTS, name)
    judged = experiment.claims(result)
    assert [(claim.sentence, claim.outcome) for claim in record.claims] == [
        (claim.sentence, claim.outcome) for claim in judged
    ]


def test_later_looks_judge_what_the_first_look_chose():
    choosing, _ = speedometer.halves(read_result(RESULTS, "speed/speedometer")[1])
    without_sgd = choosing.where(choosing.optimizer != "SGDM")
    plain = candidates(without_sgd)["mid-run rotation"]
    for chosen, candidate in (
        (_chosen.BY_RULE, chosen_candidate(choosing)),
        (_chosen.CORRECTED_WITHOUT_SGD, chosen_candidate(without_sgd)),
        (_chosen.WITHOUT_SGD, plain),
    ):
        numbers = [(*each.alarm.band, each.alarm.slow, each.alarm.fast) for each in (chosen, candidate)]
        assert numbers[0] == pytest.approx(numbers[1], rel=5e-3)
        assert chosen.values(choosing) == pytest.approx(candidate.values(choosing), nan_ok=True)
