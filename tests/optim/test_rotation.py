"""What the rotational optimizers promise: the angle, the norm, in every precision, and reductions to known rules."""

import math
import warnings

import pytest
import torch
from torch import nn

from gyroscope import rule_of
from gyroscope.geometry import Split
from gyroscope.optim import AdamS, Rotational, RotationalAdamW, RotationalLion, RotationalSGD
from gyroscope.theory import AdamL2, AdamW, cosine
from gyroscope.theory.rules import adamw, lion, sgdm

ETA = 0.03
VARIANTS = {
    "AdamW": lambda params, eta=ETA, **o: RotationalAdamW(params, lr=9.5 * eta**2, weight_decay=1.0, **o),
    "SGD": lambda params, eta=ETA, **o: RotationalSGD(params, lr=0.95 * eta**2, weight_decay=1.0, **o),
    "Lion": lambda params, eta=ETA, **o: RotationalLion(params, lr=22.965 * eta**2, weight_decay=1.0, **o),
}
every_variant = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS.keys())


def wrapped(params, eta=ETA, **options):
    return Rotational(torch.optim.AdamW(params, lr=9.5 * eta**2, weight_decay=1.0), **options)


every_rounding = pytest.mark.parametrize("make", [*VARIANTS.values(), wrapped], ids=[*VARIANTS, "Rotational"])


def walk(make, steps, dtype=torch.float32, vectors=32, dim=128, **options):
    """Weights before and after, and the mean angle of the last half of the steps, on white-noise gradients."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(vectors, dim, generator=generator).to(dtype))
    optimizer, angles, start = make([p], **options), [], p.detach().double()
    noise = torch.randn(256, vectors, dim, generator=generator)
    for step in range(steps):
        before = p.detach().clone()
        p.grad = noise[torch.randint(256, (), generator=generator)].to(dtype)
        optimizer.step()
        if step >= steps // 2 and step % 5 == 0:
            angles.append(Split().angle(before, p.detach()).mean().item())
    return start, p.detach().double(), sum(angles) / len(angles)


@pytest.mark.slow
@every_variant
def test_the_mean_angle_is_theorys_and_the_norm_stays_for_10000_steps(make):
    start, end, angle = walk(make, 10_000)
    assert angle == pytest.approx(ETA, rel=0.01)
    torch.testing.assert_close(end.norm(dim=1), start.norm(dim=1), rtol=1e-6, atol=0)
    assert end.mean(1).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_direction_keeps_e_to_the_minus_total_decay(name):
    """docs/theory.md, "A run shorter than its memory": what is left of a direction follows from X = Σ a_t alone."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(64, 128, generator=generator))
    optimizer = VARIANTS[name]([p], eta=0.01, centre=False)
    seen = []
    for _ in range(900):
        seen.append(p.detach().clone())
        p.grad = torch.randn(64, 128, generator=generator)
        optimizer.step()
    # From step 400 on, for the running mean of lengths begins with those of an empty momentum; and from lag 50 to 450,
    # for updates within the momentum's memory agree with the direction that they are compared with.
    near, far = (nn.functional.cosine_similarity(seen[400], seen[400 + lag]).mean().item() for lag in (50, 450))
    timescale = rule_of(optimizer.param_groups[0], optimizer).timescale
    assert far / near == pytest.approx(math.exp(-400 / timescale), rel=0.03)
    assert far / near < 0.75


@pytest.mark.slow
@every_variant
def test_bfloat16_weights_keep_norm_and_angle(make):
    start, end, angle = walk(make, 10_000, torch.bfloat16)
    assert angle == pytest.approx(ETA, rel=0.02)
    torch.testing.assert_close(end.norm(dim=1), start.norm(dim=1), rtol=0.01, atol=0)
    assert end.mean(1).abs().max() < 1e-3


@every_rounding
def test_stochastic_rounding_keeps_an_angle_that_bfloat16_would_lose(make):
    """Rounding itself turns a vector, so what is kept is the way travelled: the angle over many steps one way."""
    ways = {}
    for kind in ("float32", "rounded", "stochastic"):
        dtype = torch.float32 if kind == "float32" else torch.bfloat16
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(32, 256).bfloat16().to(dtype))
        optimizer = make([p], eta=1e-3, stochastic_rounding=kind == "stochastic")
        g = torch.randn(32, 256).to(dtype)
        before = None
        for step in range(60):
            p.grad = g.clone()
            if kind == "rounded" and step == 0:
                with pytest.warns(UserWarning, match="stochastic_rounding=True") as told:
                    optimizer.step()
                assert told[0].filename == __file__
            else:
                optimizer.step()
            before = p.detach().clone() if before is None else before
        along = Split().projection(g.float(), before.float())
        direction = along - g.float()
        moved = Split().dot(p.detach().float() - before.float(), direction) / Split().norm(direction)
        ways[kind] = (moved / Split().norm(before)).mean().item()
    assert ways["float32"] > 0.03
    assert ways["stochastic"] == pytest.approx(ways["float32"], rel=0.05)
    assert ways["rounded"] < 0.7 * ways["float32"]


@pytest.mark.slow
@every_rounding
def test_stochastic_rounding_turns_by_the_mean_angle_of_each_step_of_a_walk(make):
    """The turn along what a float32 twin, put at the same weights before each step, makes of the same gradient."""
    torch.manual_seed(0)
    start = torch.randn(64, 256).bfloat16()
    turned = {}
    for stochastic in (True, False):
        p, twin = nn.Parameter(start.clone()), nn.Parameter(start.float())
        rounded, exact = make([p], eta=2e-3, stochastic_rounding=stochastic), make([twin], eta=2e-3)
        shares = []
        for step in range(150):
            p.grad = torch.randn(64, 256).bfloat16()
            twin.grad = p.grad.float()
            before = p.detach().float()
            twin.data.copy_(before)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rounded.step()
            exact.step()
            meant, made = twin.detach() - before, p.detach().float() - before
            if step >= 10:
                shares.append((meant * made).sum() / (meant * meant).sum())
        turned[stochastic] = torch.stack(shares).mean().item()
    assert turned[True] == pytest.approx(1, abs=0.02)
    assert abs(turned[False] - 1) > 0.1


def test_without_momentum_and_averaging_each_vector_turns_by_exactly_arctan_of_eta():
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(16, 40, dtype=torch.float64))
    optimizer = RotationalSGD([p], lr=0.1, momentum=0.0, weight_decay=1e-3, beta=0.0)
    eta = sgdm.angular_update(0.1, 1e-3, 0.0)
    for step in range(5):
        before = p.detach().clone()
        p.grad = torch.randn_like(p) * 10.0**-step
        optimizer.step()
        if step:
            expected = torch.full((16,), math.atan(eta), dtype=torch.float64)
            torch.testing.assert_close(Split().angle(before, p.detach()), expected, rtol=1e-12, atol=0)


def test_the_angles_come_from_theory():
    w = [nn.Parameter(torch.ones(2, 2))]
    angle = adamw.angular_update(9.5 * ETA**2, 1.0, 0.9), lion.angular_update(22.965 * ETA**2, 1.0, 0.9, 0.99)
    assert angle == pytest.approx((ETA, ETA), rel=1e-3)
    assert VARIANTS["SGD"](w).param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("lr", [1e-6, 1e-4, 1e-2, 1e-1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    ("ours", "inner"),
    [
        (RotationalAdamW, lambda p, **o: torch.optim.AdamW(p, **o)),
        (RotationalAdamW, lambda p, **o: torch.optim.AdamW(p, **o, fused=True)),
        (RotationalSGD, lambda p, **o: torch.optim.SGD(p, **o, momentum=0.9)),
    ],
    ids=["AdamW", "fused AdamW", "SGD"],
)
def test_the_wrapper_makes_the_updates_of_the_class(lr, dtype, tolerance, ours, inner):
    torch.manual_seed(0)
    weights = [
        0.05 * torch.randn(20, 30, dtype=dtype),
        torch.randn(8, 4, 3, 3, dtype=dtype),
        torch.randn(9, dtype=dtype),
    ]
    a, b = ([nn.Parameter(w.clone()) for w in weights] for _ in range(2))
    optimizers = ours(a, lr=lr, weight_decay=0.1), Rotational(inner(b, lr=lr, weight_decay=0.1))
    for step in range(6):
        before = [p.detach().clone() for p in a]
        for p, q in zip(a, b, strict=True):
            q.data.copy_(p.data)
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
        for p, q, w in zip(a, b, before, strict=True):
            if step:
                assert (p - q).norm() <= tolerance * (p - w).norm()


@every_variant
def test_the_scale_of_a_scale_invariant_weight_does_not_matter(make):
    def run(scale):
        torch.manual_seed(0)
        p = nn.Parameter(scale * torch.randn(8, 20, dtype=torch.float64))
        options = {"eps": 1e-30} if make is VARIANTS["AdamW"] else {}
        optimizer, x = make([p], **options), torch.randn(64, 20, dtype=torch.float64)
        for _ in range(30):
            optimizer.zero_grad()
            unit = p / p.norm(dim=1, keepdim=True)
            ((x @ unit.T).tanh().sum(1) - x[:, 0]).square().mean().backward()
            optimizer.step()
        return p.detach() / p.detach().norm(dim=1, keepdim=True)

    torch.testing.assert_close(run(1.0), run(10.0), rtol=1e-9, atol=1e-9)


def test_an_adamw_checkpoint_loads_and_goes_on_at_the_right_angle():
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(16, 64))
    plain = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.3)
    for _ in range(50):
        p.grad = torch.randn_like(p)
        plain.step()
    ours = RotationalAdamW([{"params": [p], "axis": 0}], lr=5.0e-2)
    ours.load_state_dict(plain.state_dict())
    group, before = ours.param_groups[0], Split().centred(p.detach())
    assert (group["lr"], group["weight_decay"], group["beta"], group["axis"]) == (1e-3, 0.3, 0.99, 0)
    assert "fused" not in group
    p.grad = torch.randn_like(p)
    ours.step()
    eta = adamw.angular_update(1e-3, 0.3, 0.9)
    torch.testing.assert_close(Split().angle(before, p.detach()), torch.full((16,), math.atan(eta)), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="amsgrad=True"):
        ours.load_state_dict(torch.optim.AdamW([p], weight_decay=0.3, amsgrad=True).state_dict())


FACTORS = torch.tensor([0.25, 1.0, 4.0, 0.0]).repeat(5)
FACTORED = {
    "AdamW": lambda p: RotationalAdamW(p, lr=0.1, weight_decay=1e-3, beta=0.0),
    "SGD": lambda p: RotationalSGD(p, lr=0.1, weight_decay=1e-3, beta=0.0),
    "Lion": lambda p: RotationalLion(p, lr=1e-3, weight_decay=0.1, beta=0.0),
    "Rotational": lambda p: Rotational(torch.optim.AdamW(p, lr=0.1, weight_decay=1e-3), beta=0.0),
    "special variant": lambda p: Rotational(
        torch.optim.Adam(p, lr=0.1, weight_decay=1e-3), angular_update=AdamW(0.1, 1e-3), beta=0.0
    ),
}


@pytest.mark.parametrize("factors", [3.0, FACTORS, FACTORS.double()], ids=["number", "per vector", "in float64"])
@pytest.mark.parametrize("name", FACTORED)
def test_angle_factors_multiply_the_angle_of_each_vector(name, factors):
    p = parameter(vectors=20)
    optimizer = FACTORED[name]([p])
    optimizer.angle_factors = {p: factors}
    angles = one_turn(optimizer, p).tan()
    eta = rule_of(optimizer.param_groups[0], optimizer).equilibrium(leading_order=True).angular_update
    torch.testing.assert_close(angles, eta * torch.ones(20).double() * factors, rtol=1e-6, atol=1e-12)


def test_angle_factors_of_one_parameter_leave_others_alone():
    ours, plain = ([parameter(vectors=20), parameter(vectors=20)] for _ in range(2))
    optimizers = [RotationalAdamW(params, lr=0.1, weight_decay=1e-3) for params in (ours, plain)]
    optimizers[0].angle_factors = {ours[0]: 2.0}
    for params, optimizer in zip((ours, plain), optimizers, strict=True):
        for seed, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p.dtype)
        optimizer.step()
    assert torch.equal(ours[1], plain[1])
    assert not torch.equal(ours[0], plain[0])


def test_angle_factors_that_do_not_fit_are_errors():
    p, bias = parameter(vectors=20), nn.Parameter(torch.ones(20))
    optimizer = RotationalAdamW([p, bias])
    for factors, message in (
        ({p: torch.ones(3)}, r"3 values for a parameter of shape \(20, .*20 vectors"),
        ({p: -1.0}, "are -1.0: each must be 0 or above"),
        ({p: torch.full((20,), float("nan"))}, "each must be 0 or above"),
        ({bias: 2.0}, r"shape \(20,\) that does not rotate here"),
        ({nn.Parameter(torch.ones(2, 2)): 2.0}, "does not rotate here"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer.angle_factors = factors
    with pytest.raises(ValueError, match="AdamS sets no angle"):
        AdamS([p]).angle_factors = {p: 2.0}


def one_turn(optimizer, p, steps=2):
    for _ in range(steps):
        before = p.detach().clone()
        p.grad = torch.randn_like(p)
        optimizer.step()
    return Split().angle(before, p.detach())


def parameter(vectors=6):
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(vectors, 40, dtype=torch.float64))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (0.02, 0.02),
        (lambda step: 0.01 * (step + 1), 0.02),
        (AdamW(lr=1.0, weight_decay=0.3), adamw.angular_update(1e-2, 0.3, 0.9)),
    ],
)
def test_the_wrappers_angle_may_be_a_number_a_schedule_or_another_rule(asked, expected):
    p = parameter()
    inner = torch.optim.Adam([p], lr=1e-2, weight_decay=0.1)
    angles = one_turn(Rotational(inner, angular_update=asked, beta=0.0), p)
    torch.testing.assert_close(angles, torch.full((6,), math.atan(expected), dtype=torch.float64))


def test_a_groups_angle_schedule_multiplies_its_angle():
    p = parameter()
    inner = torch.optim.SGD([{"params": [p], "angle_schedule": cosine(4)}], lr=0.1)
    angles = one_turn(Rotational(inner, angular_update=0.02, beta=0.0), p)
    torch.testing.assert_close(angles, torch.full((6,), math.atan(0.02 * cosine(4)(1)), dtype=torch.float64))


def test_tangent_hyperball_turns_by_arctan_of_lr_without_centring():
    p = parameter()
    norms, means = p.detach().norm(dim=1), p.detach().mean(1)
    optimizer = Rotational(torch.optim.Adam([p], lr=0.03), mode="hyperball", tangent=True)
    angles = one_turn(optimizer, p, steps=3)
    torch.testing.assert_close(angles, torch.full((6,), math.atan(0.03), dtype=torch.float64))
    torch.testing.assert_close(p.detach().norm(dim=1), norms)
    assert (p.detach().mean(1) - means).abs().max() < 0.05
    assert means.abs().max() > 0.1


def test_a_rule_that_needs_the_gradient_asks_for_an_angle():
    p = parameter()
    with pytest.raises(ValueError, match="angular_update="):
        Rotational(torch.optim.Adam([p], lr=1e-2, weight_decay=0.1))
    assert AdamL2(1e-2, 0.1).needs


class NotLinear(torch.optim.Optimizer):
    """A third-party optimizer: signs of the gradient, at most 1e-4 a step."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3, "weight_decay": 0.0})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.sign(), alpha=-min(group["lr"], 1e-4))


def test_any_optimizer_turns_by_the_angle_asked_for():
    p, b = parameter(), nn.Parameter(torch.zeros(3))
    optimizer = Rotational(NotLinear([p, b]), angular_update=0.01, beta=0.0)
    b.grad = torch.ones(3)
    torch.testing.assert_close(one_turn(optimizer, p), torch.full((6,), math.atan(0.01), dtype=torch.float64))
    torch.testing.assert_close(b.detach(), torch.full((3,), -2e-4))


def test_the_wrapper_checks_its_own_options():
    p = parameter()
    for options, words in [
        ({"mode": "cube"}, "mode='cube' is unknown"),
        ({"beta": 1.0}, "beta=1.0"),
        ({"angular_update": -0.1}, "angular_update=-0.1"),
        ({"granularity": "row"}, "granularity='row'"),
    ]:
        with pytest.raises(ValueError, match=words):
            Rotational(torch.optim.AdamW([p]), **options)


def test_weights_are_where_they_were_when_the_inner_step_fails():
    class Failing(torch.optim.AdamW):
        def step(self, closure=None):
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)  # half a step, then out of memory
            raise MemoryError("no room")

    w = torch.nn.Parameter(torch.randn(4, 8))
    before = w.detach().clone()
    optimizer = Rotational(Failing([w], lr=1e-3, weight_decay=0.1), angular_update=0.01)
    w.grad = torch.randn_like(w)
    with pytest.raises(MemoryError, match="no room"):
        optimizer.step()
    assert torch.equal(w.detach(), before)
    assert optimizer.param_groups is optimizer.inner.param_groups


@every_variant
def test_an_update_without_a_tangent_part_turns_nothing(make):
    """Adam's and Lion's first update is a sign: the same for all entries of a row under a positive input and ReLU."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(8, 32) / 6)
    optimizer = make([p])
    norms = Split().norm(p.detach())
    for step in range(4):
        p.grad = torch.rand(8, 32) + 0.1 if step else torch.ones(8, 32)
        optimizer.step()
        torch.testing.assert_close(Split().norm(p.detach()), norms, rtol=1e-5, atol=0)
