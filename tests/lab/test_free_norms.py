"""The trial of free norms: its search, its store, its decision, and trainings of seconds."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gyroscope_lab.beyond import _free_norms_cells, free_norms, free_norms_decision, free_norms_near, free_norms_width
from gyroscope_lab.beyond._free_norms_arms import ADAMW, CONTROLS, LION, MAIN, SGD, Point
from gyroscope_lab.beyond._free_norms_cells import CHOOSING_SEEDS, FIRST_JUDGED_SEED, Cell, Config, trainings_of
from gyroscope_lab.beyond._free_norms_search import ADAMW_SEARCH, DECAYS, MOST_DECAY, Search
from gyroscope_lab.beyond._free_norms_store import Trainings
from gyroscope_lab.beyond._free_norms_table import decide, read_row, write_table
from gyroscope_lab.beyond._free_norms_training import configured, start, train
from gyroscope_lab.framework.claims import ClaimOutcome
from gyroscope_lab.framework.experiment import Result, Trial
from gyroscope_lab.framework.trials import run_trials

from tests.needs import muon_for

SETTINGS = {"task": "digits", "model": "mlp:width=8", "norm": "none", "batch_size": 16, "steps": 4}
SMALL = Search((2e-3, 8e-3), (0.1,), moves=0)
ARMS = {"AdamW": ADAMW, "other": {"optimizer": "adamw", "betas": (0.8, 0.9)}}


def config(tmp_path, **changes: Any) -> Config:
    whole = Config(SETTINGS, ARMS, SMALL, seeds=3, store=str(tmp_path / "a.jsonl"))
    return replace(whole, **changes)


@pytest.mark.parametrize("target", [Point(1e-3, 0.03, 1.0), Point(6.4e-2, 3.0, 16.0)])
def test_a_best_point_outside_the_coarse_grid_is_reached(target):
    def distance(point: Point) -> float:
        decays = DECAYS.index(point.weight_decay) - DECAYS.index(target.weight_decay)
        others = np.log2([point.lr / target.lr, point.others / target.others])
        return float(decays**2 + np.square(others).sum())

    assert ADAMW_SEARCH.best(distance) == target


def test_the_search_ends_where_decay_or_its_moves_end():
    tried = []

    def faster_is_better(point: Point) -> float:
        tried.append(point)
        return -point.lr * point.weight_decay

    best = replace(ADAMW_SEARCH, moves=20).best(faster_is_better)
    assert max(point.lr * point.weight_decay for point in tried) <= MOST_DECAY
    assert all(near is None or near.lr * near.weight_decay <= best.lr * best.weight_decay
               for near in ADAMW_SEARCH.neighbours(best))  # fmt: skip
    assert replace(ADAMW_SEARCH, moves=1).best(lambda point: -point.lr) == Point(6.4e-2, 0.1, 4.0)


def test_a_store_that_was_killed_in_a_line_loses_that_line_only(tmp_path):
    path = tmp_path / "deep" / "a.jsonl"
    store = Trainings(path)
    store.measure({"lr": 0.1}, lambda: {"loss": 1.23456789})
    store.measure({"lr": 0.2}, lambda: {"loss": 2.0})
    path.write_text(path.read_text() + '{"settings": {"lr": 0.3')
    again = Trainings(path)
    assert again.get({"lr": 0.1}) == {"loss": 1.234568}
    assert len(again) == 2
    again.measure({"lr": 0.3}, lambda: {"loss": 3.0})
    assert [json.loads(line)["settings"]["lr"] for line in path.read_text().splitlines()] == [0.1, 0.2, 0.3]


def test_nothing_is_trained_twice_and_a_killed_run_goes_on(tmp_path, monkeypatch):
    made = config(tmp_path)
    trained: list[tuple[Point, int, int]] = []
    killed_after = 3

    def training(settings, point, seed, report):
        if len(trained) == killed_after:
            raise KeyboardInterrupt
        trained.append((point, seed, settings["steps"]))
        return {"loss": point.lr, "seconds": 1.0}

    monkeypatch.setattr(_free_norms_cells, "train", training)
    with pytest.raises(KeyboardInterrupt):
        free_norms.measure(Trial(made, 0, "AdamW"))
    assert len(trainings_of(made)) == 3
    killed_after = 100
    free_norms.measure(Trial(made, 0, "AdamW"))
    free_norms.measure(Trial(made, 0, "AdamW"))
    assert len(trained) == len(set(trained)) > 3


def test_settings_are_chosen_by_other_seeds_than_those_that_judge(tmp_path, monkeypatch):
    seeds = []

    def training(settings, point, seed, report):
        seeds.append(seed)
        # Judged seeds prefer the higher rate.
        return {"loss": point.lr if seed in CHOOSING_SEEDS else -point.lr, "seconds": 1.0}

    monkeypatch.setattr(_free_norms_cells, "train", training)
    made = config(tmp_path)
    cell = Cell(made, "AdamW", trainings_of(made))
    assert cell.best().lr == 2e-3
    assert set(seeds) == set(CHOOSING_SEEDS)
    assert free_norms.measure(Trial(made, 1, "AdamW"))["loss"] == -2e-3
    assert FIRST_JUDGED_SEED + 1 in seeds


@pytest.mark.parametrize(
    ("fixed", "free", "settling", "default"),
    [
        (0.0, -0.05, -0.1, "settling"),
        (0.0, -0.05, 0.1, "free"),
        (0.1, 0.1, 0.1, "fixed"),
        (-0.2, -0.05, -0.1, "fixed"),
    ],
)
def test_the_default_is_the_lowest_form_that_never_costs_loss(fixed, free, settling, default):
    noise = np.array([-1e-3, 0.0, 1e-3])
    means = {"fixed": fixed, "free": free, "settling": settling}
    differences = {form: {"gpt": mean + noise, "vit": mean + noise} for form, mean in means.items()}
    assert decide(differences)[0] == default


def test_a_form_that_may_cost_loss_on_one_network_is_not_the_default():
    low = np.array([-0.21, -0.2, -0.19])
    uncertain = {"gpt": low, "vit": np.array([-0.03, 0.0, 0.03])}
    plain = {"gpt": low + 0.1, "vit": low + 0.1}
    assert decide({"fixed": plain, "free": plain, "settling": uncertain})[0] == "fixed"


def test_the_rate_of_the_others_acts_on_all_that_does_not_rotate():
    point = Point(1e-3, 0.1, others=16.0)
    for optimizer in ("adamw", "rotational-adamw"):
        settings = {**SETTINGS, "optimizer": optimizer, "norm": "layer"}
        _, (made,) = start(configured(settings, point, 0), point)
        rates = {group["granularity"]: group["lr"] for group in made.param_groups}
        assert rates == {"none": pytest.approx(1.6e-2), "neuron": 1e-3}


OPTIMIZERS = {
    f"{rule} {name}": arm
    for rule, arms in {"AdamW": MAIN | CONTROLS, "SGD": SGD, "Lion": LION}.items()
    for name, arm in arms.items()
}


@pytest.mark.parametrize("name", muon_for("AdamW MuonH", muon_for("AdamW Muon", OPTIMIZERS)))
def test_every_arm_trains(name):
    arm = OPTIMIZERS[name]
    settings = {**SETTINGS, **{key: value for key, value in arm.items() if key != "tuned_warmup"}}
    assert np.isfinite(train(settings, Point(1e-3, 0.1, 4.0), 0)["loss"])


def test_a_network_trains_draws_judges_and_has_a_table(tmp_path):
    made = config(tmp_path)
    result = run_trials(free_norms, made)
    assert result["loss"].shape == (3, 2)
    assert free_norms.plot(result).data
    assert [claim.measured.n for claim in free_norms.claims(result)] == [3]
    near = run_trials(free_norms_near, replace(made, seeds=2))
    np.testing.assert_array_equal(near["loss"], result["loss"][:2])
    assert np.isfinite(near["neighbours"]).all()
    assert near["neighbours"].shape == (2, 2, 6)
    assert (near["time_ratio"] > 0).all()
    np.testing.assert_array_equal(near["equal_time"][:, 0], near["loss"][:, 0])
    assert free_norms_near.plot(near).data
    sentences = [claim.sentence for claim in free_norms_near.claims(near)]
    assert len(set(sentences)) == len(sentences) == 5
    write_table(tmp_path / "table.md", {"free_norms_digits": made})
    row = read_row(made, "other")
    assert row is not None
    np.testing.assert_allclose(row.loss, result["loss"][:, 1], rtol=1e-6)
    np.testing.assert_allclose(row.neighbours, near["neighbours"][:, 1, :2], rtol=1e-6)
    line = f"| other | {row.best.lr:g} | {row.best.weight_decay:g} | {row.best.others:g} | 2 | {row.loss.mean():.4f} |"
    assert line in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_a_table_of_an_unfinished_trial_has_what_is_finished(tmp_path):
    made = config(tmp_path)
    free_norms.measure(Trial(made, 0, "AdamW"))
    assert read_row(made, "other") is None
    row = read_row(made, "AdamW")
    assert row is not None
    assert row.loss.shape == (1,)
    before = (tmp_path / "a.jsonl").read_text()
    write_table(tmp_path / "table.md", {"free_norms_digits": made})
    assert "1 of 6 judged trainings" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "a.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("change", "outcome"),
    [(-0.1, ClaimOutcome.HOLDS), (0.01, ClaimOutcome.UNDECIDED), (0.1, ClaimOutcome.DOES_NOT_HOLD)],
)
def test_loss_above_the_margin_is_judged_so(change, outcome):
    noise = np.array([-1e-3, 0.0, 1e-3])
    values = {"loss": np.stack([1 + 0 * noise, 1 + change + noise], axis=1)}
    (claim,) = free_norms.claims(Result(Config(SETTINGS, ARMS, SMALL), values))
    assert claim.outcome == outcome


def test_the_decision_is_made_from_the_trainings_of_the_networks(tmp_path, monkeypatch):
    by_optimizer = {"AdamW": 0.0, "fixed": 0.1, "free": -0.1, "settling": -0.2}
    calls = []

    def training(settings, point, seed, report):
        calls.append(seed)
        (arm,) = (name for name, each in MAIN.items() if each["optimizer"] == settings["optimizer"])
        return {"loss": 1 + by_optimizer[arm] + 1e-3 * seed, "seconds": 1.0}

    monkeypatch.setattr(_free_norms_cells, "train", training)
    networks = {name: config(tmp_path, arms=MAIN, store=str(tmp_path / name)) for name in ("gpt", "mlp")}
    made = free_norms_decision.DecisionConfig(networks, seeds=2)
    result = run_trials(free_norms_decision, made)
    assert decide(free_norms_decision.differences(result))[0] == "settling"
    outcomes = {claim.sentence: claim.holds for claim in free_norms_decision.claims(result)}
    assert outcomes["fixed: networks on which it may cost 0.01 nats"] is False
    assert outcomes["settling: networks on which it may cost 0.01 nats"] is True
    assert outcomes["MLP without norms: free minus AdamW, nats"] is True
    assert "settling" in free_norms_decision.plot(result).layout.title.text
    calls.clear()
    run_trials(free_norms_decision, made)
    assert calls == []


def test_wider_networks_have_the_settings_of_the_narrow_one(tmp_path, monkeypatch):
    trained = []

    def training(settings, point, seed, report):
        trained.append((settings["model"], point.lr, seed))
        return {"loss": point.lr, "seconds": 1.0}

    monkeypatch.setattr(_free_norms_cells, "train", training)
    made = free_norms_width.WidthConfig(config(tmp_path), ratios=(2,), seeds=1)
    result = run_trials(free_norms_width, made)
    wide = [(lr, seed) for model, lr, seed in trained if "width=96" in model]
    assert wide == [(factor * 2e-3, FIRST_JUDGED_SEED) for factor in (0.5, 1.0, 2.0)] * 2
    assert free_norms_width.plot(result).data
    assert len(free_norms_width.claims(result)) == 2


@pytest.mark.parametrize("name", free_norms.PAPER)
def test_the_trial_of_each_network_has_one_store_for_all_its_arms(name):
    made = free_norms.PAPER[name]
    assert made.store is not None
    assert made.store.startswith("results/beyond/free_norms/")
    assert made.reference in ("AdamW", "SGDM", "Lion")
    assert set(made.settings) >= {"task", "model", "steps", "batch_size"}
