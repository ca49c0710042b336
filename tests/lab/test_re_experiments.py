"""The trainings of RE's figures and tables run, draw and judge at a size of seconds, on data that every machine has."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gyroscope_lab.framework.claims import ClaimOutcome
from gyroscope_lab.framework.experiment import Measurements, Result, Trial, load
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.re import _tracked, fig5, table2_table3
from gyroscope_lab.training import TrainConfig

TRAININGS = [
    "fig1",
    "fig3",
    "fig4",
    "fig5",
    "fig9",
    "fig10",
    "fig11",
    "fig12",
    "fig13",
    "fig14",
    "fig15",
    "table2",
    "table3",
]
NETWORKS = {
    "resnet20": "resnet20:width=2,blocks=1",
    "cnn": "cnn:width=4",
    "gpt": "gpt:layers=2,width=8,heads=2,context=8",
    "vit": "vit:layers=1,width=12",
    "transformer": "transformer:layers=1,width=8,heads=2,hidden=8",
}


TASKS = {"gpt": "stdlib", "transformer": "translation"}


def tiny(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings with a small network, small data and eight steps."""
    changes: dict[str, Any] = {}
    if "model" in settings:
        kind = settings["model"].partition(":")[0]
        changes |= {"model": NETWORKS[kind], "task": TASKS.get(kind, "digits"), "shrink": 1}
    if "batch_size" in settings:
        changes["batch_size"] = 8
    if "steps" in settings:
        changes["steps"] = 8
    return {**settings, **changes}


def tiny_config(name: str) -> Any:
    config = load(f"re/{name}").QUICK
    if hasattr(config, "settings"):
        return replace(config, settings=tiny(config.settings), seeds=1)
    arms = {arm: tiny(settings) for arm, settings in config.arms.items()}
    choosing = min(config.choosing_seeds, 1)
    return replace(config, base=tiny(config.base), arms=arms, seeds=1, choosing_seeds=choosing)


def sharing_trainings(measure: Callable[[Trial[Any]], Measurements]) -> SimpleNamespace:
    """The same measurement, in which arms that differ in learning rate and weight decay alone share a training."""
    trained: dict[str, Measurements] = {}

    def measure_once(trial: Trial[Any]) -> Measurements:
        arm = getattr(trial.config, "arms", {}).get(trial.part, {})
        kind = {name: value for name, value in arm.items() if name not in ("lr", "weight_decay")}
        key = f"{sorted(kind.items())} {trial.seed}" if arm else f"{trial.part} {trial.seed}"
        if key not in trained:
            trained[key] = measure(trial)
        return trained[key]

    return SimpleNamespace(measure=measure_once)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_it_runs_draws_and_judges(name):
    experiment = load(f"re/{name}")
    result = run_trials(sharing_trainings(experiment.measure), tiny_config(name))
    figure = experiment.plot(result)
    assert len(figure.data) > 0
    assert figure.layout.title.text
    claims = experiment.claims(result)
    assert len({claim.sentence for claim in claims}) == len(claims) > 0
    assert all(claim.measured.n == 1 for claim in claims)


@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_at_every_size_is_one(name):
    experiment = load(f"re/{name}")
    for config in (experiment.QUICK, getattr(experiment, "MEDIUM", experiment.QUICK), experiment.PAPER):
        every = [config.settings] if hasattr(config, "settings") else config.arms.values()
        for settings in every:
            TrainConfig.from_dict({**getattr(config, "base", {}), **settings})


class Samples:
    """A run as the courses see it: the steps that were sampled."""

    def __init__(self, *steps: int) -> None:
        self.steps = np.array(steps)


def test_a_course_has_the_same_points_whatever_steps_were_sampled():
    dense: Any = Samples(*range(1000))
    sparse: Any = Samples(*range(20), *range(20, 1000, 40))
    straight = {run: np.asarray(run.steps, float) for run in (dense, sparse)}
    courses = [_tracked.course(run, values) for run, values in straight.items()]
    assert all(len(each) == _tracked.POINTS for each in courses)
    # A point of the sparse run is the mean of the samples about it, half an interval off at most.
    np.testing.assert_allclose(*courses, atol=20)
    assert np.isnan(_tracked.course(sparse, np.full(len(sparse.steps), np.nan))).all()


def test_a_mean_over_a_part_leaves_out_the_rest_and_what_was_not_measured():
    run: Any = Samples(0, 250, 500, 750, 1000)
    values = np.array([9.0, np.nan, 2.0, 4.0, 9.0])
    assert _tracked.mean_during(run, values, (0.2, 0.8)) == 3.0
    assert np.isnan(_tracked.mean_during(run, values, (0.2, 0.3)))
    diverged: Any = Samples(0)
    assert _tracked.mean_during(diverged, np.array([1.0]), (0.0, 0.5)) == 1.0


def test_an_error_is_one_where_there_is_no_equilibrium():
    predicted = np.array([0.0, np.inf, 2.0, 1.0])
    np.testing.assert_allclose(_tracked.relative_error(np.array([1.0, 1.0, 1.0, 2.0]), predicted), [1, 1, 0.5, 0.5])


@pytest.mark.parametrize(("better", "outcome"), [(-0.1, "does not hold"), (0.0, "holds"), (0.1, "holds")])
def test_a_variant_fails_its_claims_if_it_is_worse_than_its_base_and_not_if_it_is_better(better, outcome):
    config = table2_table3.QUICK["table3"]
    rotational = np.array(["rotational" in arm for arm in config.parts])
    scores = np.tile([0.45, 0.46, 0.44], (len(config.parts), 1)).T
    measured = {"accuracy": scores + better * rotational, "loss": scores - better * rotational}
    claims = table2_table3.claims(Result(config, measured))
    assert {claim.outcome for claim in claims} == {ClaimOutcome(outcome)}


def test_a_noisy_base_makes_no_claim_easier():
    config = table2_table3.QUICK["table3"]
    rotational = np.array(["rotational" in arm for arm in config.parts])
    noise = np.array([[0.2], [-0.2], [0.0]])
    scores = 0.5 + noise * ~rotational
    claims = table2_table3.claims(Result(config, {"accuracy": scores, "loss": scores}))
    assert not any(claim.holds for claim in claims)


def test_loss_and_accuracy_are_both_judged_where_there_is_an_accuracy():
    config = table2_table3.QUICK["table2"]
    text = np.array([arm.startswith("GPT") for arm in config.parts])
    seeds = np.array([[0.45], [0.46], [0.44]]) + np.zeros(len(config.parts))
    result = Result(config, {"loss": seeds, "accuracy": np.where(text, np.nan, seeds)})
    sentences = [claim.sentence for claim in table2_table3.claims(result)]
    by_score = {
        score: {s.partition(":")[0] for s in sentences if f": {score} of" in s} for score in ("loss", "accuracy")
    }
    assert by_score == {
        "loss": {"ResNet", "vision transformer", "GPT", "Transformer-S"},
        "accuracy": {"ResNet", "vision transformer", "Transformer-S"},
    }
    assert len(config.methods("Transformer-S")) == 10


def test_base_and_variant_choose_between_a_smaller_and_a_larger_learning_rate():
    config = table2_table3.QUICK["table3"]
    for method in ("SGDM", "rotational SGDM"):
        rates = [config.arms[arm]["lr"] for arm in config.shots("ResNet", method)]
        assert rates == [0.1, 0.025, 0.4]
    assert set(config.shots("ResNet", "SGDM")) <= set(config.candidates)


def test_only_what_was_chosen_is_judged_and_the_variant_at_the_learning_rate_of_its_base():
    config = table2_table3.MEDIUM["table2"]
    choosing = {score: np.full((2, len(config.parts)), 0.5) for score in ("accuracy", "loss")}
    choosing["accuracy"][:, config.parts.index("ResNet: rotational AdamW, lr × 4")] = 0.6
    choosing["loss"][:, config.parts.index("GPT: AdamW, lr ÷ 4")] = 0.4
    judged = config.judged_parts(choosing)
    of_resnet = [arm.removeprefix("ResNet: ") for arm in judged if arm.startswith("ResNet: ")]
    assert set(of_resnet) == {"AdamW", "rotational AdamW", "rotational AdamW, lr × 4", "special variant, lr × 4"}
    of_gpt = [arm.removeprefix("GPT: ") for arm in judged if arm.startswith("GPT: ")]
    assert set(of_gpt) == {"AdamW, lr ÷ 4", "rotational AdamW, lr ÷ 4", "rotational AdamW", "special variant"}
    # Arms of ours are compared with the base at its own learning rate.
    assert "GPT: AdamW" in table2_table3.QUICK["table2"].judged_parts(
        {score: np.full((2, len(table2_table3.QUICK["table2"].parts)), 0.5) for score in ("accuracy", "loss")}
    )


def test_the_best_learning_rate_of_each_optimizer_is_compared():
    config = fig5.QUICK
    accuracy = np.full((3, len(config.parts)), 0.3)
    # SGDM is good at one learning rate, its variant fair at all.
    accuracy[:, config.parts.index("layer norm, SGDM, lr 0.03")] = 0.5
    accuracy[:, ["rotational" in arm for arm in config.parts]] = 0.4
    claims = fig5.claims(Result(config, {"accuracy": accuracy, "spread": np.ones_like(accuracy)}))
    best, mean, largest = (claim.measured.mean for claim in claims[:3])
    assert best == pytest.approx(-0.1)
    assert mean == pytest.approx(0.1 / 3)
    assert largest == pytest.approx(0.1)
