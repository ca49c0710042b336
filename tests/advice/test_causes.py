"""The right cause: a layer that stops, and factors that were set."""

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.advice import diagnose
from gyroscope.advice.remedies import OWN_IMBALANCE
from tests.advice.memory import record
from tests.advice.test_diagnose import only
from tests.planner.test_plan import small

SAMPLES = np.arange(100)


def late(value):
    """Return 1, and `value` in the last fifth."""
    return np.where(SAMPLES < 80, 1.0, value)


def test_a_layer_that_stops_moving_is_named_with_its_step():
    run = record()
    run.data["b"]["angular_update"] *= late(1e-3)[:, None]
    found = only(diagnose(run), "stopped")
    assert (found.layers, found.evidence["step"]) == (("b",), 800)
    assert found.sentence.startswith("b stopped moving at step 800")
    assert "stopped" not in diagnose(record(lr=lambda t: 1e-2 * (1 - t / 1000))).kinds


def test_a_gradient_along_the_weights_does_not_explain_an_angle_that_the_optimizer_sets():
    run = record()
    run.config["groups"][0] |= {"optimizer": "RotationalAdamW"}
    run.data["b"] |= {"angular_update": run.data["b"]["angular_update"] * 0.4, "lambda_u": np.full(100, -40.0)}
    diagnosis = diagnose(run)
    assert "scale_sensitive" not in diagnosis.kinds
    assert diagnosis.summary[-1].startswith("The optimizer sets the rotation")


def test_an_imbalance_is_explained_by_angle_factors_only_if_they_were_set():
    speeds = np.where(np.arange(32) < 8, 6.0, 1.0)
    for options, remedy in (({}, ""), ({"angle_factors": True}, OWN_IMBALANCE.text)):
        run = record()
        run.config["groups"][0] |= {"optimizer": "RotationalAdamW", **options}
        run.data["a"]["angular_update"] *= speeds
        assert only(diagnose(run), "neuron_imbalance").remedy == remedy


@pytest.mark.parametrize(("scale", "changes"), [(0.2, {"gain": True, "start": "equilibrium"}), (1.0, {})])
def test_a_plan_names_the_rotational_recipe_only_for_norms_with_which_it_was_tried(scale, changes):
    model = small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
    optimizer = gyro.optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-3)
    findings = gyro.plan(model, optimizer, steps=200).findings
    assert findings.changes == changes
    assert [each.trial for each in findings if each.kind == "small_norms"] == ["beyond/recipe_gpt"] * bool(changes)
