"""The learning rate of the last step, from each scheduler's own state, against the rate that was used."""

import warnings
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from gyroscope.checkpoint.files.formats import open_checkpoint
from gyroscope.checkpoint.last_step.last_rates import SavedRate

SCHEDULES = {
    "cosine": partial(schedulers.CosineAnnealingLR, T_max=50, eta_min=1e-4),
    "linear": partial(schedulers.LinearLR, start_factor=0.1, total_iters=30),
    "constant": partial(schedulers.ConstantLR, factor=0.5, total_iters=10),
    "polynomial": partial(schedulers.PolynomialLR, total_iters=50, power=2.0),
    "step": partial(schedulers.StepLR, step_size=5, gamma=0.5),
    "milestones": partial(schedulers.MultiStepLR, milestones=[4, 9, 21], gamma=0.1),
    "exponential": partial(schedulers.ExponentialLR, gamma=0.97),
    "warmup, then cosine": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, total_iters=9), schedulers.CosineAnnealingLR(optimizer, 40)],
        milestones=[9],
    ),
    "one cycle": partial(schedulers.OneCycleLR, max_lr=1e-2, total_steps=50),
    "one cycle of three linear phases": partial(
        schedulers.OneCycleLR, max_lr=1e-2, total_steps=60, three_phase=True, anneal_strategy="linear"
    ),
}


def used_rates(schedule, steps: int) -> tuple[list[float], torch.optim.Optimizer, dict]:
    """Rates that an optimizer used, and the state of its scheduler after the last."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 2))], lr=1e-2)
    scheduler = schedule(optimizer)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR warns of itself
            scheduler.step()
    return used, optimizer, scheduler.state_dict()


@pytest.mark.parametrize("steps", [1, 5, 9, 10, 22, 41])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_the_last_step_is_the_one_that_was_used(name, steps):
    used, optimizer, state = used_rates(SCHEDULES[name], steps)
    group = optimizer.param_groups[0]
    rate = SavedRate(group["lr"], 0, steps, [state], {}, group).rates()
    assert rate.last == pytest.approx(used[-1], rel=1e-6)
    assert not rate.doubt


@pytest.mark.parametrize("steps", [1, 9, 41])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_peak_and_the_mean_over_the_run_are_those_that_were_used(name, steps):
    used, optimizer, state = used_rates(SCHEDULES[name], steps)
    group = optimizer.param_groups[0]
    rates = SavedRate(group["lr"], 0, steps, [state], {}, group).rates(used[-1])
    # A warmup that has not ended has not reached its peak.
    assert rates.peak == pytest.approx(max(*used, group["initial_lr"]))
    assert rates.mean == pytest.approx(sum(used) / steps)
    assert rates.mean_known


def test_a_long_schedule_is_sampled():
    state = {"T_max": 10**6, "eta_min": 0.0, "base_lrs": [0.5], "last_epoch": 10**6, "_last_lr": [0.0]}
    rates = SavedRate(0.0, 0, 10**6, [state], {}, {"initial_lr": 0.5}).rates(1e-12)
    assert rates.peak == 0.5
    assert rates.mean == pytest.approx(0.25, rel=1e-3)


def test_a_schedule_of_unknown_form_has_the_mean_of_a_line_and_no_schedule_that_of_a_constant():
    falling = SavedRate(0.1, 0, 10, [], {}, {"initial_lr": 0.5}).rates(0.1)
    assert (falling.peak, falling.mean, falling.mean_known) == (0.5, 0.3, False)
    constant = SavedRate(0.1, 0, 10, [], {}, {}).rates(0.1)
    assert (constant.peak, constant.mean, constant.mean_known) == (0.1, 0.1, True)


def test_the_peak_and_mean_of_nanogpt_and_of_the_trainer_come_from_its_schedule_and_its_log():
    config = {"learning_rate": 1.0, "decay_lr": True, "warmup_iters": 0, "lr_decay_iters": 100, "min_lr": 0.0}
    nanogpt = SavedRate(0.0, 0, 100, [], {"config": config, "iter_num": 100}, {}).rates(0.0)
    assert (nanogpt.peak, nanogpt.mean_known) == (1.0, True)
    assert nanogpt.mean == pytest.approx(0.5, abs=0.01)
    log = [{"learning_rate": 1.0 - step / 100, "step": step} for step in range(0, 101, 10)]
    trainer = SavedRate(0.0, 0, 100, [], {"log_history": log, "global_step": 100}, {"initial_lr": 1.0}).rates(0.0)
    assert (trainer.peak, trainer.mean_known) == (1.0, True)
    assert trainer.mean == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("steps", [1, 5, 22])
def test_the_momentum_of_the_last_step_is_the_one_that_was_used(steps):
    before = used_rates(SCHEDULES["one cycle"], steps - 1)[1].param_groups[0]
    _, optimizer, state = used_rates(SCHEDULES["one cycle"], steps)
    group = optimizer.param_groups[0]
    settings = SavedRate(group["lr"], 0, steps, [state], {}, group).rates().settings(group)
    assert settings["betas"] == pytest.approx(before["betas"])
    assert group["betas"] != before["betas"]


def test_a_scheduler_that_is_not_stepped_with_the_optimizer_gives_two_rates_to_choose_from():
    used, optimizer, state = used_rates(SCHEDULES["cosine"], 10)
    saved = optimizer.param_groups[0]["lr"]
    rate = SavedRate(saved, 0, 700, [state], {}, {"initial_lr": 1e-2}).rates()
    assert rate.doubt
    assert rate.others == (saved,)
    assert rate.last == pytest.approx(used[-1])


def test_a_schedule_that_is_a_function_is_not_guessed():
    _, optimizer, state = used_rates(partial(schedulers.LambdaLR, lr_lambda=lambda t: 1 / (1 + t)), 10)
    rate = SavedRate(optimizer.param_groups[0]["lr"], 0, 10, [state], {}, {"initial_lr": 1e-2}).rates()
    assert rate.doubt
    assert "for the next step" in rate.doubt


NOT_FOLLOWED = {
    # The first steps of a cycle are at its base, which an exponential of gamma 1 would have at every step.
    "cyclic": partial(schedulers.CyclicLR, base_lr=1e-2, max_lr=2e-2, step_size_up=3, step_size_down=3),
    "warm restarts": partial(schedulers.CosineAnnealingWarmRestarts, T_0=6, eta_min=1e-4),
    # Its second part alone agrees with the next rate, and not with the last.
    "chained": lambda optimizer: schedulers.ChainedScheduler(
        [schedulers.LinearLR(optimizer, 0.1, total_iters=6), schedulers.ExponentialLR(optimizer, 0.9)]
    ),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_a_scheduler_that_is_not_followed_gives_the_saved_rate_and_says_so(name, tmp_path):
    _, optimizer, state = used_rates(NOT_FOLLOWED[name], 6)
    torch.save({"model": {"w": torch.ones(2, 2)}, "optimizer": optimizer.state_dict(), "s": state}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    saved = checkpoint.groups[0]["lr"]
    rates = SavedRate(saved, 0, 6, checkpoint.schedulers, {}, checkpoint.groups[0]).rates()
    assert rates.last == saved
    assert "which a schedule set for the next step" in rates.doubt


def test_a_rate_that_disagrees_with_the_scheduler_is_not_taken_from_it():
    _, _, state = used_rates(SCHEDULES["cosine"], 10)
    rate = SavedRate(0.123, 0, 10, [state], {}, {"initial_lr": 1e-2}).rates()
    assert rate.last == 0.123
    assert rate.doubt


def test_the_warmup_of_nanogpt_is_followed_one_step_back():
    config = {"learning_rate": 1.0, "decay_lr": True, "warmup_iters": 10, "lr_decay_iters": 100, "min_lr": 0.1}
    rate = SavedRate(6 / 11, 0, 5, [], {"config": config, "iter_num": 5}, {}).rates()
    assert rate.last == pytest.approx(5 / 11)


def test_the_trainers_log_of_the_step_before_has_the_rate_if_it_logs_that_of_the_next():
    log = [{"learning_rate": 0.9, "step": 18}, {"learning_rate": 0.8, "step": 19}, {"learning_rate": 0.5, "step": 20}]
    rate = SavedRate(0.5, 0, 20, [], {"log_history": log, "global_step": 20}, {"initial_lr": 1.0}).rates()
    assert rate.last == 0.8
    assert not rate.doubt


def test_the_trainers_log_of_the_step_itself_counts_where_it_is_not_the_next():
    log = [{"learning_rate": 0.9, "step": 10}, {"learning_rate": 0.8, "step": 20}]
    rate = SavedRate(0.79, 0, 20, [], {"log_history": log, "global_step": 20}, {"initial_lr": 1e-2}).rates()
    assert rate.last == 0.8
    assert not rate.doubt
