"""Plan, tracker, groups and autopsy agree on embeddings: included if they decay, by token, and never rotated."""

import pytest
import torch
from gyroscope_lab.networks.registry import text_network

import gyroscope as gyro
from gyroscope.geometry import Split

VOCABULARY = 11
CONTEXT = 8
TABLES = {"token.weight", "position.weight"}
OPTIMIZERS = {"AdamW": torch.optim.AdamW, "Lion": gyro.optim.Lion}


def gpt():
    torch.manual_seed(0)
    model = text_network(f"gpt:layers=1,width=16,heads=2,context={CONTEXT}", VOCABULARY)
    assert {name for name, _ in model.named_parameters()} >= TABLES
    return model


def step(model, optimizer):
    text = torch.randint(VOCABULARY, (4, CONTEXT))
    model(text).square().mean().backward()
    optimizer.step()


def layers_of_all(model, optimizer, path):
    """The layers of plan, tracker and autopsy by parameter: queries, keys and values count as one."""
    plan = gyro.plan(model, optimizer, steps=3)
    with gyro.Tracker(model, optimizer, path, every=1) as tracker:
        step(model, optimizer)
        tracked = {name: tracker.run.layer(name).vectors for name in tracker.run.layers}
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    seen = gyro.autopsy(saved).layers
    assert {name: len(layer.rotations) for name, layer in seen.items()} == tracked
    # Without a rule, a plan names the layers that it cannot forecast.
    return {*plan.layers, *plan.missing}, {name.partition("[")[0] for name in tracked}, tracked


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_embedding_that_decays_is_planned_measured_and_seen_in_a_file_one_vector_per_token(optimizer, tmp_path):
    model = gpt()
    made = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3, weight_decay=0.1)
    planned, measured, vectors = layers_of_all(model, made, tmp_path / "run")
    assert planned == measured
    assert measured >= TABLES
    assert (vectors["token.weight"], vectors["position.weight"]) == (VOCABULARY, CONTEXT)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_embedding_without_decay_is_left_out_by_all(optimizer, tmp_path):
    model = gpt()
    groups = gyro.param_groups(model, weight_decay=0.1)
    planned, measured, _ = layers_of_all(model, OPTIMIZERS[optimizer](groups, lr=1e-3), tmp_path / "run")
    assert planned == measured
    assert not measured & TABLES


def test_embeddings_in_a_group_of_their_own_follow_its_decay(tmp_path):
    model = gpt()
    tables = [p for name, p in model.named_parameters() if name in TABLES]
    others = [p for name, p in model.named_parameters() if name not in TABLES]
    for decay in (0.0, 0.1):
        groups = [{"params": tables, "weight_decay": decay}, {"params": others, "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        planned, measured, _ = layers_of_all(model, optimizer, tmp_path / f"run {decay}")
        assert planned == measured
        assert (measured & TABLES) == (TABLES if decay else set())


@pytest.mark.parametrize("params", ["model", "named parameters", "groups"])
def test_no_optimizer_rotates_an_embedding_by_default(params):
    model = gpt()
    given = {
        "model": model,
        "named parameters": model.named_parameters(),
        "groups": gyro.param_groups(model, weight_decay=0.1),
    }
    optimizer = gyro.optim.RotationalAdamW(given[params], weight_decay=0.1)
    split = {id(p): Split.of(group) for group in optimizer.param_groups for p in group["params"]}
    by_name = {name: split[id(p)].granularity for name, p in model.named_parameters()}
    assert {by_name[name] for name in TABLES} == {"none"}
    assert {by_name[name] for name, p in model.named_parameters() if p.dim() > 1 and name not in TABLES} == {"neuron"}


def test_a_plan_predicts_embeddings_and_its_findings_leave_them_out():
    model = gpt()
    plan = gyro.plan(model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5), steps=400)
    rows = model.token.weight.detach().norm(dim=1)
    assert plan.layers["token.weight"].initial_norm == pytest.approx(float(rows.square().mean().sqrt()))
    judged = {name for finding in plan.findings for name in finding.layers}
    assert judged
    assert not judged & TABLES
