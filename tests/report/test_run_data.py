"""The data behind the page: every number comes from the store or from theory."""

import json
import math

import numpy as np
import pytest

from gyroscope.advice.history import LayerHistory
from gyroscope.advice.run_layer import noise_ratio
from gyroscope.render.page import page_json
from gyroscope.report import gather
from gyroscope.report.run_data import LAYER_SERIES, OVER_LAYERS
from gyroscope.report.run_gather import quantile
from gyroscope.store import RunError, open_run
from tests.render import make


def data_of(*paths):
    return json.loads(page_json(gather(paths)))


def rms(values):
    return np.sqrt((values**2).mean())


def same(found, expected, digits=5):
    """Whether JSON has the numbers of an array, to so many digits."""
    values = [math.nan if value is None else value for value in found]
    finite = np.where(np.isfinite(expected), expected, np.nan)
    np.testing.assert_allclose(values, finite, rtol=10.0 ** (1 - digits), atol=0)
    return True


def test_every_series_and_distribution_is_what_the_store_holds(path):
    data = data_of(path)["runs"][0]
    with open_run(path) as run:
        assert data["steps"] == run.steps.tolist()
        assert [layer["name"] for layer in data["layers"]] == run.layers
        for layer in data["layers"]:
            assert list(layer["series"]) == list(LAYER_SERIES)
            for name, values in layer["series"].items():
                quantity, _, stat = name.partition(".")
                assert same(values, run.series(layer["name"], quantity, stat or "mean"))
            for quantity, ones in layer["distributions"].items():
                assert {run.steps[0], run.steps[-1]} <= {one["step"] for one in ones}
                for one in ones:
                    check_distribution(run, layer["name"], quantity, one)
        for group in data["groups"]:
            for name, values in group["series"].items():
                assert same(values, run.series(run.layers[0], name))


def check_distribution(run, layer, quantity, one):
    counts = np.zeros(128, int)
    counts[one["first"] : one["first"] + len(one["counts"])] = one["counts"]
    assert counts.tolist() == run.histogram(layer, quantity, one["step"]).tolist()
    assert (one["least_id"], one["most_id"]) == run.extremes(layer, quantity, one["step"])
    place = run.steps.tolist().index(one["step"])
    ends = [run.series(layer, quantity, stat)[place] for stat in ("min", "max")]
    assert same([one["least"], one["most"]], ends, digits=7)


def test_what_is_said_of_all_layers_together_follows_from_each(path):
    data = data_of(path)["runs"][0]
    left = dict(data["series"])
    with open_run(path) as run:
        for name, ones in OVER_LAYERS.items():
            quantity, _, stat = name.partition(".")
            block = np.stack([run.series(layer, quantity, stat or "mean") for layer in run.layers])
            for one in ones:
                level = {"q05": 0.05, "q50": 0.5, "q95": 0.95}[one]
                assert same(left.pop(f"{name}.{one}"), np.quantile(block, level, axis=0))
    assert not left


def test_the_line_of_a_layer_is_the_mean_over_the_judged_part_of_the_run(path):
    data = data_of(path)["runs"][0]
    with open_run(path) as run:
        for layer in data["layers"]:
            one, window = dict(layer["summary"]), LayerHistory(run, layer["name"]).window
            turned = run.series(layer["name"], "angular_update", "rms")[window]
            predicted = run.series(layer["name"], "forecast_angular_update")[window]
            low, high = (run.series(layer["name"], "angular_update", stat)[window] for stat in ("q05", "q95"))
            assert same([one.pop("rotation"), one.pop("predicted_rotation")], [rms(turned), rms(predicted)])
            assert same([one.pop("alignment")], [run.series(layer["name"], "alignment")[window].mean()])
            assert same([one.pop("rotation_ratio")], [rms(turned / predicted)])
            assert same([one.pop("norm")], [run.series(layer["name"], "norm", "rms")[window].mean()])
            norms = run.series(layer["name"], "norm", "rms") / run.series(layer["name"], "forecast_norm")
            assert same([one.pop("norm_ratio")], [norms[window].mean()])
            assert same([one.pop("decay_ratio")], [run.series(layer["name"], "lambda_e", "q50")[window].mean() / 0.5])
            noise = noise_ratio(layer["fan_in"], layer["vectors"])
            assert same([one.pop("imbalance") * noise], [(high / low).mean()])
            assert one.pop("radial_gradient") is None is one.pop("update")  # only of scale-sensitive layers
            assert one.pop("dead_vectors") == 0 == one.pop("frozen_share")
            assert one.pop("diverged") is False
            assert one.pop("reference") == "forecast"
            settled = one.pop("settled_at")
            assert settled is None or settled in run.steps
            assert one.pop("state") == "off equilibrium"
            assert not one


def test_words_are_those_of_the_findings(path):
    data = data_of(path)["runs"][0]
    with open_run(path) as run:
        diagnosis = run.diagnose()
    assert diagnosis
    assert [one["sentence"] for one in data["findings"]] == [finding.sentence for finding in diagnosis]
    assert [one["evidence"] for one in data["findings"]] == [
        {key: pytest.approx(value) for key, value in finding.evidence.items()} for finding in diagnosis
    ]


def test_a_long_run_is_thinned_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.report.run_gather.MAX_SAMPLES", 20)
    run = data_of(make.run_at(tmp_path / "long", make.healthy(names=make.NAMES[:1], vectors=2)))["runs"][0]
    assert (run["total"], run["stride"], len(run["steps"])) == (100, 8, 13)
    assert len(run["layers"][0]["series"]["norm.rms"]) == 13


def test_what_training_logged_is_there_by_name_and_thinned_where_it_is_long(tmp_path, monkeypatch):
    path = make.log_at(tmp_path / "run")
    (run,) = data_of(path)["runs"]
    assert list(run["scalars"]) == ["loss", "accuracy", "tokens"]
    assert run["scalars"]["loss"]["steps"] == list(range(0, 300, 2))
    assert same(run["scalars"]["loss"]["values"], [make.loss_at(step) for step in range(0, 300, 2)])
    monkeypatch.setattr("gyroscope.report.run_gather.MAX_SAMPLES", 40)
    (run,) = data_of(path)["runs"]
    assert run["scalars"]["loss"]["steps"] == list(range(0, 300, 8))
    assert run["scalars"]["loss"]["last"] == pytest.approx(make.loss_at(298))
    assert len(run["scalars"]["accuracy"]["steps"]) == 6


def test_layers_that_some_runs_lack_are_named_once_with_the_runs_that_have_them(tmp_path):
    layers = {
        "adamw": ("wte", "a", "b"),
        "adamw_3e-3": ("wte", "a", "b"),
        "lion": ("b", "head", "a"),
        "sgd": ("a", "b"),
    }
    paths = []
    for name, names in layers.items():
        story = make.healthy(**{**make.SMALL, "names": tuple(f"{each}.weight" for each in names)})
        paths.append(make.run_at(tmp_path / name, story))
    expected = "The comparison leaves out layers that only some runs have: wte (adamw and adamw_3e-3) and head (lion)."
    assert gather(paths).left_out == expected


def test_runs_are_ranked_by_their_loss_on_held_out_data(tmp_path):
    """The run with the lower training loss ends with the higher one on data held out."""
    paths = []
    for name, training, held_out in (("overfits", 0.1, 2.0), ("fits", 1.0, 1.5)):
        with make.writer(tmp_path / name, make.healthy(**make.SMALL)) as writer:
            for step, samples in make.samples(make.healthy(**make.SMALL)):
                writer.put(make.Sample(step, 1.7e9 + step, dict(enumerate(samples))))
                writer.put_scalars([(step, {"loss": training, "val_loss": held_out})])
        paths.append(tmp_path / name)
    report = gather(paths)
    assert [run.colour for run in report.runs] == [1, 0]
    assert report.table.header[:3] == ["run", "val_loss", "optimizer"]
    assert [row[:2] for row in report.table.rows] == [["fits", "1.5"], ["overfits", "2"]]
    assert {run.head.loss_name for run in report.runs} == {"val_loss"}


def test_runs_of_one_name_are_told_apart_by_what_stands_above(tmp_path):
    paths = [make.run_at(tmp_path / above / "run", make.healthy(**make.SMALL)) for above in "ab"]
    assert sorted(run.name for run in gather(paths).runs) == ["a/run", "b/run"]
    assert sorted(run.name for run in gather([paths[0], paths[0]]).runs)[1].endswith("(2)")


def test_a_run_that_theory_does_not_know_has_curves(tmp_path):
    story = make.healthy(**make.SMALL, config={"groups": [{"optimizer": "Mystery"}]})
    run = gather([make.run_at(tmp_path / "run", story)]).runs[0]
    assert run.groups[0]["rule"] == "Mystery"
    assert np.isfinite(run.series["angular_update.mean.q50"]).all()


def test_a_run_without_some_quantities_still_has_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "QUANTITIES", make.QUANTITIES[:1])
    whole = make.layer_sample
    monkeypatch.setattr(make, "layer_sample", lambda x, scalars: whole(x[:1], []))
    run = gather([make.run_at(tmp_path / "bare", make.healthy(**make.SMALL))]).runs[0]
    assert np.isfinite(run.layers[0].series["angular_update.mean"]).all()
    assert np.isnan(run.layers[0].series["norm.rms"]).all()


def test_quantiles_leave_out_what_is_not_finite():
    block = np.random.default_rng(0).standard_normal((7, 50))
    block[block > 1.5] = np.nan
    for q in (0.0, 0.05, 0.5, 1.0):
        np.testing.assert_allclose(quantile(block, q), np.nanquantile(block, q, axis=0))
    assert np.isnan(quantile(np.full((2, 1), np.inf), 0.5))


def diverging(path, layers=(0,)):
    """A run in which some layers' numbers are not finite from step 150 on."""
    story = make.healthy(**make.SMALL)
    with make.writer(path, story) as writer:
        for step, samples in make.samples(story):
            lost = [
                make.not_finite(sample) if step >= 150 and i in layers else sample for i, sample in enumerate(samples)
            ]
            writer.put(make.Sample(step, 1.7e9 + step, dict(enumerate(lost))))
    return path


def test_a_layer_whose_numbers_are_not_finite_shows_none_of_its_earlier_ones(tmp_path):
    run = data_of(diverging(tmp_path / "lost"))["runs"][0]
    lost, well = (layer["summary"] for layer in run["layers"])
    assert lost.pop("diverged") is True
    assert lost["state"] == "not finite"
    assert well["diverged"] is False
    assert {key for key, value in lost.items() if value is not None} <= {"settled_at", "reference", "state"}
    assert well["rotation"] > 0
    assert run["findings"][0]["kind"] == "diverged"
    assert run["findings"][0]["layers"] == [make.NAMES[0]]


def test_the_three_numbers_that_explain_a_scale_sensitive_layer_are_in_its_row(tmp_path):
    path = make.run_at(tmp_path / "run", make.healthy(radial=-0.2, speeds=(0.5,)))
    with open_run(path) as run:
        assert "scale_sensitive" in run.diagnose().kinds
        window = LayerHistory(run, run.layers[0]).window
        cosine = run.series(run.layers[0], "grad_weight_cosine")[window].mean()
        update = run.series(run.layers[0], "update_norm", "rms")[window].mean()
    (shown,) = gather([path]).runs
    assert shown.layers[0].summary["radial_gradient"] == pytest.approx(cosine)
    assert shown.layers[0].summary["update"] == pytest.approx(update)
    assert {"radial\ngradient", "update", "norm"} <= set(shown.table.header)


def test_the_map_is_the_median_ratio_to_the_forecast_in_parts_of_the_run(tmp_path):
    (run,) = gather([make.run_at(tmp_path / "run", make.imbalanced(uneven=0.0))]).runs
    assert len(run.map_steps) == len(run.layers[0].ratios) == 60
    speeds = [2 ** np.nanmedian(layer.ratios) for layer in run.layers]
    np.testing.assert_allclose(speeds, [1.0, 3.1, 0.35, 1.2, 0.8], rtol=0.02)


def test_repeated_layers_are_one_family_and_parts_of_fused_weights_have_their_own_shape(tmp_path):
    parts = [f"h.{block}.attn.c_attn.weight[{part}]" for block in range(3) for part in "qkv"]
    story = make.healthy(**{**make.SMALL, "names": (*parts, "head.weight")})
    with make.writer(tmp_path / "run", story, rows=3 * story.vectors) as writer:
        for step, samples in make.samples(story):
            writer.put(make.Sample(step, 1.7e9 + step, dict(enumerate(samples))))
    layers = data_of(tmp_path / "run")["runs"][0]["layers"]
    assert [layer["family"] for layer in layers] == [f"h.*.attn.c_attn[{part}]" for part in "qkv"] * 3 + ["head"]
    assert layers[0]["label"] == "h.0.attn.c_attn[q]"
    assert layers[0]["shape"] == [8, 144]


def test_a_run_without_samples_is_refused(tmp_path):
    make.writer(tmp_path / "run", make.healthy()).close()
    with pytest.raises(RunError, match="no samples yet"):
        gather([tmp_path / "run"])
