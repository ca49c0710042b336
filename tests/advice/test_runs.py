"""Every finding on real training: for each a small run that provokes it, and one that does not."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import gyroscope as gyro
from gyroscope.advice.history import layer_histories

pytestmark = pytest.mark.slow

WIDTH = 32
HIDDEN = r"^[03]\.weight"
"""The scale-invariant layers of a normalised network."""


class Branches(nn.Module):
    """Two branches, of which the loss hardly feels the second."""

    def __init__(self, share=0.003):
        super().__init__()
        self.first, self.second = (nn.Sequential(*block(64, WIDTH)) for _ in range(2))
        self.head, self.share = nn.Linear(WIDTH, 10), share

    def forward(self, x):
        return self.head(self.first(x) + self.share * self.second(x))


def block(inputs, outputs, normalised=True):
    if not normalised:
        return [nn.Linear(inputs, outputs), nn.ReLU()]
    return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]


def network(normalised=True):
    torch.manual_seed(0)
    layers = [*block(64, WIDTH, normalised), *block(WIDTH, WIDTH, normalised)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def adamw(model, weight_decay=0.5, **options):
    groups = gyro.param_groups(model, weight_decay=weight_decay)
    return torch.optim.AdamW(groups, **{"lr": 1e-2, "betas": (0.9, 0.99), **options})


def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)


DATA = digits()


class Training:
    """A tracked run on noisy digits that can be continued."""

    def __init__(self, path, model, optimizer, schedule=lambda t: 1.0, scale=lambda t: 1.0, **options):
        self.model, self.optimizer, self.scale, self.done = model, optimizer, scale, 0
        self.tracker = gyro.Tracker(model, optimizer, path, **{"every": 5, **options})
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        self.dtype = next(model.parameters()).dtype

    def go(self, steps):
        x, y = DATA
        for _ in range(steps):
            batch = torch.randint(len(y), (64,))
            inputs = (x[batch] + torch.randn(64, 64)).to(self.dtype)
            loss = nn.functional.cross_entropy(self.model(inputs).float(), y[batch], label_smoothing=0.3)
            self.optimizer.zero_grad()
            (loss * self.scale(self.done)).backward()
            self.optimizer.step()
            self.scheduler.step()
            self.done += 1
        return self

    def diagnose(self):
        self.tracker.close()
        with gyro.store.open_run(self.tracker.path) as run:
            return run.diagnose()


def warmup(t):
    return min(1.0, (t + 1) / 40)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Scale-invariant layers that start at their equilibrium norm behind a warmup."""
    model = network()
    optimizer = adamw(model)
    gyro.optim.to_equilibrium_(model, optimizer)
    path = tmp_path_factory.mktemp("run") / "healthy"
    return Training(path, model, optimizer, warmup, layers=HIDDEN).go(400).diagnose()


def said(diagnosis, kind):
    found = [finding for finding in diagnosis if finding.kind == kind]
    assert len(found) == 1, f"{kind} in:\n{diagnosis}"
    return found[0]


def test_a_healthy_run_is_well_and_nothing_else(healthy):
    assert healthy.kinds == ("well",), str(healthy)
    found = healthy[0]
    assert found.layers == ("0.weight", "3.weight")
    assert found.evidence["largest_error"] < 0.15


def test_a_short_run_is_too_short(tmp_path, healthy):
    model = network()
    assert Training(tmp_path / "run", model, adamw(model)).go(20).diagnose().kinds == ("too_short",)
    assert "too_short" not in healthy.kinds


def test_no_warmup_is_over_rotation(tmp_path, healthy):
    model = network()
    found = said(Training(tmp_path / "run", model, adamw(model)).go(150).diagnose(), "over_rotation")
    model = network()
    planned = gyro.plan(model, adamw(model), steps=150).layers["0.weight"]
    assert found.evidence["step"] == 0
    # The forecast is a mean over batches, and the first batch is one.
    assert found.evidence["angle"] == pytest.approx(planned.angular_update[0], rel=0.1)
    assert "over_rotation" not in healthy.kinds


def test_a_start_far_from_equilibrium_is_a_state_that_ends_when_the_norm_arrives(tmp_path):
    model = network()
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight *= 4
    training = Training(tmp_path / "run", model, adamw(model), warmup, layers=HIDDEN).go(260)
    early = training.tracker.diagnose()
    assert early.summary[-1].startswith("The run is not in equilibrium (run length: 1.")
    training.go(500)
    late = training.diagnose().summary[-1]
    with gyro.store.open_run(training.tracker.path) as run:
        distances = [run.series(name, "norm", "rms") / run.series(name, "predicted_norm") for name in run.layers]
        settled = max(run.steps[np.argmax(distance <= 1.1)] for distance in distances)
    share = float(late.removeprefix("The run reaches equilibrium after ").split(" %")[0])
    assert share == pytest.approx(100 * (settled + 1) / 760, rel=0.05)


def test_a_run_shorter_than_its_memory_is_compared_with_its_forecast(tmp_path):
    model = network()
    training = Training(tmp_path / "short", model, adamw(model, 0.01), warmup, layers=HIDDEN).go(200)
    diagnosis = training.diagnose()
    assert diagnosis.summary[-1].startswith("The run is too short for equilibrium (run length: 0.018 memories")
    found = said(diagnosis, "well")
    assert "as predicted by the forecast" in found.sentence
    assert found.evidence["slowest"] == pytest.approx(1, abs=0.15)
    assert found.evidence["fastest"] == pytest.approx(1, abs=0.15)
    with gyro.store.open_run(training.tracker.path) as run:
        equilibrium = run.series("0.weight", "predicted_angular_update")[-1]
        assert run.series("0.weight", "angular_update")[-1] > 1.5 * equilibrium


def test_no_weight_decay_is_named(tmp_path):
    model = network()
    diagnosis = Training(tmp_path / "run", model, adamw(model, 0.0)).go(100).diagnose()
    assert diagnosis.summary[-1] == "The run has no equilibrium because it has no weight decay."


def test_a_decay_to_zero_falls_out_at_the_end(tmp_path, healthy):
    model = network()
    schedule = lambda t: (1 + math.cos(math.pi * t / 600)) / 2  # noqa: E731
    diagnosis = Training(tmp_path / "run", model, adamw(model), schedule, layers=HIDDEN).go(600).diagnose()
    assert " and falls out of it at the end" in diagnosis.summary[-1]
    planned = gyro.plan(model, adamw(model), schedule, steps=600)
    assert planned.layers["0.weight"].falls_out_at is not None
    assert " falls out of it at the end" in planned.findings.summary[-1]
    assert "falls out" not in healthy.summary[-1]


def test_adam_with_l2_unbalances_layers_and_adamw_does_not(tmp_path):
    torch.manual_seed(0)
    model = Branches()
    coupled = torch.optim.Adam(gyro.param_groups(model, weight_decay=1e-2), lr=1e-2)
    found = said(Training(tmp_path / "coupled", model, coupled).go(400).diagnose(), "layer_imbalance")
    assert "second.0.weight" in found.layers
    assert found.evidence["ratio"] > 2
    assert "AdamW" in found.remedy
    torch.manual_seed(0)
    model = Branches()
    balanced = Training(tmp_path / "decoupled", model, adamw(model)).go(400).diagnose()
    assert "layer_imbalance" not in balanced.kinds, str(balanced)


@pytest.mark.parametrize("raw", [None, "weight"], ids=["statistics", "every vector"])
def test_neurons_turned_at_different_speeds_are_seen(tmp_path, raw):
    for name, factor in (("equal", 1.0), ("unequal", 8.0)):
        model = network()
        optimizer = gyro.optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-2)
        rotating = [p for p in optimizer.param_groups[0]["params"] if p.dim() > 1]
        optimizer.angle_factors = {p: torch.where(torch.arange(len(p)) < 0.3 * len(p), factor, 1.0) for p in rotating}
        diagnosis = Training(tmp_path / name, model, optimizer, raw=raw).go(100).diagnose()
        assert ("neuron_imbalance" in diagnosis.kinds) == (name == "unequal"), str(diagnosis)
    assert said(diagnosis, "neuron_imbalance").evidence["ratio"] == pytest.approx(10, rel=0.4)


def test_a_network_without_normalisation_is_scale_sensitive(tmp_path, healthy):
    model = network(normalised=False)
    found = said(Training(tmp_path / "run", model, adamw(model)).go(400).diagnose(), "scale_sensitive")
    assert "4.weight" in found.layers
    assert abs(found.evidence["lambda_u"]) > 0.1
    assert "scale_sensitive" not in healthy.kinds


def test_neurons_that_never_fire_are_dead(tmp_path, healthy):
    model = network(normalised=False)
    with torch.no_grad():
        model[0].bias[:8] -= 1000
    found = said(Training(tmp_path / "run", model, adamw(model, 0.1)).go(100).diagnose(), "dead_vectors")
    assert "0.weight" in found.layers
    assert found.evidence["dead_vectors"] >= 8
    assert "dead_vectors" not in healthy.kinds


def test_small_steps_of_bfloat16_weights_freeze_entries(tmp_path, healthy):
    model = network().bfloat16()
    found = said(Training(tmp_path / "run", model, adamw(model, lr=1e-4)).go(60).diagnose(), "frozen_entries")
    assert found.severity == "bad"
    assert found.evidence["worst_share"] > 0.5
    assert "frozen_entries" not in healthy.kinds


def test_unstable_betas_with_gradients_that_vanish_make_updates_grow(tmp_path, healthy):
    model = network()
    vanishing = lambda t: 0.8 ** max(t - 50, 0)  # noqa: E731
    training = Training(tmp_path / "unstable", model, adamw(model, betas=(0.9, 0.5)), scale=vanishing).go(100)
    found = said(training.diagnose(), "unstable_betas")
    assert "can grow by a factor e every 4.15 steps" in found.sentence
    assert found.changes == {"betas": (0.9, 0.99)}
    with gyro.store.open_run(training.tracker.path) as run:
        updates = run.series("3.weight", "update_norm", "rms")
        assert updates[run.steps >= 75].min() > 3 * updates[run.steps == 45]
    assert "unstable_betas" not in healthy.kinds


def test_an_unknown_optimizer_is_measured_without_prediction(tmp_path, healthy):
    model = network()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    diagnosis = Training(tmp_path / "run", model, optimizer, warmup).go(60).diagnose()
    found = said(diagnosis, "missing_input")
    assert "no prediction: Adagrad is not among the known optimizers" in found.sentence
    assert found.sentence.startswith(diagnosis.summary[1].rstrip("."))
    assert "well" not in diagnosis.kinds
    assert "missing_input" not in healthy.kinds


def test_a_layer_that_is_never_used_is_not_measured(tmp_path):
    model = network()
    model.unused = nn.Linear(8, 8, bias=False)
    model.forward = lambda x: nn.Sequential.forward(model[:7], x)
    found = said(Training(tmp_path / "run", model, adamw(model)).go(60).diagnose(), "not_measured")
    assert found.layers == ("unused.weight",)


NAN = float("nan")


def test_gradients_that_become_nan_are_a_divergence_at_their_step(tmp_path, healthy):
    model = network()
    training = Training(tmp_path / "run", model, adamw(model), scale=lambda t: NAN if t >= 150 else 1.0).go(300)
    diagnosis = training.diagnose()
    assert diagnosis[0].kind == "diverged", str(diagnosis)
    assert diagnosis[0].severity == "bad"
    assert diagnosis[0].evidence["step"] == 150
    assert diagnosis[0].layers == ("0.weight", "3.weight", "6.weight")
    assert "The last finite sample is from step 145" in diagnosis[0].sentence
    assert set(diagnosis.kinds) <= {"diverged", "over_rotation"}
    assert "diverged" not in healthy.kinds


def test_the_table_of_a_diverged_run_has_no_number_of_before(tmp_path):
    model = network()
    training = Training(tmp_path / "run", model, adamw(model), scale=lambda t: NAN if t >= 150 else 1.0).go(300)
    training.tracker.close()
    with gyro.store.open_run(training.tracker.path) as run:
        for history in layer_histories(run):
            assert np.isfinite(history.angle[:30]).all()
            assert not np.isfinite(history.mean(history.angle))
            assert not np.isfinite(history.rotation_ratio)
            assert not np.isfinite(history.mean(history.series("norm", "rms")))


def test_sgd_that_diverges_within_ten_steps_is_not_told_to_train_on(tmp_path):
    model = network(normalised=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4, weight_decay=1e-6)
    diagnosis = Training(tmp_path / "run", model, optimizer, every=2).go(100).diagnose()
    assert diagnosis[0].kind == "diverged", str(diagnosis)
    assert diagnosis[0].evidence["step"] <= 10
    assert "too_short" not in diagnosis.kinds
    assert "Train on" not in str(diagnosis)


def test_a_short_run_that_diverged_is_not_too_short_to_say_so(tmp_path):
    model = network()
    training = Training(tmp_path / "run", model, adamw(model), scale=lambda t: NAN if t >= 6 else 1.0).go(20)
    assert training.diagnose().kinds == ("diverged",)


@pytest.mark.parametrize("lr", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("until", [100, 200])
def test_a_learning_rate_that_is_not_finite_does_not_hide_the_divergence_that_it_causes(tmp_path, lr, until):
    model = network()
    training = Training(tmp_path / "run", model, adamw(model), lambda t: lr if 50 <= t < until else 1.0)
    found = said(training.go(200).diagnose(), "diverged")
    assert found.evidence["step"] == 50
    assert "The last finite sample is from step 45" in found.sentence


class PatientSGD(torch.optim.SGD):
    """SGD that leaves out gradients that are not finite, as some loops do: the weights stay finite."""

    @torch.no_grad()
    def step(self, closure=None):  # not by torch's step, whose hooks would run a second time
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (p.grad.nan_to_num(0.0, 0.0, 0.0) + group["weight_decay"] * p))


def test_one_gradient_that_is_not_finite_is_named_though_later_samples_are(tmp_path):
    model = network()
    sgd = PatientSGD(model.parameters(), lr=1e-3, weight_decay=0.1)
    diagnosis = Training(tmp_path / "run", model, sgd, scale=lambda t: NAN if t == 100 else 1.0).go(200).diagnose()
    assert diagnosis[0].kind == "diverged", str(diagnosis)
    assert diagnosis[0].evidence["step"] == 100
    assert "later ones are finite again" in diagnosis[0].sentence
    assert "well" not in diagnosis.kinds


def test_vectors_at_zero_have_not_diverged(tmp_path):
    model = network()
    nn.init.zeros_(model[0].weight)
    assert "diverged" not in Training(tmp_path / "run", model, adamw(model)).go(60).diagnose().kinds
