"""The tracker beside training loops of every kind: what it samples, what it leaves alone, and how it ends."""

import copy
import gc
import math
import warnings
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.cli import main
from gyroscope.report.run_layers import distributions
from gyroscope.store import open_run
from tests.forked import run_program
from tests.measure.fakes import Turner, noise_gradients, rows_only, train


def mlp(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "weight_decay": 0.1, **options})


def forward(model, seed=0):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
    return model(x).square().mean()


# What is watched, and under which name.


def test_weights_that_turn_and_embeddings_that_decay_are_watched_by_default(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.ConvTranspose1d(3, 7, 2))
    with gyro.Tracker(model, adamw(model), tmp_path) as tracker:
        run = tracker.run
    assert run.layers == ["0.weight", "1.weight", "3.weight"]
    assert run.layer("0.weight").granularity == "token"
    layer = run.layer("3.weight")
    assert (layer.granularity, layer.axis, layer.vectors, layer.fan_in) == ("neuron", 1, 7, 6)


def test_other_parameters_are_watched_on_request(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    with gyro.Tracker(model, adamw(model), tmp_path, layers=r"^0|bias") as tracker:
        run = tracker.run
    found = {name: (run.layer(name).granularity, run.layer(name).vectors) for name in run.layers}
    assert found == {"0.weight": ("token", 5), "1.bias": ("tensor", 1)}


def test_groups_say_how_their_tensors_split(tmp_path):
    model = mlp()
    groups = gyro.param_groups(
        model, weight_decay=0.1, overrides={"0.weight": {"granularity": "group", "group_size": 4}, "3.weight": "none"}
    )
    with gyro.Tracker(model, torch.optim.SGD(groups, lr=0.1), tmp_path) as tracker:
        run = tracker.run
    assert run.layers == ["0.weight"]
    assert (run.layer("0.weight").group_size, run.layer("0.weight").vectors) == (4, 2)


def test_a_probe_says_how_tensors_split(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 3))
    probe = gyro.probe(model, lambda model: forward(model))
    with gyro.Tracker(model, adamw(model), tmp_path, probe=probe) as tracker:
        run = tracker.run
    assert run.layer("0.weight").granularity == "tensor"
    assert run.layer("2.weight").granularity == "neuron", "not invariant, but measured all the same"


@pytest.mark.parametrize("optimizer", ["RotationalAdamW", "Lion"])
def test_bare_parameters_split_as_the_optimizer_turns_them_and_else_by_their_layers(optimizer, tmp_path):
    model = nn.Sequential(nn.Embedding(5, 4), nn.ConvTranspose1d(4, 7, 2))
    made = getattr(gyro.optim, optimizer)(model.parameters(), lr=1e-3, weight_decay=0.1)
    turning = optimizer == "RotationalAdamW"
    warned = pytest.warns(RuntimeWarning, match="bare tensors") if turning else nullcontext()
    with warned, gyro.Tracker(model, made, tmp_path) as tracker:
        run = tracker.run
    assert run.layers == ["0.weight", "1.weight"]
    assert run.layer("1.weight").axis == (0 if turning else 1)


def test_names_have_no_prefix_of_compiler_or_wrapper(tmp_path):
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    optimizer = adamw(compiled)
    with gyro.Tracker(compiled, optimizer, tmp_path, every=1) as tracker:
        forward(compiled).backward()
        optimizer.step()
        run = tracker.run
    assert run.layers == ["0.weight", "3.weight"]
    assert run.config["model"] == "Sequential"


def test_a_tied_weight_is_one_layer(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with gyro.Tracker(model, adamw(model), tmp_path) as tracker:
        assert tracker.run.layers == ["0.weight"]


def test_rows_are_spread_evenly_and_keep_their_ids(tmp_path):
    model = rows_only(100, 10)
    angles = torch.linspace(0.001, 0.1, 100, dtype=torch.float64)
    optimizer = Turner(model.parameters(), angles)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, rows=8, raw=".") as tracker:
        train(model, optimizer, 2)
        run = tracker.run
    rows = run.layer("weight").rows
    assert rows == (0, 12, 25, 37, 50, 62, 75, 87)
    np.testing.assert_allclose(run.raw("weight", "angular_update")[1], angles[list(rows)], rtol=1e-4)
    assert run.extremes("weight", "angular_update", 1) == (0, 87)
    assert run.series("weight", "entries").tolist() == [80, 80]
    assert tracker._measurement.layers[model.weight, 0].copy.shape == (8, 10), "and no more of the weights is copied"


def test_the_copy_is_float32_whatever_the_weights_are(tmp_path):
    model = rows_only(4, 10, torch.bfloat16)
    optimizer = Turner(model.parameters())
    with gyro.Tracker(model, optimizer, tmp_path, every=1) as tracker:
        train(model, optimizer, 1)
        assert tracker._measurement.layers[model.weight, 0].copy.dtype == torch.float32


# What counts as a sample.


def test_every_tenth_step_is_sampled_from_step_0(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=10) as tracker:
        train(model, optimizer, 21)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 10, 20]
    assert tracker.samples == 3
    assert run.status == "finished"


def test_a_schedule_of_ones_own_decides(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=lambda step: step in (1, 4)):
        train(model, optimizer, 6)
    assert open_run(tmp_path).steps.tolist() == [1, 4]


def test_accumulated_gradients_are_one_step(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, raw="."):
        for seed in range(4):
            forward(model, seed).backward()
        total = model[0].weight.grad.double().norm(dim=1) * model[0].weight.detach().double().norm(dim=1)
        optimizer.step()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0]
    np.testing.assert_allclose(run.raw("0.weight", "unit_grad_norm")[0], total, rtol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_grad_scaler_gradients_have_their_true_scale_and_skipped_steps_are_no_samples(fused, tmp_path):
    def trained(scaler, path):
        model = mlp()
        optimizer = adamw(model, fused=fused)
        with gyro.Tracker(model, optimizer, path, every=1, raw="."):
            for step in range(5):
                optimizer.zero_grad()
                factor = math.inf if step == 2 and scaler else 1.0
                if scaler:
                    scaler.scale(forward(model, step) * factor).backward()
                    scaler.step(optimizer)
                    scaler.update()
                elif step != 2:
                    forward(model, step).backward()
                    optimizer.step()
        return open_run(path)

    plain = trained(None, tmp_path / "plain")
    scaled = trained(torch.amp.GradScaler("cpu", init_scale=1024.0), tmp_path / "scaled")
    assert plain.steps.tolist() == [0, 1, 2, 3]
    # A fused step is called although it is skipped. It counts as a step, but is no sample.
    assert scaled.steps.tolist() == ([0, 1, 3, 4] if fused else [0, 1, 2, 3])
    for quantity in ("unit_grad_norm", "scaled_grad_norm", "lambda_u", "grad_momentum_cosine", "angular_update"):
        ours, theirs = scaled.raw("3.weight", quantity), plain.raw("3.weight", quantity)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    forecasts = [run.series("0.weight", "forecast_norm") for run in (plain, scaled)]
    np.testing.assert_allclose(*forecasts, rtol=1e-6)
    since = np.isnan(scaled.series("0.weight", "accumulated_angle"))
    assert since.tolist() == [True, False, fused, False], "weights were copied for the step that was skipped"


def test_unscaled_and_clipped_gradients_are_taken_as_they_are(tmp_path):
    model = mlp()
    optimizer, scaler = adamw(model, fused=True), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, raw="."):
        scaler.scale(forward(model)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        expected = model[3].weight.grad.norm(dim=1) * model[3].weight.detach().norm(dim=1)
        scaler.step(optimizer)
        scaler.update()
    np.testing.assert_allclose(open_run(tmp_path).raw("3.weight", "unit_grad_norm")[0], expected, rtol=1e-5)


def test_maximising_turns_the_gradient_round(tmp_path):
    readings = []
    for maximize in (False, True):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, maximize=maximize)
        with gyro.Tracker(model, optimizer, tmp_path / str(maximize), every=1, raw="."):
            for step in range(3):
                optimizer.zero_grad()
                (forward(model, step) * (-1 if maximize else 1)).backward()
                optimizer.step()
        run = open_run(tmp_path / str(maximize))
        names = ("lambda_u", "grad_momentum_cosine")
        readings.append([run.raw("3.weight", name) for name in names])
    np.testing.assert_allclose(*readings, rtol=1e-4, atol=1e-6)


def test_a_layer_frozen_during_training_is_left_out_until_it_returns(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        for step in range(6):
            model[0].weight.requires_grad_(step not in (2, 3))
            optimizer.zero_grad()
            forward(model, step).backward()
            optimizer.step()
    run = open_run(tmp_path)
    angles = run.series("0.weight", "angular_update")
    assert np.isnan(angles).tolist() == [False, False, True, True, False, False]
    assert np.isfinite(run.series("3.weight", "angular_update")).all()
    forecast, norm = run.series("0.weight", "forecast_norm"), run.series("0.weight", "norm", "rms")
    np.testing.assert_allclose(forecast[4], norm[4], rtol=0.01), "its forecast starts anew where it stands"


def test_parameters_added_during_training_appear_at_the_next_sample(tmp_path):
    model = mlp()
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=1e-2, weight_decay=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=2):
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": model[3].parameters(), "lr": 1e-3})
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert run.layers == ["0.weight", "3.weight"]
    assert np.isnan(run.series("3.weight", "norm")).tolist() == [True, False, False]
    np.testing.assert_allclose(run.series("3.weight", "lr")[1:], 1e-3)
    assert np.isfinite(run.series("3.weight", "forecast_norm")[1:]).all()
    assert run.layer("3.weight").group == 1


def test_a_parameter_that_moves_to_another_group_is_measured_there(tmp_path):
    model = mlp()
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=1e-2)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 1)
        del optimizer.param_groups[0]
        optimizer.param_groups[0]["lr"] = 1e-3
        train(model, optimizer, 1)
    run = open_run(tmp_path)
    np.testing.assert_allclose(run.series("3.weight", "lr"), [1e-2, 1e-3])
    assert np.isnan(run.series("0.weight", "lr")).tolist() == [False, True]


def test_sparse_gradients_are_left_out(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, layers=".") as tracker:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        run = tracker.run
    assert np.isnan(run.series("0.weight", "norm")).all()
    assert np.isfinite(run.series("1.weight", "norm")).all()


def test_entries_that_round_to_nothing_are_counted(tmp_path):
    model = nn.Linear(10, 4, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.weight[0] = 1e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        for lr in (1e-3, 0.0):
            optimizer.param_groups[0]["lr"] = lr
            model.weight.grad = torch.ones_like(model.weight)
            model.weight.grad[1, :3] = 0
            optimizer.step()
    run = open_run(tmp_path)
    assert run.series("weight", "frozen_entries").tolist() == [27, 0], "none is expected to move at lr = 0"


def test_dead_vectors_are_counted(tmp_path):
    model = rows_only(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        model.weight.grad = torch.ones_like(model.weight)
        model.weight.grad[[1, 3]] = 0
        optimizer.step()
    assert open_run(tmp_path).series("weight", "dead_vectors").tolist() == [2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_that_are_not_finite_are_a_share_of_their_layer_and_the_others_are_measured(value, dtype, tmp_path):
    model = rows_only(8, 4, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        for rows in ([], [3], [3, 5]):
            model.weight.grad = torch.ones_like(model.weight)
            model.weight.grad[rows, 1] = value
            optimizer.step()
        model.weight.grad = torch.ones_like(model.weight)  # finite again, while the weights are not
        optimizer.step()
    run = open_run(tmp_path)
    assert run.series("weight", "non_finite").tolist() == [0, 1 / 8, 1 / 4, 1 / 4]
    assert np.isfinite(run.series("weight", "angular_update")).all()
    assert run.histogram("weight", "angular_update").sum() == 6


# Other people's loops and optimizers.


class Accelerated(torch.optim.Optimizer):
    """As Accelerate's wrapper: an Optimizer by inheritance that never called its __init__, and replaces `step`."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()


def lightning(optimizer):
    """As Lightning's wrapper: its class inherits from the optimizer's, the real one is in `_optimizer`."""
    cls = type("LightningAdamW", (type(optimizer),), {"step": lambda self, closure=None: optimizer.step(closure)})
    wrapper = cls.__new__(cls)
    wrapper.__dict__ = {**optimizer.__dict__, "_optimizer": optimizer}
    return wrapper


@pytest.mark.parametrize("wrapper", [Accelerated, lightning])
def test_wrapped_optimizers_are_measured_inside(wrapper, tmp_path):
    model = mlp()
    optimizer = wrapper(adamw(model))
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        for seed in range(3):

            def closure(seed=seed):
                model.zero_grad()
                loss = forward(model, seed)
                loss.backward()
                return loss

            optimizer.step(closure)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2]
    assert run.config["optimizer"] == "AdamW"
    assert np.isfinite(run.series("0.weight", "grad_momentum_cosine")[1:]).all()
    assert (run.series("0.weight", "predicted_angular_update") > 0).all()


def test_a_rotational_wrapper_is_measured_outside_where_its_whole_step_is_seen(tmp_path):
    model = mlp()
    optimizer = gyro.optim.Rotational(adamw(model))
    with gyro.Tracker(model, optimizer, tmp_path, every=5):
        train(model, optimizer, 500)
    run = open_run(tmp_path)
    assert run.steps.tolist() == list(range(0, 500, 5)), "the step within does not count"
    measured, predicted = (
        run.series("0.weight", name, "rms") for name in ("angular_update", "predicted_angular_update")
    )
    np.testing.assert_allclose(np.sqrt(np.mean(measured[60:] ** 2)), predicted[-1], rtol=0.05)
    np.testing.assert_allclose(
        run.series("0.weight", "norm", "rms"), run.series("0.weight", "predicted_norm"), rtol=1e-4
    )


def test_an_unknown_optimizer_is_measured_without_predictions_and_the_run_says_so_once(tmp_path):
    model = mlp()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert (run.series("0.weight", "angular_update") > 0).all()
    assert np.isnan(run.series("0.weight", "predicted_angular_update")).all()
    assert np.isnan(run.series("0.weight", "rotation_discrepancy")).all()
    assert [note for note in run.notes if "Adagrad is not among the known optimizers" in note] == run.notes
    assert len(run.notes) == 1


class Strange(torch.optim.Optimizer):
    """As some are: no lr of its own, three betas, two eps, a momentum of another shape."""

    def __init__(self, params):
        super().__init__(params, {"lr": None, "betas": (0.9, 0.99, 0.999), "eps": (1e-30, 1e-3)})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["exp_avg"], state["exp_avg_sq"] = p.grad.flatten()[:3], p.grad.square()
            p -= 0.1 * p.grad


def test_an_optimizer_with_options_of_its_own_kind_is_measured(tmp_path):
    model = mlp()
    optimizer = Strange(model.parameters())
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert (run.series("0.weight", "angular_update") > 0).all()
    assert np.isnan(run.series("0.weight", "lr")).all()
    assert np.isnan(run.series("0.weight", "scaled_grad_norm")).all()


def test_rmsprop_has_a_second_moment_without_bias_correction(tmp_path):
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.5)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 1)
    assert open_run(tmp_path).series("0.weight", "scaled_grad_norm")[0] == pytest.approx(2**0.5, rel=1e-4)


def test_lbfgs_with_its_many_evaluations_is_one_step(tmp_path):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = forward(model)
        loss.backward()
        return loss

    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        optimizer.step(closure)
        optimizer.step(closure)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0, 1]
    assert (run.series("0.weight", "angular_update") > 0).all()


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_compiled_step_is_measured_and_its_measurement_not_compiled(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    with gyro.Tracker(model, optimizer, tmp_path, every=2) as tracker:
        seen = []
        tracker._measurement.before = lambda optimizer, closure: seen.append(torch.compiler.is_compiling())
        for seed in range(3):
            optimizer.zero_grad()
            forward(model, seed).backward()
            step()
    assert seen == [False, False]


def test_a_learning_rate_in_a_tensor_is_read_at_the_step(tmp_path):
    model = mlp()
    optimizer = adamw(model, lr=torch.tensor(1e-2), capturable=False, foreach=False)
    with gyro.Tracker(model, optimizer, tmp_path, every=2):
        for step in range(5):
            optimizer.param_groups[0]["lr"].fill_(1e-2 / (step + 1))
            optimizer.zero_grad()
            forward(model).backward()
            optimizer.step()
    np.testing.assert_allclose(open_run(tmp_path).series("0.weight", "lr"), [1e-2, 1e-2 / 3, 1e-2 / 5], rtol=1e-6)


def test_schedules_reach_predictions_and_forecasts(tmp_path):
    model = rows_only(64, 32)
    with torch.no_grad():
        model.weight.normal_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=200)
    start = model.weight.detach().norm(dim=1).square().mean().sqrt().item()
    with gyro.Tracker(model, optimizer, tmp_path, every=20):
        train(model, optimizer, 201, scheduler=scheduler)
    run = open_run(tmp_path)
    factors = 1 - 0.99 * np.arange(201) / 200
    expected = gyro.theory.forecast(gyro.theory.AdamW(1e-2, 0.5), list(factors), norm=start, fan_in=32)
    np.testing.assert_allclose(run.series("weight", "forecast_norm"), expected.norm[::20], rtol=1e-4)
    np.testing.assert_allclose(
        run.series("weight", "forecast_angular_update"), expected.angular_update[::20], rtol=1e-4
    )
    at = expected.equilibrium_angular_update[::20]
    np.testing.assert_allclose(run.series("weight", "predicted_angular_update"), at, rtol=1e-4)


def test_a_decay_that_follows_the_learning_rate_keeps_the_forecast_of_corrected_decay(tmp_path):
    model = rows_only(64, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=60)
    corrected = gyro.optim.CorrectedDecay(optimizer, schedule)
    start = model.weight.detach().norm(dim=1).square().mean().sqrt().item()
    with gyro.Tracker(model, optimizer, tmp_path, every=20):
        train(model, optimizer, 61, scheduler=corrected)
    factors = 1 - 0.9 * np.arange(61) / 60
    rule = gyro.theory.AdamW(1e-2, 0.5, corrected_decay=True)
    expected = gyro.theory.forecast(rule, list(factors), norm=start, fan_in=32)
    np.testing.assert_allclose(open_run(tmp_path).series("weight", "forecast_norm"), expected.norm[::20], rtol=1e-4)


# What it leaves alone.


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("make", [adamw, lambda model: gyro.optim.RotationalAdamW(model.parameters())])
def test_training_is_bit_identical_with_and_without_it(make, closure, tmp_path):
    results = []
    for path in (None, tmp_path):
        model = mlp()
        optimizer = make(model)
        tracker = gyro.Tracker(model, optimizer, path, every=1) if path else None
        torch.manual_seed(5)
        for _ in range(4):

            def loss(model=model, optimizer=optimizer):
                optimizer.zero_grad()
                value = model(torch.randn(16, 6)).square().mean()
                value.backward()
                return value

            if closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()
        if tracker:
            tracker.close()
        grads = [p.grad.clone() for p in model.parameters()]
        results.append((model.state_dict(), optimizer.state_dict(), grads, torch.get_rng_state()))
    (weights, states, grads, random), (theirs, their_states, their_grads, their_random) = results
    assert all(torch.equal(weights[name], theirs[name]) for name in weights)
    assert all(torch.equal(a, b) for a, b in zip(grads, their_grads, strict=True))
    assert torch.equal(random, their_random)
    assert states["param_groups"] == their_states["param_groups"]
    for one, other in zip(states["state"].values(), their_states["state"].values(), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one)


def test_no_state_is_made_for_parameters_that_have_none(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 2)
        assert all(not state.get("momentum_buffer") for state in optimizer.state.values())
        assert set(optimizer.state) <= set(model.parameters())


def test_closing_takes_the_hooks_off_and_the_optimizer_copies_without_them(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 1)
    twin = copy.deepcopy(optimizer)
    assert not twin._optimizer_step_pre_hooks
    tracker.close()
    tracker.close()
    train(model, optimizer, 1)
    assert open_run(tmp_path).steps.tolist() == [0]
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_forgotten_tracker_keeps_no_model_alive(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 2)
    recorder, gone = tracker._recorder, [weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(optimizer)]
    del model, optimizer, tracker
    recorder.flush()
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
    assert np.isfinite(open_run(tmp_path).series("0.weight", "predicted_norm")).all()
    recorder.close("finished")


# How it fails and ends.


def test_its_own_failure_is_one_warning_and_a_note_and_training_goes_on(tmp_path, monkeypatch):
    model = mlp()
    optimizer = adamw(model)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 1)
    tracker._recorder.flush()

    def broken(*_):
        raise RuntimeError("no memory for the copy")

    monkeypatch.setattr("gyroscope.measure._pipeline.measurement.sum_before", broken)
    with pytest.warns(RuntimeWarning, match="no memory for the copy") as seen:
        train(model, optimizer, 3)
    assert len(seen) == 1
    tracker.close()
    run = open_run(tmp_path)
    assert run.steps.tolist() == [0]
    assert any("no memory for the copy" in note for note in run.notes)


def test_a_failure_while_working_a_sample_out_is_told_at_a_later_step(tmp_path, monkeypatch):
    model = mlp()
    optimizer = adamw(model)

    def broken(*_):
        raise RuntimeError("arithmetic went wrong")

    monkeypatch.setattr("gyroscope.measure._pipeline.sample_worker.merge_pieces", broken)
    tracker = gyro.Tracker(model, optimizer, tmp_path, every=1)
    train(model, optimizer, 1)
    tracker._recorder.flush()
    with pytest.warns(RuntimeWarning, match="arithmetic went wrong") as seen:
        train(model, optimizer, 2)
    assert len(seen) == 1
    tracker.close()
    assert any("arithmetic went wrong" in note for note in open_run(tmp_path).notes)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_the_loop_closes_the_run_as_failed_and_goes_on(error, tmp_path):
    def loop():
        model = mlp()
        optimizer = adamw(model)
        with gyro.Tracker(model, optimizer, tmp_path, every=1):
            train(model, optimizer, 2)
            raise error

    with pytest.raises(error):
        loop()
    run = open_run(tmp_path)
    assert run.status == "failed"
    assert run.steps.tolist() == [0, 1]


def test_a_step_that_raises_is_no_sample_and_the_next_one_is(tmp_path):
    model = mlp()
    optimizer = adamw(model)

    def closure():
        raise ZeroDivisionError

    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 1)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure)
        train(model, optimizer, 1)
    assert open_run(tmp_path).steps.tolist() == [0, 1]


@pytest.mark.slow
def test_a_run_that_nobody_closes_keeps_its_last_samples(tmp_path):
    code = f"""
import torch, gyroscope as gyro
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
gyro.Tracker(model, optimizer, {str(tmp_path / "run")!r}, every=1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
"""
    ended = run_program(code, tmp_path)
    assert ended.code == 0, ended.written
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(30))
    assert run.status == "finished"


def test_a_run_can_be_resumed_where_the_optimizer_stands(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path, every=2):
        train(model, optimizer, 4)
    with gyro.Tracker(model, optimizer, tmp_path, every=2, resume=True):
        train(model, optimizer, 4)
    assert open_run(tmp_path).steps.tolist() == [0, 2, 4, 6]


def test_the_forecast_of_a_resumed_run_goes_on_without_a_jump(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    for resume in (False, True):
        with gyro.Tracker(model, optimizer, tmp_path, every=1, resume=resume) as tracker:
            for step in range(40):
                train(model, optimizer, 1, seed=step)
                tracker.flush()  # on a busy machine samples would be left out
    run = open_run(tmp_path)
    for layer in run.layers:
        before, after = run.series(layer, "forecast_angular_update")[[39, 40]]
        assert after == pytest.approx(before, rel=0.1)


def test_a_forgotten_resume_begins_a_run_beside_the_old_one_with_one_warning(tmp_path, capsys):
    path = tmp_path / "run"
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, path, every=1):
        train(model, optimizer, 2)
    before = (path / "run.sqlite").read_bytes()
    for number, given in ((2, path), (3, path / "run.sqlite")):
        beside = tmp_path / f"run-{number}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with gyro.Tracker(model, optimizer, given, every=1) as tracker:
                train(model, optimizer, 3)
        (warning,) = caught
        assert warning.filename == __file__
        assert f"{path} already has a run. This one is written to {beside}." in str(warning.message)
        assert "Pass resume=True" in str(warning.message)
        assert tracker.path == beside
        run = open_run(beside)
        assert run.steps.tolist() == [0, 1, 2]
        assert any("resume=True" in note for note in run.notes)
    assert (path / "run.sqlite").read_bytes() == before
    assert main(["report", str(path), str(beside), "--text"]) == 0
    assert "run-3" in capsys.readouterr().out


def test_an_optimizer_that_does_not_count_resumes_after_the_last_sample_or_where_told(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True):
        train(model, optimizer, 2)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, resume=True, start=10):
        train(model, optimizer, 1)
    assert open_run(tmp_path).steps.tolist() == [0, 1, 2, 3, 4, 10]


def test_without_a_path_runs_go_to_runs_by_date_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = mlp()
    with gyro.Tracker(model, adamw(model)) as one, gyro.Tracker(model, adamw(model)) as other:
        assert one.path != other.path
        assert one.path.parent == other.path.parent
        assert one.path.parent.name == "runs"


def test_the_run_knows_its_configuration(tmp_path):
    model = mlp()
    torch.manual_seed(42)
    with gyro.Tracker(model, adamw(model), tmp_path, every=5, config={"dataset": "digits"}):
        pass
    config = open_run(tmp_path).config
    assert config["user"] == {"dataset": "digits"}
    assert (config["every"], config["optimizer"], config["seed"]) == (5, "AdamW", 42)
    group = config["groups"][0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (1e-2, 0.1, [0.9, 0.999])
    assert group["rule"]["name"] == "AdamW"
    assert group["rule"]["weight_decay"] == 0.1
    assert config["versions"]["torch"] == torch.__version__


def test_diagnosis_is_that_of_the_run(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path) as tracker:
        train(model, optimizer, 11)
        inside = tracker.diagnose()
    assert [finding.kind for finding in inside] == [finding.kind for finding in open_run(tmp_path).diagnose()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 must be a whole number above 0 or a function of the step"),
        ({"every": "often"}, "every='often'"),
        ({"rows": 0}, "rows=0 must be a whole number, 1 or above"),
        ({"budget": 2}, "budget=2 must lie between 0 and 1"),
        ({"layers": "("}, "layers='\\(' is not a regular expression"),
        ({"layers": "nothing"}, "none of the optimizer's parameters"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(options, message, tmp_path):
    model = mlp()
    with pytest.raises(ValueError, match=message):
        gyro.Tracker(model, adamw(model), tmp_path, **options)
    assert not list(tmp_path.iterdir()), "and leaves no run behind"


def test_another_models_optimizer_and_what_is_no_optimizer_are_refused(tmp_path):
    with pytest.raises(ValueError, match="none of the optimizer's parameters is a weight of the model"):
        gyro.Tracker(mlp(), adamw(mlp()), tmp_path)
    with pytest.raises(ValueError, match="is not a torch optimizer"):
        gyro.Tracker(mlp(), object(), tmp_path)


def test_gradients_that_other_hooks_throw_away_are_still_read(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad(set_to_none=True))
    with gyro.Tracker(model, optimizer, tmp_path, every=1):
        noise_gradients(model, torch.Generator().manual_seed(0))
        optimizer.step()
    run = open_run(tmp_path)
    assert run.series("0.weight", "scaled_grad_norm")[0] == pytest.approx(1, rel=1e-3)


def test_the_last_step_is_stored_with_what_is_known_without_measuring_it(tmp_path):
    model = mlp()
    optimizer = adamw(model)
    with gyro.Tracker(model, optimizer, tmp_path):
        train(model, optimizer, 26)
    run = open_run(tmp_path)
    assert run.steps.tolist() == [*range(21), 25]
    (name, *_) = run.layers
    norm = dict(model.named_parameters())[name].detach().flatten(1).norm(dim=1).square().mean().sqrt().item()
    assert run.series(name, "norm", "rms")[-1] == pytest.approx(norm, rel=1e-5)
    assert np.isfinite(run.series(name, "accumulated_angle")[-1])
    assert np.isfinite(run.series(name, "forecast_norm")[-1])
    for unknown in ("angular_update", "unit_grad_norm", "lr", "dead_vectors"):
        assert np.isnan(run.series(name, unknown)[-1]), unknown
    assert "diverged" not in run.diagnose().kinds
    # Pages show the last rotation that was measured.
    assert run.histogram(name, "angular_update").sum() == len(dict(model.named_parameters())[name])
    assert run.extremes(name, "angular_update") == run.extremes(name, "angular_update", 20)
    shown = distributions(run, name)
    assert [shown[quantity][-1]["step"] for quantity in ("angular_update", "norm")] == [20, 20]


def test_steps_that_were_given_stay_as_they_were_given(tmp_path):
    for number, every in enumerate((5, lambda step: step % 5 == 0)):
        model = mlp()
        optimizer = adamw(model)
        with gyro.Tracker(model, optimizer, tmp_path / str(number), every=every):
            train(model, optimizer, 13)
        assert open_run(tmp_path / str(number)).steps.tolist() == [0, 5, 10]


def test_a_closed_run_knows_its_last_step_also_if_it_was_not_sampled(tmp_path):
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    with gyro.Tracker(model, optimizer, tmp_path, every=10) as tracker:
        train(15)
    tracker.log(eval_loss=1.0)
    run = open_run(tmp_path)
    assert (run.steps.tolist(), run.last_step) == ([0, 10], 14)
    assert "last_step" not in run.config
    assert "2 samples in 15 steps" in run.diagnose()[0].sentence
    with gyro.Tracker(model, optimizer, tmp_path, every=10, resume=True) as tracker:
        assert (tracker.steps, tracker.run.last_step) == (15, 14)
        train(10)
    assert (open_run(tmp_path).steps.tolist(), open_run(tmp_path).last_step) == ([0, 10, 20], 24)
