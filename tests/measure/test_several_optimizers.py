"""Several optimizers in one run: a step is one step of each, and every layer is measured around its own."""

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from tests.measure.fakes import Turner, noise_gradients
from tests.needs import needs_muon


def two_layers():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(6, 4, bias=False), "b": nn.Linear(6, 4, bias=False)})
    return model, Turner(model.a.parameters(), angle=0.1), Turner(model.b.parameters(), angle=0.03, seed=1)


def gradients(model):
    noise_gradients(model, torch.Generator().manual_seed(0))


def angles(run, layer):
    return run.series(layer, "angular_update")


@pytest.mark.parametrize("contained", [False, True])
def test_every_layer_turns_by_the_angle_of_its_own_optimizer(contained, tmp_path):
    model, first, second = two_layers()
    both = type("OptimizersContainer", (), {"optimizers": [first, second]})() if contained else [first, second]
    with gyro.Tracker(model, both, tmp_path, every=2) as tracker:
        for _ in range(7):
            gradients(model)
            first.step()
            second.step()
    run = tracker.run
    assert run.steps.tolist() == [0, 2, 4, 6]
    np.testing.assert_allclose(angles(run, "a.weight"), 0.1, rtol=1e-5)
    np.testing.assert_allclose(angles(run, "b.weight"), 0.03, rtol=1e-5)
    assert run.config["optimizer"] == "Turner"
    assert [run.layer(name).group for name in run.layers] == [0, 1]


@needs_muon
def test_a_run_of_two_optimizers_has_the_numbers_of_two_runs_of_one(tmp_path):
    def train(path, *, joint):
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(16, 8, bias=False), "b": nn.Linear(16, 8, bias=False)})
        muon = torch.optim.Muon(model.a.parameters(), lr=0.02, weight_decay=0.5)
        adamw = torch.optim.AdamW(model.b.parameters(), lr=1e-2, weight_decay=0.5)
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (muon, adamw)]
        passed = [[muon, adamw]] if joint else [muon, adamw]
        trackers = [gyro.Tracker(model, each, path / str(i), every=3) for i, each in enumerate(passed)]
        generator = torch.Generator().manual_seed(1)
        for _ in range(12):
            noise_gradients(model, generator)
            # As many loops have it: the first scheduler steps before the second optimizer.
            for optimizer, scheduler in zip((muon, adamw), schedulers, strict=True):
                optimizer.step()
                scheduler.step()
        for tracker in trackers:
            tracker.close()
        return [tracker.run for tracker in trackers]

    (joint,) = train(tmp_path / "joint", joint=True)
    alone = train(tmp_path / "alone", joint=False)
    for layer, run in zip(("a.weight", "b.weight"), alone, strict=True):
        assert run.layers == [layer]
        for quantity in ("angular_update", "norm", "lr", "predicted_angular_update", "forecast_norm"):
            assert np.array_equal(joint.series(layer, quantity), run.series(layer, quantity), equal_nan=True), quantity
            assert np.isfinite(joint.series(layer, quantity)).all(), quantity
    assert joint.config["optimizer"] == "Muon + AdamW"


def test_a_step_ends_when_one_optimizer_steps_again_and_has_the_layers_that_stepped(tmp_path):
    model, critic, generator = two_layers()
    with gyro.Tracker(model, [generator, critic], tmp_path, every=1) as tracker:
        for _ in range(2):
            for _ in range(3):
                gradients(model)
                critic.step()
                tracker.log(loss=1.0)
            generator.step()
        critic.step()
    run = tracker.run
    assert run.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert run.scalar("loss")[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isfinite(angles(run, "a.weight")).tolist() == [True] * 7
    assert np.isfinite(angles(run, "b.weight")).tolist() == [False, False, True, False, False, True, False]


def test_a_forecast_takes_only_the_steps_that_its_optimizer_took(tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(64, 8, bias=False), "b": nn.Linear(64, 8, bias=False)})
    often, seldom = (torch.optim.AdamW(layer.parameters(), lr=1e-2, weight_decay=1.0) for layer in model.values())
    with torch.no_grad():
        model.b.weight.copy_(model.a.weight)
    with gyro.Tracker(model, [often, seldom], tmp_path, every=1) as tracker:
        for step in range(30):
            gradients(model)
            often.step()
            if step % 3 == 2:
                seldom.step()
    run = tracker.run
    of_often = run.series("a.weight", "forecast_norm")
    of_seldom = run.series("b.weight", "forecast_norm")
    assert of_seldom[2::3] == pytest.approx(of_often[:10])


def test_a_step_that_a_scaler_makes_one_of_them_skip_is_no_sample(tmp_path):
    model, first, second = two_layers()
    with gyro.Tracker(model, [first, second], tmp_path, every=1) as tracker:
        for step in range(4):
            gradients(model)
            first.step()
            if step == 1:
                second.found_inf = torch.tensor(1.0)  # as GradScaler tells an optimizer with a fused step
            second.step()
            second.found_inf = None
            tracker.log(loss=float(step))
    run = tracker.run
    assert run.steps.tolist() == [0, 2, 3]
    assert run.scalar("loss")[1].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_step_that_an_exception_ended_is_taken_again(tmp_path):
    model, first, second = two_layers()

    def out_of_memory(*_):
        raise RuntimeError("out of memory")

    with gyro.Tracker(model, [first, second], tmp_path, every=1) as tracker:
        gradients(model)
        first.step()
        hook = second.register_step_pre_hook(out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            second.step()
        hook.remove()
        second.step()
    assert tracker.run.steps.tolist() == [0]
    np.testing.assert_allclose(angles(tracker.run, "b.weight"), [0.03], rtol=1e-5)


def test_a_group_added_to_the_first_optimizer_leaves_the_second_ones_numbers(tmp_path):
    model, first, second = two_layers()
    model["c"] = nn.Linear(6, 5, bias=False)
    with gyro.Tracker(model, [first, second], tmp_path, every=1) as tracker:
        for step in range(4):
            if step == 2:
                first.add_param_group({"params": list(model.c.parameters()), "angle": 0.2})
            gradients(model)
            first.step()
            second.step()
    run = tracker.run
    assert [run.layer(name).group for name in ("a.weight", "b.weight", "c.weight")] == [0, 1, 2]
    np.testing.assert_allclose(angles(run, "b.weight"), 0.03, rtol=1e-5)
    np.testing.assert_allclose(angles(run, "c.weight"), [np.nan, np.nan, 0.2, 0.2], rtol=1e-5)


def test_one_object_with_flagged_groups_has_predictions_for_all_of_them(tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"experts": nn.Linear(6, 4, bias=False), "head": nn.Linear(6, 4, bias=False)})
    muon = {"params": [model.experts.weight], "use_muon": True, "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    adam = {"params": [model.head.weight], "use_muon": False, "lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    # A class by that name and package, with a step that moves nothing.
    names = {"__module__": "muon", "step": lambda self, closure=None: None}
    both = type("SingleDeviceMuonWithAuxAdam", (torch.optim.Optimizer,), names)([muon, adam], {})
    with gyro.Tracker(model, both, tmp_path, every=1) as tracker:
        gradients(model)
        both.step()
    run = tracker.run
    expected = gyro.theory.Muon(0.02, 0.1).equilibrium(shape=(4, 6)).angular_update
    assert run.series("experts.weight", "predicted_angular_update") == pytest.approx([expected])
    expected = gyro.theory.AdamW(1e-3, 0.1, (0.9, 0.95)).equilibrium().angular_update
    assert run.series("head.weight", "predicted_angular_update") == pytest.approx([expected])


@needs_muon
def test_a_tracked_muonh_is_predicted_by_the_shapes_of_its_matrices_as_in_a_plan(tmp_path):
    model = nn.Linear(96, 24, bias=False)
    muonh = gyro.optim.Rotational(torch.optim.Muon(model.parameters(), lr=0.02, weight_decay=0.0), mode="hyperball")
    with gyro.Tracker(model, muonh, tmp_path, every=1) as tracker:
        gradients(model)
        muonh.step()
    settled = gyro.rule_of(muonh.param_groups[0], muonh).equilibrium()
    run = tracker.run
    assert run.series("weight", "predicted_angular_update")[0] == pytest.approx(settled.angular_update, rel=1e-5)
    assert run.series("weight", "predicted_timescale")[0] == pytest.approx(settled.timescale, rel=1e-5)
