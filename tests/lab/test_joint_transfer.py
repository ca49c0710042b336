"""The trial of joint changes: what its candidates are, that it resumes, and that its decision is the one it fixed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.transfer import joint
from gyroscope_lab.transfer._joint_candidates import BASELINE, OURS, PRODUCT, Change, candidate_rules, settings_of
from gyroscope_lab.transfer._joint_table import above_best, above_product, decide, stored_losses
from gyroscope_lab.transfer._networks import TUNED, make_problem

from gyroscope.theory import Scale, transfer
from tests.lab.test_transfer import RESULTS

SMALL = replace(TUNED["mlp"], width=8, batch=8, steps=16)
NAMES = list(candidate_rules())
CHANGE = Change(4, 4, 2)


@pytest.fixture
def config(tmp_path):
    grid = ((3e-3, 0.1), (1e-2, 0.1))
    return joint.Config(SMALL, grid, (CHANGE,), seeds=2, store=str(tmp_path / "joint.jsonl"))


def test_each_training_is_a_line_and_is_not_repeated(config, monkeypatch):
    result = run_trials(joint, config)
    assert result["loss"].shape == (2, len(NAMES))
    assert np.isfinite(result["loss"]).all()
    with open(config.store, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    # Two points of the grid on two seeds, and each arm on two more.
    assert len(lines) == 4 + 2 * len(NAMES)
    assert {line["settings"]["seed"] for line in lines} == {*joint.TUNING_SEEDS, 0, 1}
    monkeypatch.setattr(joint, "train", lambda *args, **options: pytest.fail("a finished training is repeated"))
    again = run_trials(joint, config)
    assert (again["loss"] == result["loss"]).all()
    assert len(joint.plot(result).data) > 0
    assert len(joint.claims(result)) == len(NAMES) - 1


def test_the_tuned_settings_are_the_best_of_the_grid(config, monkeypatch):
    losses = {3e-3: 2.0, 1e-2: 1.0}
    monkeypatch.setattr(
        joint, "train", lambda trial, problem, optimizers, **options: losses.get(optimizers[0].param_groups[0]["lr"], 9)
    )
    tuned = run_trials(joint, config)["tuned"]
    assert tuned[0, 0].tolist() == [1e-2, 0.1]


def test_the_product_is_the_answer_of_the_library():
    base, to = CHANGE.scales(SMALL)
    assert to == Scale(batch=32, tokens=4 * 8 * 16, width=16)
    (answer,) = transfer(SMALL.rule, base=base, to=to).recommended
    assert settings_of(SMALL, CHANGE, PRODUCT) == answer.groups


def test_the_settings_of_the_other_candidates():
    hidden = {name: settings_of(SMALL, CHANGE, name)["hidden"] for name in NAMES}
    lr, decay = SMALL.lr, SMALL.weight_decay
    assert hidden[BASELINE].lr == lr
    assert hidden[BASELINE].weight_decay == pytest.approx(decay)
    assert hidden["completed"].lr == pytest.approx(lr / 2)  # (4/4)^½ / 2
    assert hidden["completed"].weight_decay == pytest.approx(decay)
    assert hidden["power-lines"].lr == hidden[PRODUCT].lr
    # B/D·(D/N)^.527, with N as the square of the width.
    assert hidden["power-lines"].weight_decay == pytest.approx(decay * (4 / 4) ** 0.527)
    assert hidden["keep-rotation"].weight_decay == pytest.approx(decay)
    assert hidden["product over the run"].weight_decay == hidden[PRODUCT].weight_decay
    for name in OURS:
        assert hidden[name].lr != pytest.approx(hidden[PRODUCT].lr, rel=0.01)


def test_the_new_gpt_starts_with_norms_that_do_not_depend_on_the_width():
    norms = []
    for width in (8, 32):
        weights = dict(make_problem("code", width, 0).model.named_parameters())
        norms.append(float(weights["blocks.0.attention.qkv.weight"].detach().norm(dim=1).mean()))
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def losses(**above):
    """Two networks and two changes: the losses by arm, with noise that the seeds share."""
    generator = np.random.default_rng(0)
    noise = 1e-3 * generator.standard_normal((8, 2, len(NAMES)))
    means = np.array([above.get(name.replace("-", "_"), 0.01) for name in NAMES])
    return {"gpt": 1.0 + noise + means, "mlp": 2.0 - noise + means}


def test_the_product_stays_unless_another_candidate_is_better_by_its_interval():
    assert decide(losses(product=0.01), NAMES) == PRODUCT
    assert decide(losses(completed=0.0), NAMES) == "completed"
    assert decide(losses(completed=0.0, keep_rotation=-0.01), NAMES) == "keep-rotation"
    # Copied settings are no candidate.
    assert decide(losses(copy=-1.0), NAMES) == PRODUCT
    noisy = losses(completed=0.0)
    noisy["gpt"][:, :, NAMES.index("completed")] += np.linspace(-0.1, 0.1, 8)[:, None]
    assert decide(noisy, NAMES) == PRODUCT


def test_the_uncertainty_of_the_answer_is_its_mean_loss_above_the_best_candidate():
    # Noise of 0.001 in eight seeds.
    assert above_best(losses(completed=0.0), NAMES, PRODUCT) == pytest.approx(0.01, abs=2e-3)
    assert above_product(losses(completed=0.0), NAMES)["completed"].mean == pytest.approx(-0.01, abs=1e-3)


def test_single_axes_are_compared_with_the_stored_losses():
    stored = stored_losses(RESULTS, "tokens", "gpt", 4.0)
    # docs/transfer.md had this row: 2.019, 2.013, 2.039 and 2.026.
    assert {name: round(float(loss.mean()), 3) for name, loss in stored.items()} == {
        "copy": 2.019,
        "tau": 2.013,
        "completed": 2.039,
        "horizon": 2.026,
    }


def test_every_config_of_the_trial_has_what_the_protocol_says():
    deciding = [joint.PAPER[f"joint_{name}"] for name in ("gpt", "mlp", "code", "vit")]
    assert {config.seeds for config in deciding} == {8}
    assert {config.names for config in deciding} == {tuple(NAMES)}
    assert {config.changes for config in deciding} == {(Change(4, 4, 2), Change(0.25, 4, 1), Change(2, 1, 4))}
    for name, config in joint.PAPER.items():
        # A warmup of 5 % and a cosine have half of the steps at the peak.
        memories = {round(lr * decay * config.tuned.steps * 0.5, 1) for lr, decay in config.grid}
        assert memories <= ({3.0, 6.0} if "long" in name else {0.5, 1.0, 2.0})
    gpt = joint.PAPER["joint_gpt"].tuned
    assert gpt.lr * gpt.weight_decay * gpt.steps * 0.5 == pytest.approx(0.9)
    # The paper's seeds are judged, and choose nothing.
    assert not set(range(8)) & set(joint.TUNING_SEEDS)


def test_axes_are_claimed_between_our_two_candidates():
    config = joint.Config(SMALL, changes=(Change(batch=4),), names=OURS, seeds=2)
    claims = joint.claims(Result(config, {"loss": np.array([[1.0, 1.5], [1.0, 1.5]])}))
    assert [claim.holds for claim in claims] == [False]
