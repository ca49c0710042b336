"""Two ways to centre: the update (the default, the authors' later code), or the weights after each step (printed)."""

from functools import partial

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from gyroscope.optim import Rotational, RotationalAdamW, RotationalLion, RotationalSGD
from tests import reference
from tests.optim.catalogue import ADAMW, LION, SGD, compiles, turned
from tests.optim.test_reference import distance, recorded, run

PRINTED = {"centre": "weights"}


def wrapped(params, **options):
    return Rotational(torch.optim.AdamW(params, **ADAMW), **options)


VARIANTS = {
    "RotationalAdamW": (partial(RotationalAdamW, **ADAMW), turned(reference.AdamWDirection(), 2e-3, 0.1, **PRINTED)),
    "RotationalSGD": (partial(RotationalSGD, **SGD), turned(reference.SGDDirection(), 0.1, 1e-3, l2=True, **PRINTED)),
    "RotationalLion": (partial(RotationalLion, **LION), turned(reference.LionDirection(), 2e-4, 1.0, **PRINTED)),
    "Rotational": (wrapped, turned(reference.AdamWDirection(), 2e-3, 0.1, **PRINTED)),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_centred_weights_are_the_printed_algorithms(name, dtype, tolerance):
    make, twin_of = VARIANTS[name]
    weights, grads = recorded()
    twin = twin_of([w.clone() for w in weights])
    for now, stepped in zip(grads, run(make, dtype, centre="weights"), strict=True):
        twin.step(now)
        for p, expected in zip(stepped, twin.weights, strict=True):
            assert distance(p, expected) <= tolerance


@compiles
@pytest.mark.parametrize("name", ["RotationalAdamW", "Rotational"])
def test_a_compiled_step_with_centred_weights_is_the_eager_step(name):
    make, _ = VARIANTS[name]
    compiled = run(make, torch.float64, centre="weights", compile=True)
    for eager, found in zip(run(make, torch.float64, centre="weights"), compiled, strict=True):
        for p, expected in zip(found, eager, strict=True):
            assert distance(p, expected) <= 1e-12


@pytest.mark.parametrize("centre", [True, "weights"])
def test_the_printed_form_loses_the_means_part_of_the_angle(centre):
    """docs/theory.md, "Rotational variants": cos of the angle between the tangent update and the vectors of mean 0."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(6, 50, dtype=torch.float64))
    optimizer = RotationalSGD([p], lr=1e-3, momentum=0.0, weight_decay=1e-3, beta=0.0, centre=centre)
    for _ in range(2):
        before = p.detach().clone()
        p.grad = torch.randn(6, 50, dtype=torch.float64) + 1  # as of positive inputs
        optimizer.step()
    tangent = p.grad - Split().projection(p.grad, before)
    kept = Split().norm(Split().centred(tangent)) / Split().norm(tangent) if centre == "weights" else 1.0
    expected = (2 * 1e-3 * 1e-3) ** 0.5 * kept * torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(Split().angle(before, p.detach()), expected, rtol=1e-4, atol=0)
    assert centre is True or kept.max() < 0.8


@every_variant
def test_norm_and_mean_stay_in_bfloat16_too(name):
    make, _ = VARIANTS[name]
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(16, 64).bfloat16())
    norms = p.detach().float().norm(dim=1)
    optimizer = make([p], centre="weights", stochastic_rounding=True)
    for _ in range(200):
        p.grad = (torch.randn(16, 64) + 1).bfloat16()
        optimizer.step()
    torch.testing.assert_close(p.detach().float().norm(dim=1), norms, rtol=0.01, atol=0)
    assert p.detach().float().mean(1).abs().max() < 2e-3


@every_variant
def test_weights_stay_uncentred_while_lr_is_0(name):
    make, _ = VARIANTS[name]
    p = nn.Parameter(torch.randn(4, 8) + 1)
    before = p.detach().clone()
    optimizer = make([p], centre="weights")
    optimizer.param_groups[0]["lr"] = 0.0
    p.grad = torch.randn(4, 8)
    optimizer.step()
    assert torch.equal(p.detach(), before)


@every_variant
def test_another_word_is_an_error_that_lists_the_ways(name):
    make, _ = VARIANTS[name]
    with pytest.raises(ValueError, match=r"centre='update' is unknown: choose True .*'weights'.*or False"):
        make([nn.Parameter(torch.ones(4, 8))], centre="update")
