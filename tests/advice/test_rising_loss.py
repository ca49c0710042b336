"""A loss that rose is named by its usual names, and noise is not."""

import numpy as np
import pytest

from gyroscope.advice import diagnose
from gyroscope.advice.judgements.rising_loss import find_rise, judged_losses
from tests.advice.memory import record


def logged(**losses):
    run = record()
    run.scalars = list(losses)
    run.scalar = lambda name: (np.arange(len(losses[name])), np.asarray(losses[name]))
    return diagnose(run)


FALLING = np.linspace(3, 1, 200)
RUINED = np.concatenate([FALLING, np.linspace(1, 4, 100)])


def test_a_loss_that_rose_is_named_and_nothing_beside_it_is_green():
    assert logged(loss=FALLING).kinds == ("well",)
    ruined = logged(loss=RUINED)
    assert ruined.kinds == ("rising_loss",)
    assert "The logged loss rose from 1." in ruined[0].sentence
    assert ruined[0].evidence["last"] == pytest.approx(RUINED[-37:].mean(), rel=0.02)


@pytest.mark.parametrize(
    "name",
    ["val_loss", "eval_loss", "validation_loss", "test_loss", "eval/loss", "val/loss", "valid.loss", "Loss/val"],
)
def test_a_loss_on_held_out_data_judges_a_run_before_the_training_loss(name):
    assert judged_losses(["loss", "accuracy", name]) == [name, "loss"]
    assert f"The logged {name} rose" in logged(**{"loss": RUINED, name: RUINED})[0].sentence
    assert f"The logged {name} rose" in logged(**{"loss": FALLING, name: RUINED})[0].sentence


@pytest.mark.parametrize("name", ["latest_loss", "train_loss", "retrieval_loss", "val_accuracy", "loss_scale"])
def test_another_number_is_no_loss_on_held_out_data(name):
    assert judged_losses([name, "loss"]) == ["loss"]


def correlated(random, count, share):
    """Return normal numbers, each of which keeps a share of the one before it."""
    values = random.standard_normal(count)
    for place in range(1, count):
        values[place] = share * values[place - 1] + (1 - share**2) ** 0.5 * values[place]
    return values


STATIONARY = {
    "log-normal, σ = 0.1": lambda random, count: np.exp(0.1 * random.standard_normal(count)),
    "log-normal, σ = 0.5": lambda random, count: np.exp(0.5 * random.standard_normal(count)),
    "log-normal, σ = 1": lambda random, count: np.exp(random.standard_normal(count)),
    "normal": lambda random, count: 1 + 0.2 * random.standard_normal(count),
    "heavy tails": lambda random, count: np.exp(0.5 * random.standard_t(3, count)),
    "correlated": lambda random, count: np.exp(0.5 * correlated(random, count, 0.9)),
    "correlated, σ = 1": lambda random, count: np.exp(correlated(random, count, 0.6)),
}


@pytest.mark.parametrize("kind", STATIONARY)
def test_no_stationary_loss_rises(kind):
    """Of 20 log-normal runs of 200 losses with σ = 1, the ratio of block means alone named 14."""
    random = np.random.default_rng(0)
    counts = [*[200] * 20, *[1000] * 5, 5000]
    assert [count for count in counts if find_rise(STATIONARY[kind](random, count)) is not None] == []


PART = np.linspace(0, 1, 400)
RISES = {
    "overfits": 1 + 2 * np.exp(-12 * PART) + 0.8 * PART**2,
    "jumps early and stays": np.where(PART < 0.2, 1.0, 3.0),
    "jumps late": np.where(PART < 0.9, 1 + 2 * np.exp(-8 * PART), 4.0),
    "falls and rises": np.interp(PART, [0, 0.7, 1], [3, 1, 4]),
}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("kind", RISES)
def test_a_rise_beyond_noise_is_found_where_the_loss_was_lowest(kind, noise):
    losses = RISES[kind] * np.exp(noise * np.random.default_rng(0).standard_normal(400))
    rise = find_rise(losses)
    smooth = np.convolve(RISES[kind], np.ones(50) / 50, "valid")
    assert rise.best == pytest.approx(smooth.min(), rel=0.1)
    assert smooth[rise.first] < 1.1 * smooth.min()
    assert rise.after - rise.first == 50


def test_ten_losses_of_an_evaluation_can_rise():
    assert find_rise(np.array([3.0, 2.0, 1.5, 1.2, 1.0, 1.1, 1.4, 1.9, 2.5, 3.2])) is not None
    assert find_rise(np.array([3.0, 2.0, 1.5, 1.2, 1.0, 1.1, 1.0, 1.1, 1.0, 1.2])) is None


def test_losses_without_a_ratio_are_not_judged():
    assert logged(loss=-RUINED[::-1]).kinds == ("well",)
    assert "rising_loss" in logged(loss=np.where(np.arange(300) % 50 == 7, 0.0, RUINED)).kinds
