import numpy as np
import pytest
import torch

from gyroscope.theory import Schedule, constant, cosine, inverse_sqrt, linear, step, wsd
from gyroscope.theory.schedules import multipliers


def torch_multipliers(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_named_schedules_are_torchs():
    lr = torch.optim.lr_scheduler
    pairs = {
        cosine(50, final=0.1): lambda o: lr.CosineAnnealingLR(o, 50, eta_min=0.1),
        linear(50, final=0.2): lambda o: lr.LinearLR(o, 1.0, 0.2, 50),
        step(50, [10, 30], 0.3): lambda o: lr.MultiStepLR(o, [10, 30], 0.3),
        wsd(50, decay=0.4, final=0.1): lambda o: lr.SequentialLR(
            o, [lr.ConstantLR(o, 1.0), lr.LinearLR(o, 1.0, 0.1, 20)], [30]
        ),
        constant(50): lambda o: lr.ConstantLR(o, 1.0),
    }
    for ours, make in pairs.items():
        np.testing.assert_allclose(multipliers(ours, None), torch_multipliers(make, 50), rtol=1e-9, err_msg=ours.name)


def test_warmup_is_inside_the_run_and_full_at_its_last_step():
    for schedule in (
        constant(20, 5),
        linear(20, 5),
        cosine(20, 5),
        step(20, [10], 0.1, 5),
        inverse_sqrt(20, 5),
        wsd(20, 5),
    ):
        values = multipliers(schedule, None)
        assert len(values) == 20
        np.testing.assert_allclose(values[:5], np.arange(1, 6) / 5)
        assert values[5] <= 1.0
        assert schedule(7) == values[7]


def test_any_function_takes_a_warmup():
    values = multipliers(Schedule("exponential", 6, warmup=3, body=lambda t: 0.9**t), None)
    np.testing.assert_allclose(values, [1 / 3, 0.6, 0.81, 0.729, 0.6561, 0.59049])


def test_wsd_is_linear_if_all_steps_decay_and_constant_if_none_do():
    t = np.arange(40)
    assert wsd(40, 7, decay=1.0, final=0.1)(t).tolist() == linear(40, 7, final=0.1)(t).tolist()
    assert wsd(40, 7, decay=0.0)(t).tolist() == constant(40, 7)(t).tolist()


def test_wsd_is_stable_until_its_decay_and_reaches_final_after_the_last_step():
    schedule = wsd(1000, warmup=100, decay=0.25, final=0.2)
    assert schedule(np.arange(99, 751)).tolist() == [1.0] * 652
    assert schedule(875) == pytest.approx(0.6)
    assert schedule(999) == pytest.approx(0.2 + 0.8 / 250)
    assert schedule(1000) == pytest.approx(0.2)


def test_a_long_warmup_shortens_the_decay_of_wsd():
    values = wsd(10, warmup=8, decay=0.5)(np.arange(10))
    np.testing.assert_allclose(values, [*np.arange(1, 9) / 8, 1.0, 0.5])


def test_a_sequence_of_multipliers_is_a_schedule():
    assert multipliers([1.0, 0.5, 0.25], None).tolist() == [1.0, 0.5, 0.25]
    assert multipliers(np.array([1.0, 0.5, 0.25]), 2).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("call", "quoted"),
    [
        (lambda: cosine(10, warmup=11), "warmup=11 is longer than the run of steps=10"),
        (lambda: cosine(0), "steps=0"),
        (lambda: cosine(10.5), "steps=10.5"),
        (lambda: cosine(10, warmup=-1), "warmup=-1"),
        (lambda: cosine(10, final=1.5), "final=1.5"),
        (lambda: wsd(10, decay=1.2), "decay=1.2 is a share of the steps"),
        (lambda: wsd(10, decay=float("nan")), "decay=nan"),
        (lambda: wsd(10, final=-0.1), "final=-0.1"),
        (lambda: wsd(10, warmup=11), "warmup=11 is longer"),
        (lambda: step(10, [-1]), "milestones=-1"),
        (lambda: step(10, [5], factor=-0.1), "factor=-0.1"),
        (lambda: multipliers([], None), r"schedule=\[\]"),
        (lambda: multipliers([1.0, float("nan")], None), "gives nan at step 1"),
        (lambda: multipliers([1.0], 5), "one multiplier for each step"),
    ],
)
def test_bad_input_is_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call()
