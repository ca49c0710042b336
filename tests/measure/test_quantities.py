"""Each quantity in the table against its brute-force twin, for every kind of optimizer, from what a run has stored."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR, QUANTITIES
from tests.measure import twins

STEPS = 6
OPTIMIZERS = {
    "SGD": ("SGD", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-3)),
    "SGD without momentum": ("SGD", lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=5e-3)),
    "Nesterov": ("SGD", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-3)),
    "Adam": ("Adam", lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-2)),
    "AdamW": ("AdamW", lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1)),
    "Lion": ("Lion", lambda p: gyro.optim.Lion(p, lr=1e-3, weight_decay=0.3)),
    "RotationalAdamW": ("Rotational", lambda p: gyro.optim.RotationalAdamW(p, lr=1e-3, weight_decay=0.1)),
    "Adagrad": ("unknown", lambda p: torch.optim.Adagrad(p, lr=1e-2)),
}
SPLITS = {
    "0.weight": [("neuron", 0, 1), lambda w: list(w.flatten(1))],
    "2.weight": [("neuron", 1, 1), lambda w: [w[:, i].flatten() for i in range(w.shape[1])]],
    "4.weight": [("group", 0, 2), lambda w: [w[2 * i : 2 * i + 2].flatten() for i in range(w.shape[0] // 2)]],
    "5.weight": [("tensor", 0, 1), lambda w: [w.flatten()]],
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2, bias=False),
        nn.Flatten(),
        nn.Linear(100, 8, bias=False),
        nn.Linear(8, 3),
    ).to(memory_format=torch.channels_last)


def groups(model):
    names = dict(model.named_parameters())
    keys = ("granularity", "axis", "group_size")
    found = [{"params": [names[n]], **dict(zip(keys, split, strict=True))} for n, (split, _) in SPLITS.items()]
    rest = [p for n, p in names.items() if n not in SPLITS]
    return [*found, {"params": rest, "granularity": "none", "weight_decay": 0.0}]


def momentum(optimizer, p):
    state = optimizer.state.get(p, {})
    found = state.get("momentum_buffer", state.get("exp_avg"))
    return None if found is None else found.detach().double().clone()


def record(path, kind, make, closure=False):
    """Train, tracked at every second step; the moments of all vectors at each sample, by layer."""
    model = network()
    optimizer = make(groups(model))
    parameters = {name: p for name, p in model.named_parameters() if name in SPLITS}
    moments, earlier = {name: [] for name in SPLITS}, {}
    generator = torch.Generator().manual_seed(1)
    with gyro.Tracker(model, optimizer, path, every=2, raw="."):
        for step in range(STEPS):
            x = torch.randn(16, 3, 6, 6, generator=generator)

            def loss(x=x):
                optimizer.zero_grad()
                value = model(x).square().mean() + model(x).mean()
                value.backward()
                return value

            if not closure:
                loss()
            before = {n: (p.detach().double().clone(), momentum(optimizer, p)) for n, p in parameters.items()}
            optimizer.step(loss) if closure else optimizer.step()
            if step % 2 == 0:
                for number, (name, p) in enumerate(parameters.items()):
                    cut, (w, m) = SPLITS[name][1], before[name]
                    state = optimizer.state[p]
                    v = state.get("exp_avg_sq")
                    parts = [cut(w), cut(p.detach().double()), cut(p.grad.double())]
                    parts += [None if y is None else cut(y.double()) for y in (m, v, earlier.get(name))]
                    made = [
                        twins.Moment(*[None if part is None else part[i] for part in parts[:5]], 0, {}, kind)  # type: ignore[call-arg]
                        for i in range(len(parts[0]))
                    ]
                    for i, moment in enumerate(made):
                        moment.earlier = None if parts[5] is None else parts[5][i]
                        moment.first = moments[name][0][i].w if moments[name] else moment.w
                        moment.group, moment.t = dict(optimizer.param_groups[number]), step + 1
                    moments[name].append(made)
                    earlier[name] = w
    return gyro.store.open_run(path), moments


@pytest.fixture(scope="module", params=OPTIMIZERS)
def recorded(request, tmp_path_factory):
    kind, make = OPTIMIZERS[request.param]
    return record(tmp_path_factory.mktemp("run"), kind, make)


def compare(run, moments, name, digits=1e-6):
    """Every vector of every layer and sample; sums of either sign are as exact as what cancels in them allows."""
    for layer, samples in moments.items():
        predicted = run.series(layer, "predicted_angular_update")
        for number, vectors in enumerate(samples):
            for x in vectors:
                x.predicted = predicted[number]
            expected, reported = [getattr(twins, name)(x) for x in vectors], run.raw(layer, name)[number]
            absolute = np.nan_to_num([digits * twins.scale(name, x) for x in vectors])
            far = np.abs(reported - expected) > 20 * digits * np.abs(expected) + absolute
            assert not far.any(), f"{layer}, sample {number}: {reported[far]} instead of {np.array(expected)[far]}"
            np.testing.assert_array_equal(np.isnan(reported), np.isnan(expected))


@pytest.mark.parametrize("row", PER_VECTOR, ids=lambda row: row.name)
def test_every_vector_is_measured_as_its_twin_says(row, recorded):
    run, moments = recorded
    compare(run, moments, row.name)


@pytest.mark.parametrize(
    "name",
    [
        "lr",
        "highest_lr",
        "lr_jump_step",
        "lr_before_jump",
        "setting_jump_step",
        "beta1",
        "beta2",
        "weight_decay",
        "skipped_steps",
        "dead_vectors",
        "non_finite",
        "frozen_entries",
        "entries",
    ],
)
def test_every_layer_is_counted_as_its_twin_says(name, recorded):
    run, moments = recorded
    for layer, samples in moments.items():
        expected = [getattr(twins, name)(vectors) for vectors in samples]
        np.testing.assert_allclose(run.series(layer, name), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["signal_ratio", "alignment"])
def test_the_signal_of_a_layer_is_what_its_twin_says(name, recorded):
    run, moments = recorded
    for layer, samples in moments.items():
        expected = np.array([getattr(twins, name)(vectors) for vectors in samples])
        known = np.isfinite(expected)
        # V - M is small where gradients agree, as they do in the first steps.
        np.testing.assert_allclose(run.series(layer, name)[known], expected[known], rtol=1e-4)
        np.testing.assert_array_equal(np.isfinite(run.series(layer, name))[1:], known[1:])


@pytest.mark.parametrize("name", ["predicted_angular_update", "predicted_norm", "predicted_timescale"])
def test_predictions_are_table_1_to_leading_order(name, recorded):
    run, moments = recorded
    for layer, samples in moments.items():
        kind = samples[0][0].kind
        expected = np.array([getattr(twins, name)(vectors) for vectors in samples])
        if kind == "Rotational" and name == "predicted_norm":
            first = math.sqrt(sum(float(x.w.square().sum()) for x in samples[0]) / len(samples[0]))
            expected[:] = first  # held where it was
        if kind in ("Adam", "Lion"):
            assert np.isfinite(run.series(layer, name)).all(), "theory.Rule.at is tested on its own"
        else:
            np.testing.assert_allclose(run.series(layer, name), expected, rtol=2e-2)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_the_forecast_is_the_mean_field_from_the_first_measured_norm(optimizer, tmp_path):
    kind, make = OPTIMIZERS[optimizer]
    run, moments = record(tmp_path, kind, make)
    for layer, samples in moments.items():
        motion = None
        for number, vectors in enumerate(samples):
            unit2 = sum(twins.unit_grad_norm(x) ** 2 for x in vectors) / len(vectors)
            if motion is None:
                start = sum(float(x.w.square().sum()) for x in vectors) / len(vectors)
                motion = twins.MeanField(start, kind, len(vectors[0].w))
            for _ in range(2 if number else 1):
                last = motion.step(vectors[0].group, unit2 if kind == "SGD" else 1.0)
            for name in ("forecast_angular_update", "forecast_norm"):
                np.testing.assert_allclose(
                    run.series(layer, name)[number], getattr(twins, name)(vectors, last), rtol=1e-5
                )


@pytest.mark.parametrize("optimizer", ["SGD", "Nesterov", "Adam", "AdamW", "Lion"])
def test_a_closure_that_makes_the_gradients_within_the_step_changes_no_reading(optimizer, tmp_path):
    kind, make = OPTIMIZERS[optimizer]
    run, moments = record(tmp_path, kind, make, closure=True)
    for row in PER_VECTOR:
        compare(run, moments, row.name, digits=5e-6)


def test_long_vectors_are_measured_in_parts_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.measure._pipeline.layers.MAX_PIECE_ENTRIES", 17)
    monkeypatch.setattr("gyroscope.measure._pipeline.sums.AT_ONCE_CPU", 40)
    run, moments = record(tmp_path, *OPTIMIZERS["AdamW"])
    for row in PER_VECTOR:
        compare(run, moments, row.name)
    for layer, samples in moments.items():
        assert run.series(layer, "entries").tolist() == [twins.entries(vectors) for vectors in samples]


@pytest.mark.parametrize("row", QUANTITIES, ids=lambda row: row.name)
def test_every_row_of_the_table_has_unit_formula_source_and_twin(row):
    one = row
    assert one.formula, "a formula"
    assert one.source, "the paper it comes from"
    assert one.unit or one.name in PURE_NUMBERS, "a unit"
    assert callable(getattr(twins, one.name)), "a brute-force twin in twins.py"


PURE_NUMBERS = {
    "grad_weight_cosine",
    "grad_momentum_cosine",
    "scaled_grad_norm",
    "effective_lr",
    "max_update",
    "rotation_discrepancy",
    "signal_ratio",
    "alignment",
    "lr",
    "weight_decay",
    "highest_lr",
    "lr_before_jump",
    "beta1",
    "beta2",
    "non_finite",
}


def test_the_table_has_what_findings_and_pages_read():
    per_vector = {row.name for row in PER_VECTOR}
    per_layer = {row.name for row in PER_LAYER}
    assert per_vector >= {"angular_update", "norm", "unit_grad_norm", "lambda_u", "max_update", "rotation_discrepancy"}
    assert per_layer >= {"predicted_angular_update", "predicted_norm", "forecast_norm", "dead_vectors", "entries"}
