"""Arms and learning rates are chosen on seeds that are not judged."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from gyroscope_lab.framework.choices import best_part, choose, of_chosen, scores_at_best
from gyroscope_lab.framework.experiment import Result, load
from gyroscope_lab.framework.seeds import FIRST_CHOOSING_SEED, choosing_seeds, judged_seeds
from gyroscope_lab.framework.trials import run_trials

ARMS = ("a", "b", "c")


@dataclass(frozen=True)
class Config:
    seeds: int = 3
    choosing_seeds: int = 2
    parts: tuple[str, ...] = ARMS
    candidates: tuple[str, ...] = ("a", "b")


@dataclass(frozen=True)
class Saving(Config):
    def judged_parts(self, choosing):
        return [best_part(self, choosing, "accuracy", self.candidates), "c"]


def measured(config=None, first_seed=0):
    """Arm b is the best on the seeds that choose, and the worst on all others."""
    seen = []

    def measure(trial):
        seen.append((trial.seed, trial.part))
        chooses = trial.seed >= FIRST_CHOOSING_SEED
        return {"accuracy": float(chooses == (trial.part == "b")), "loss": 1.0, "course": [1.0, 2.0]}

    return run_trials(SimpleNamespace(measure=measure), config or Config(), first_seed=first_seed), seen


def test_seeds_that_choose_are_not_judged():
    result, seen = measured()
    assert result["accuracy"].shape == (3, 3)
    assert choose(result, "accuracy", ["a", "b"]) == ["b"] * 3
    assert scores_at_best(result, "accuracy", ["a", "b"]).tolist() == [0.0] * 3
    assert {seed for seed, _ in seen} == {0, 1, 2, FIRST_CHOOSING_SEED, FIRST_CHOOSING_SEED + 1}


def test_only_candidates_are_measured_for_the_choice_and_only_their_numbers_are_kept():
    result, seen = measured()
    assert {part for seed, part in seen if seed >= FIRST_CHOOSING_SEED} == {"a", "b"}
    assert set(result.choosing) == {"accuracy", "loss"}
    assert np.isnan(result.choosing["accuracy"][:, 2]).all()


def test_parts_that_lost_are_not_trained_on_judged_seeds_if_the_config_says_so():
    result, seen = measured(Saving())
    assert [part for seed, part in seen if seed == 0] == ["b", "c"]
    assert np.isnan(result["accuracy"][:, 0]).all()
    assert np.isnan(result["course"][:, 0]).all()
    assert scores_at_best(result, "accuracy", ["a", "b"]).tolist() == [0.0] * 3
    # Without seeds that choose nothing has lost.
    _, seen = measured(Saving(choosing_seeds=0))
    assert [part for seed, part in seen if seed == 0] == ["a", "b", "c"]


def test_progress_never_goes_back_and_ends_at_one():
    shares = []
    experiment = SimpleNamespace(measure=lambda trial: trial.report(0.5) or {"accuracy": 1.0})
    run_trials(experiment, Saving(), report=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_another_first_seed_is_judged_and_chosen_on_other_seeds():
    _, seen = measured(first_seed=1000)
    assert [seed for seed, part in seen if part == "a"] == [101_000, 101_001, 1000, 1001, 1002]
    config = Config(seeds=500, choosing_seeds=500)
    assert not set(judged_seeds(config, 49_999)) & set(choosing_seeds(config, 0))


def test_without_choosing_seeds_every_seed_is_judged_with_the_choice_of_the_others():
    accuracy = np.array([[0.9, 0.1], [0.2, 0.3], [0.2, 0.3]])
    result = Result(SimpleNamespace(parts=("a", "b")), {"accuracy": accuracy})
    # The first seed alone makes a the best on average, and is not judged with that choice.
    assert choose(result, "accuracy", ["a", "b"]) == ["b", "a", "a"]
    assert scores_at_best(result, "accuracy", ["a", "b"]).tolist() == [0.1, 0.2, 0.2]


def test_the_best_of_equal_arms_is_not_better_than_one_of_them():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(2000, 32))
    result = Result(SimpleNamespace(parts=range(32)), {"accuracy": scores})
    assert abs(scores_at_best(result, "accuracy", range(32)).mean()) < 0.1


def test_the_lowest_loss_is_the_best_and_arrays_of_the_chosen_arm_are_whole():
    result = Result(
        SimpleNamespace(parts=("a", "b")),
        {"loss": np.ones((2, 2)), "course": np.arange(8).reshape(2, 2, 2)},
        choosing={"loss": np.array([[2.0, 1.0]])},
    )
    chosen = choose(result, "loss", ["a", "b"])
    assert chosen == ["b", "b"]
    assert of_chosen(result, "course", chosen).tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize("name", ["re/fig3", "re/fig4", "re/fig5", "re/fig12", "re/fig13", "re/table2", "re/table3",
                                  "sp/table2", "sp/table5", "ct/fig6", "ct/fig16", "ct/section4_3",
                                  "beyond/rotational_sgd"])  # fmt: skip
def test_an_experiment_that_chooses_has_seeds_for_it(name):
    assert load(name).QUICK.choosing_seeds > 0
