"""k-Adam: its literal twin, Adam and AdamW at k = 1, its strategies and its bounds."""

from functools import partial

import pytest
import torch
from torch import nn

from gyroscope.optim.k_adam import KAdam
from gyroscope.theory.stability import kadam_betas, update_bound
from tests.optim.catalogue import compiles
from tests.reference_sphere import KAdamTwin, check_twin, distance, inverse_exp, run

PAIRS = [(0.5, 0.9), (0.8, 0.99), (0.0, 0.999)]
CASES = {
    "decoupled": ({"weight_decay": 0.1}, {"stages": inverse_exp(2), "wd": 0.1}),
    "coupled": ({"weight_decay": 0.1, "coupled": True, "k": 3}, {"stages": inverse_exp(3), "wd": 0.1, "coupled": True}),
    "explicit": ({"k": 3, "betas": PAIRS}, {"stages": PAIRS}),
    "exp": ({"strategy": "exp"}, {"stages": [(0.9**2, 0.999**2)] * 2}),
    "scaled": ({"strategy": "scaled"}, {"stages": [(0.45, 0.4995)] * 2}),
    "naive": ({"strategy": "naive"}, {"stages": [(0.9, 0.999)] * 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_step_is_the_twins_step(case):
    options, twin = CASES[case]
    check_twin(partial(KAdam, lr=1e-2, **options), partial(KAdamTwin, lr=1e-2, vectors=lambda w: None, **twin))


@compiles
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_compiled_step_is_the_eager_step(dtype, tolerance):
    make = partial(KAdam, lr=1e-2, weight_decay=0.1)
    assert distance(run(make, dtype, compile=True), run(make, dtype)) <= tolerance


@pytest.mark.parametrize(("coupled", "torchs"), [(True, torch.optim.Adam), (False, torch.optim.AdamW)])
@pytest.mark.parametrize("strategy", ["inverse_exp", "exp", "scaled", "naive"])
def test_one_stage_is_adam_or_adamw(coupled, torchs, strategy):
    options = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-30, "weight_decay": 0.1}
    ours = partial(KAdam, k=1, coupled=coupled, strategy=strategy, **options)
    assert distance(run(ours), run(partial(torchs, **options))) <= 1e-12


@pytest.mark.parametrize("strategy", ["inverse_exp", "exp", "scaled", "naive"])
def test_no_entry_moves_further_than_the_theorys_bound(strategy):
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(1000, dtype=torch.float64))
    optimizer = KAdam([w], lr=1.0, k=2, strategy=strategy)
    for n in range(40):
        before = w.detach().clone()
        w.grad = torch.randn_like(w) * torch.exp(3 * torch.randn_like(w))
        optimizer.step()
        bound = update_bound(n, *kadam_betas(strategy, 2, (0.9, 0.999))[-1], exact=True)
        assert (w.detach() - before).abs().max().item() <= bound * (1 + 1e-12)


def test_state_is_float32_for_half_precision_and_comes_back_so():
    w = nn.Parameter(torch.ones(2, 3, dtype=torch.float16))
    optimizer = KAdam([w], lr=0.1)
    w.grad = torch.tensor([[1.0, -1.0, 1e-4], [0.0, 0.0, 6e-8]], dtype=torch.float16)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.tensor([[0.9, 1.1, 0.9], [1.0, 1.0, 0.9]]).half())
    other = KAdam([w], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        assert other.state[w][name].dtype == torch.float32
        assert torch.equal(other.state[w][name], optimizer.state[w][name])


def test_moments_lie_in_memory_as_the_weights_do():
    w = nn.Parameter(torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last))
    optimizer = KAdam([w], k=3)
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert optimizer.state[w]["exp_avg"].shape == (3, 4, 3, 5, 5)
    assert optimizer.state[w]["exp_avg"][1].stride() == w.stride()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0 must be a number of stages"),
        ({"strategy": "log"}, "strategy='log' is unknown: choose one of inverse_exp"),
        ({"betas": PAIRS}, "are 3 pairs, one per stage, and k=2: pass k=3"),
        ({"betas": [(0.9, 0.999), (0.9, 1.0)]}, "beta2=1.0 must be"),
        ({"betas": 0.9}, "must be a pair"),
        ({"eps": -1e-8}, "eps=-1e-08 must be"),
    ],
)
def test_a_bad_value_is_an_error_that_quotes_it(options, message):
    with pytest.raises(ValueError, match=message):
        KAdam([nn.Parameter(torch.ones(2, 2))], **options)


def test_a_scheduler_that_cycles_beta1_is_told_that_a_list_of_pairs_has_none():
    w = nn.Parameter(torch.ones(2, 2))
    for pairs in (PAIRS[:2], PAIRS):
        optimizer = KAdam([w], k=len(pairs), betas=pairs)
        with pytest.raises(ValueError, match="must support momentum or beta1"):
            torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5, cycle_momentum=False)
        w.grad = torch.ones(2, 2)
        optimizer.step()
        scheduler.step()
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
        assert optimizer.param_groups[1]["betas"] == pairs


def test_betas_that_a_scheduler_has_mixed_are_an_error_that_says_what_to_do():
    w = nn.Parameter(torch.ones(2, 2))
    optimizer = KAdam([w])
    optimizer.param_groups[0]["betas"] = (0.95, (0.9, 0.99))
    w.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"mixes a number and a pair.*cycle_momentum=False"):
        optimizer.step()
