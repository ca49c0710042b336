"""The bench of advice: it follows what findings say to the letter, keeps what is finished, and counts outcomes."""

import json

import numpy as np
import pytest
from gyroscope_lab.advice import _rounds, trial
from gyroscope_lab.advice._outcomes import outcomes, score
from gyroscope_lab.advice._rounds import follow, lowest_place
from gyroscope_lab.advice._situations import NETWORKS, SITUATIONS, applied, situations_of
from gyroscope_lab.advice._store import StoredLines
from gyroscope_lab.advice._training import LOST, PLANTS, Bench
from gyroscope_lab.framework.experiment import Result

TINY = {"task": "digits", "model": "mlp:width=16", "norm": "layer", "steps": 60, "sample_every": 5, "evaluations": 1}
TINY |= {"lr": 1e-2, "weight_decay": 0.1, "optimizer": "adamw", "seed": 0}


def test_a_remedy_is_followed_to_the_letter_until_nothing_new_is_named(tmp_path):
    bench = Bench.at(tmp_path / "results", tmp_path / "runs")
    first, second = follow(bench, {**TINY, "betas": (0.9, 0.3)}, "")
    assert first.changes == {"betas": [0.9, 0.99]}
    assert first.summary[0].startswith("Set beta2 above beta1²")
    assert second.changes == {}
    assert second.loss < first.loss
    stored = [json.loads(line) for line in (tmp_path / "results" / "losses.jsonl").read_text().splitlines()]
    assert [line["key"]["settings"]["betas"] for line in stored] == [[0.9, 0.3], [0.9, 0.99]]


def test_a_change_that_was_made_before_ends_the_rounds(monkeypatch, tmp_path):
    bench = Bench(StoredLines(None), StoredLines(None), tmp_path)
    monkeypatch.setattr(Bench, "loss", lambda *_: {"loss": 1.0, "accuracy": 0.5})
    for changes, rounds in (({"lr": "×0.3"}, 1 + _rounds.ROUNDS), ({"lr": 1e-2}, 1), ({"lr": 2e-2}, 2)):
        monkeypatch.setattr(Bench, "advice", lambda *_, c=changes: {"summary": ["…"], "changes": c, "kinds": []})
        assert len(follow(bench, TINY, "")) == rounds


def test_nothing_that_is_finished_is_measured_again_also_after_a_kill(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = StoredLines(path)
    assert lines.get({"lr": 1, "betas": (0, 1)}, lambda: {"loss": 2.5}) == {"loss": 2.5}
    with path.open("a") as file:
        file.write('{"key": {"lr": 2}, "val')  # killed while it wrote
    again = StoredLines(path)
    assert again.get({"betas": [0, 1], "lr": 1}, pytest.fail) == {"loss": 2.5}
    assert again.get({"lr": 2}, lambda: {"loss": 3.0}) == {"loss": 3.0}
    assert StoredLines(path).get({"lr": 2}, pytest.fail) == {"loss": 3.0}


def test_other_words_judge_a_stored_run_without_training_again(monkeypatch, tmp_path):
    bench = Bench.at(tmp_path / "results", tmp_path / "runs")
    (first,) = follow(bench, TINY, "")
    monkeypatch.setattr("gyroscope_lab.advice._training.advice_code", lambda: "other words")
    monkeypatch.setattr(Bench, "_train", pytest.fail)
    assert follow(bench, TINY, "") == [first]
    assert len((tmp_path / "results" / "findings.jsonl").read_text().splitlines()) == 2


def test_a_factor_multiplies_and_everything_else_replaces():
    assert applied({"lr": 2.0, "warmup": 5}, {"lr": "×0.5", "warmup": 20}) == {"lr": 1.0, "warmup": 20}


@pytest.mark.parametrize("losses", [[3, 2, 1, 2, 3], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0, 1]])
def test_a_learning_rate_is_tuned_beyond_the_edge(losses):
    start = 2
    best = lowest_place(lambda place: losses[min(max(place + start, 0), len(losses) - 1)] + 0.1 * abs(place))
    assert losses[best + start] == min(losses)


def test_every_situation_can_be_made_on_every_network():
    for half in NETWORKS.values():
        for network, settings in half.items():
            for name in situations_of(network):
                each = SITUATIONS[name]
                changed = each.change({**settings, "lr": 1.0, "weight_decay": 1.0, "warmup": 20})
                assert each.planted in PLANTS
                assert each.expected
                assert changed["model"] == settings["model"]


def test_outcomes_are_those_of_the_protocol():
    """Before, after and tuned losses of three seeds, and how many of them were told a change."""
    noise = np.array([-0.001, 0.0, 0.001])
    cases = {  # before, after, told, what it counts as
        "helped": (1.2, 1.0, 3, "improved"),
        "useless": (1.2, 1.2, 3, "useless"),
        "silent": (1.2, 1.2, 1, "silent"),
        "harmed": (1.2, 1.4, 3, "harmed"),
        "left alone": (1.0, 1.0, 0, "good"),
        "disturbed": (1.0, 1.0, 2, "disturbed"),
    }

    class Config:
        parts = tuple(cases)

    losses = np.stack([np.stack([b + noise, a + noise[::-1]], axis=1) for b, a, _, _ in cases.values()], axis=1)
    told = np.stack([np.arange(3) < n for _, _, n, _ in cases.values()], axis=1)
    tuned = np.ones((3, len(cases)))
    values = {"losses": losses, "changes": told * 1.0, "tuned_loss": tuned, "accuracy": tuned, "tuned_accuracy": tuned}
    judged = outcomes(Result(Config(), values))
    assert [each.effect for each in judged] == [
        "lowers the loss",
        "no effect seen",
        "none",
        "raises the loss",
        "none",
        "no effect seen",
    ]
    counted = score(judged)
    assert (counted.improved, counted.useless, counted.silent, counted.harmed_bad) == (1, 1, 1, 1)
    assert (counted.harmed, counted.good, counted.disturbed) == (1, 2, 1)


def test_both_halves_have_other_networks_and_seeds_that_chose_nothing():
    assert not set(NETWORKS["choosing"]) & set(NETWORKS["judging"])
    assert trial.SEEDS < _rounds.TUNING_SEED < 10_000
    assert np.log(1000) < LOST
