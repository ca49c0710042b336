"""The angle to the start: exact for small and for large angles, bounded in memory, and counted from each resume."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.measure._pipeline import layers as measured_layers
from gyroscope.store import open_run
from tests.measure.fakes import Turner, noise_gradients, rows_only, true_angle


def steps(model, optimizer, count, weights):
    generator = torch.Generator().manual_seed(len(weights))
    for _ in range(count):
        weights.append(model.weight.detach().clone())
        noise_gradients(model, generator)
        optimizer.step()


@pytest.mark.parametrize("stretch", [1.0, 0.5, 1.5])
@pytest.mark.parametrize("columns", [7, 1000, 20_000])  # the last are measured in parts
def test_it_is_the_angle_to_the_first_weights_however_small(tmp_path, columns, stretch):
    angles = torch.logspace(-6, 0, 12, dtype=torch.float64)
    model = rows_only(12, columns)
    optimizer = Turner(model.parameters(), angles, stretch)
    weights = []
    with gyro.Tracker(model, optimizer, tmp_path, every=1, raw="."):
        steps(model, optimizer, 6, weights)
    reported = open_run(tmp_path).raw("weight", "angle_to_start")
    assert (reported[0] == 0).all()
    for number in range(1, 6):
        np.testing.assert_allclose(reported[number], true_angle(weights[0], weights[number]), rtol=1e-5)


def test_it_reaches_pi_where_a_vector_points_back(tmp_path):
    model = rows_only(3, 10)
    optimizer = Turner(model.parameters(), math.pi)
    with gyro.Tracker(model, optimizer, tmp_path, every=1, raw="."):
        steps(model, optimizer, 3, [])
    reported = open_run(tmp_path).raw("weight", "angle_to_start")
    np.testing.assert_allclose(reported, np.array([0, math.pi, 0])[:, None] * np.ones(3), atol=1e-5)


def test_the_last_sample_of_a_run_has_it(tmp_path):
    model = rows_only(3, 10)
    optimizer = Turner(model.parameters(), 0.1)
    weights = []
    with gyro.Tracker(model, optimizer, tmp_path):
        steps(model, optimizer, 25, weights)
    run = open_run(tmp_path)
    assert run.steps[-1] == 24
    after = true_angle(weights[0], model.weight).mean().item()
    assert run.series("weight", "angle_to_start")[-1] == pytest.approx(after, rel=1e-5)


def test_after_a_resume_it_counts_from_there(tmp_path):
    model = rows_only(12, 100)
    optimizer = Turner(model.parameters(), 0.05, 0.9)
    weights = []
    for resume in (False, True):
        with gyro.Tracker(model, optimizer, tmp_path, every=1, raw=".", resume=resume):
            steps(model, optimizer, 5, weights)
    reported = open_run(tmp_path).raw("weight", "angle_to_start")
    assert reported.shape == (10, 12)
    for number in range(10):
        start = weights[0 if number < 5 else 5]
        np.testing.assert_allclose(reported[number], true_angle(start, weights[number]), atol=1e-6)


def finite_vectors(path, model, **options):
    """How many vectors of each layer have an angle to the start."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gyro.Tracker(model, optimizer, path, every=1, raw=".", **options):
        for _ in range(2):
            noise_gradients(model, torch.Generator().manual_seed(0))
            optimizer.step()
    run = open_run(path)
    return {name: np.flatnonzero(np.isfinite(run.raw(name, "angle_to_start")[1])).tolist() for name in run.layers}


def test_of_a_wide_layer_some_vectors_are_kept_evenly_spread(tmp_path):
    model = nn.Sequential(nn.Linear(4, 640), nn.Linear(640, 10))
    kept = finite_vectors(tmp_path / "all", model)
    assert kept == {"0.weight": list(range(0, 640, 10)), "1.weight": list(range(10))}
    few = finite_vectors(tmp_path / "few", model, rows=5)
    assert few == {"0.weight": [0, 1, 2, 3, 4], "1.weight": [0, 1, 2, 3, 4]}, "of the rows that are measured"


def test_the_entries_of_all_layers_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_layers, "MAX_INITIAL_ENTRIES", 2000)
    model = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(4)])
    kept = finite_vectors(tmp_path, model)
    assert {len(ids) for ids in kept.values()} == {5}, "a quarter of 2,000 entries each, of vectors of 100"


def test_a_model_with_a_billion_weights_keeps_64_megabytes():
    """The layers of a Llama with 24 blocks of width 2,048, on the meta device."""
    with torch.device("meta"):
        block = [(2048, 2048)] * 4 + [(5632, 2048)] * 2 + [(2048, 5632)]
        model = nn.Sequential(*[nn.Linear(n, m, bias=False) for _ in range(24) for m, n in block])
    assert sum(p.numel() for p in model.parameters()) > 1e9
    optimizer = torch.optim.AdamW(model.parameters())
    layers = measured_layers.find_layers(model, optimizer)
    ids = measured_layers.initial_rows(layers)
    entries = sum(len(each) * layer.fan_in for each, layer in zip(ids, layers, strict=True))
    assert 0.9 * 2**24 < entries <= 2**24
    assert min(map(len, ids)) == max(map(len, ids)) == 39
