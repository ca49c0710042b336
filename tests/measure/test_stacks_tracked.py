"""A tracked run with the groups, wrappers and states of each training stack."""

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.model.selection import select
from tests.optimizers import stand_ins
from tests.optimizers.stand_ins import of_package

STEPS = 12


class Experts(nn.Module):
    """A mixture of experts as one parameter [experts, out, in], with its router."""

    def __init__(self, width=12, inner=16, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, inner, width) / 4)
        self.down = nn.Parameter(torch.randn(experts, width, inner) / 4)

    def forward(self, x):
        inner = torch.einsum("eoi,bi->beo", self.up, x).relu()
        return torch.einsum("eoi,bei,be->bo", self.down, inner, self.router(x).softmax(-1))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 12)
        self.norm = nn.LayerNorm(12)
        self.q = nn.Linear(12, 12, bias=False)
        self.k = nn.Linear(12, 12, bias=False)
        self.experts = Experts()
        self.head = nn.Linear(12, 11, bias=False)

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        return self.head(self.experts(x + self.q(x) * self.k(x)))

    @property
    def hidden(self):
        return [self.q.weight, self.k.weight]

    @property
    def others(self):
        return [p for p in self.parameters() if all(p is not each for each in self.hidden)]


def run_of(model, tracked, members, path, before_step=lambda step: None):
    with gyro.Tracker(model, tracked, path, every=1):
        for step in range(STEPS):
            tokens = torch.randint(0, 11, (32,), generator=torch.Generator().manual_seed(step))
            for each in members:
                each.zero_grad()
            nn.functional.cross_entropy(model(tokens), tokens).backward()
            before_step(step)
            for each in members:
                each.step()
    run = gyro.store.open_run(path)
    for name in run.layers:
        assert np.isfinite(run.series(name, "angular_update")).all(), name
        assert np.isfinite(run.series(name, "norm")).all(), name
    return run


def predicted(run, layer):
    return run.series(layer, "predicted_angular_update")


def muon_angle(lr, weight_decay, shape, **options):
    return gyro.theory.Muon(lr, weight_decay, **options).equilibrium(shape=shape).angular_update


def test_torchtitans_container_of_muon_and_adamw(tmp_path):
    model = Network()
    muon = of_package(stand_ins.DistMuon, "DistMuon", "torchtitan")(model.hidden, lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW(model.others, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    container = type("OptimizersContainer", (), {"optimizers": [muon, adamw]})()
    run = run_of(model, container, [muon, adamw], tmp_path / "run")
    assert predicted(run, "q.weight") == pytest.approx(muon_angle(0.02, 0.1, (12, 12)))
    assert run.layer("q.weight").vectors == 1
    expected = gyro.theory.AdamW(1e-3, 0.1).equilibrium().angular_update
    assert predicted(run, "experts.up") == pytest.approx(expected)
    assert (run.layer("experts.up").vectors, run.layer("experts.down").vectors) == (4 * 16, 4 * 12)
    assert run.layer("experts.router.weight").vectors == 4
    assert list(run.notes) == []


def test_megatrons_groups_whose_rates_are_rewritten_in_each_step(tmp_path):
    model = Network()
    keys = {"lr_mult": 1.0, "max_lr": 1e-3, "min_lr": 1e-4, "is_decoupled_lr": False, "default_config": True}
    groups = [
        {"params": [model.experts.up, model.experts.down], "wd_mult": 1.0, "is_expert_parallel": True, **keys},
        {"params": [model.q.weight, model.k.weight], "wd_mult": 0.5, "is_expert_parallel": False, **keys},
    ]
    adam = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    megatron = type("MegatronOptimizer", (), {"optimizer": adam})()
    chained = type("ChainedOptimizer", (), {"chained_optimizers": [megatron]})()

    def rewrite(step):
        for group in adam.param_groups:
            group["lr"] = 1e-3 * (step + 1) / STEPS * group["lr_mult"]
            group["weight_decay"] = 0.1 * (1 + step) * group["wd_mult"]

    run = run_of(model, chained, [adam], tmp_path / "run", rewrite)
    for layer, share in (("experts.up", 1.0), ("q.weight", 0.5)):
        expected = [
            gyro.theory.AdamW(1e-3 * (step + 1) / STEPS, 0.1 * (1 + step) * share).equilibrium().angular_update
            for step in range(STEPS)
        ]
        assert predicted(run, layer) == pytest.approx(expected)


@pytest.mark.parametrize("stepfix", [True, False])
def test_olmos_adamw_that_may_skip_a_step(stepfix, tmp_path):
    model = Network()
    cls = of_package(stand_ins.SkipStepAdamW, "SkipStepAdamW", "olmo_core")
    groups = [{"params": list(model.parameters()), "initial_lr": 1e-3, "fixed_fields": ("initial_lr",)}]
    optimizer = cls(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, step_increment_bugfix=stepfix)
    run = run_of(model, optimizer, [optimizer], tmp_path / "run")
    k = 1.0 if stepfix else (1 - 0.95) ** 0.5 / (1 - 0.9)
    settled = gyro.theory.AdamW(1e-3 * k, 0.1 / k, (0.9, 0.95)).equilibrium(fan_in=12)
    assert predicted(run, "q.weight") == pytest.approx(settled.angular_update)
    assert run.series("q.weight", "predicted_norm") == pytest.approx(settled.norm)
    # The forecast follows the rule's rates, not the group's.
    fresh = gyro.theory.AdamW(1e-3 * k, 0.1 / k, (0.9, 0.95))
    course = gyro.theory.forecast(fresh, steps=1, norm=float(run.series("q.weight", "norm")[0]), fan_in=12)
    assert run.series("q.weight", "forecast_angular_update")[0] == pytest.approx(course.angular_update[0], rel=0.05)


def test_nanochats_buffers_are_stacked_under_the_first_parameter(tmp_path):
    model = Network()
    muon = {"kind": "muon", "lr": 0.02, "momentum": 0.95, "ns_steps": 5, "beta2": 0.9, "weight_decay": 0.1}
    adamw = {"kind": "adamw", "lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    optimizer = of_package(stand_ins.MuonAdamW, "MuonAdamW", "nanochat")(
        [{"params": model.hidden, **muon}, {"params": model.others, **adamw}]
    )
    run = run_of(model, optimizer, [optimizer], tmp_path / "run")
    assert set(optimizer.state[model.q.weight]["momentum_buffer"].shape) == {2, 12}
    expected = muon_angle(
        0.02, 0.1, (12, 12), adjust_lr_fn="none", cautious_decay=True, ns_coefficients="polar_express"
    )
    for layer in ("q.weight", "k.weight"):
        assert predicted(run, layer) == pytest.approx(expected)
        assert run.layer(layer).vectors == 1
    assert predicted(run, "head.weight") == pytest.approx(gyro.theory.AdamW(1e-3, 0.1).equilibrium().angular_update)
    assert list(run.notes) == []


def test_heavyballs_state_is_nested_by_the_views_of_a_parameter(tmp_path):
    model = Network()
    optimizer = of_package(stand_ins.NestedAdamW, "AdamW", "heavyball")(model.parameters(), lr=1e-3, weight_decay=0.1)
    run = run_of(model, optimizer, [optimizer], tmp_path / "run")
    expected = gyro.theory.AdamW(1e-3, 0.1, (0.9, 0.99)).equilibrium().angular_update
    assert predicted(run, "head.weight") == pytest.approx(expected)
    assert list(run.notes) == []


def test_dions_muon_per_head_has_a_vector_per_head_and_the_angle_of_its_matrix(tmp_path):
    model = Network()
    cls = of_package(stand_ins.Dion, "Muon", "dion")
    groups = [{"params": [model.q.weight], "num_heads": 3}, {"params": [model.k.weight]}]
    muon = cls(groups, lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW(model.others, lr=1e-3)
    run = run_of(model, [muon, adamw], [muon, adamw], tmp_path / "run")
    assert (run.layer("q.weight").vectors, run.layer("k.weight").vectors) == (3, 1)
    options = {"nesterov": False, "adjust_lr_fn": "spectral_norm", "ns_coefficients": "polar_express"}
    assert predicted(run, "q.weight") == pytest.approx(muon_angle(0.02, 0.1, (4, 12), **options))
    assert predicted(run, "k.weight") == pytest.approx(muon_angle(0.02, 0.1, (12, 12), **options))
    with pytest.raises(ValueError, match=r"split_sizes=.* is not covered"):
        gyro.rule_of({**muon.param_groups[1], "split_sizes": (8, 4)}, muon)


def test_a_stack_of_experts_is_one_matrix_where_the_library_flattens_it():
    model = Experts()
    for package, vectors in (("timm", 1), ("dion", 4)):
        cls = of_package(stand_ins.Dion, "Muon", package)
        optimizer = cls([model.up])
        if package == "timm":
            del optimizer.param_groups[0]["flatten"]  # an option of dion
        (layer,) = select(model, optimizer)
        assert layer.split.num_vectors(model.up.shape) == vectors
