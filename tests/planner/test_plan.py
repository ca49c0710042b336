"""The plan of a model: right about the run that follows, and without a trace in what it looked at."""

import copy
import random
import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import lr_scheduler

import gyroscope as gyro
from gyroscope import optim
from gyroscope.geometry import Split
from gyroscope.render.plan_document import figure
from gyroscope.theory import AdamW, FixedNorm, Muon, cosine, forecast
from tests.needs import needs_muon

STEPS = 60


def network(width=32, depth=3):
    """Convolutions with BatchNorm, the second with stride 2, and a linear layer."""
    layers = []
    for i in range(depth):
        convolution = nn.Conv2d(width if i else 1, width, 3, padding=1, stride=2 if i == 1 else 1, bias=False)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def small():
    return nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def small_loss(model):
    return nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 4, (32,)))


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "weight_decay": 0.5, **options})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plan, and what the tracker measured in the run that followed."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    model, steps = network(), 600
    optimizer = adamw(model, betas=(0.9, 0.99))
    planned = gyro.plan(model, optimizer, steps=steps)
    with gyro.Tracker(model, optimizer, tmp_path_factory.mktemp("run") / "digits", every=10) as tracker:
        for _ in range(steps):
            batch = torch.randint(len(y), (128,))
            noisy = x[batch] + torch.randn(128, 1, 8, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(noisy), y[batch], label_smoothing=0.3).backward()
            optimizer.step()
    return planned, gyro.store.open_run(tracker.path)


WIDE = ["3.weight", "6.weight"]
"""The convolutions with a fan-in of at least 64."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_norm_and_rotation_are_as_predicted_once_settled(trained, name):
    planned, run = trained
    course = planned.layers[name]
    assert course.settled_at < 350
    settled = run.steps[run.steps >= course.settled_at]
    norm, angle = (run.series(name, *which)[-len(settled) :] for which in (("norm", "rms"), ("angular_update",)))
    assert norm.mean() == pytest.approx(course.norm[settled].mean(), rel=0.15)
    assert angle.mean() == pytest.approx(course.angular_update[settled].mean(), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_the_first_step_turns_as_much_too_far_as_predicted(trained, name):
    planned, run = trained
    course = planned.layers[name]
    assert course.over_rotation > 10
    measured = run.series(name, "angular_update")[0] / run.series(name, "predicted_angular_update")[0]
    assert measured == pytest.approx(course.over_rotation, rel=0.05)


SCHEDULERS = {
    "none": lambda o: None,
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: min(1.0, t / 10)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 20),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [20, 40]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=STEPS),
    "cycles": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=10, cycle_momentum=False),
    "in sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.ExponentialLR(o, 0.95)], [10]
    ),
    "in a chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.ExponentialLR(o, 0.95)]
    ),
    "corrected decay": lambda o: optim.CorrectedDecay(o, lr_scheduler.CosineAnnealingLR(o, STEPS)),
    "rescaling": lambda o: optim.EquilibriumRescale(o, lr_scheduler.CosineAnnealingLR(o, STEPS)),
}


@pytest.mark.parametrize("lr", [1e-2, torch.tensor(1e-2)], ids=["a number", "a tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rates_are_those_that_the_scheduler_then_sets(name, lr):
    model = small()
    optimizer = adamw(model, lr=lr.clone() if isinstance(lr, torch.Tensor) else lr)
    scheduler = SCHEDULERS[name](optimizer)
    planned = gyro.plan(model, optimizer, scheduler, steps=STEPS)
    rates = []
    for _ in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    assert planned.layers["0.weight"].lr == pytest.approx(rates, rel=1e-6, abs=1e-12)


def everything(model, optimizer, scheduler):
    """All that may not change, as a copy."""
    state = scheduler.state_dict() if scheduler is not None else {}
    rng = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    grads = [p.grad for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), groups, state, grads, modes, rng))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dict__") and not callable(a):
        return type(a) is type(b) and same(vars(a), vars(b))
    return a == b or callable(a)


@pytest.mark.parametrize("name", [*SCHEDULERS, "plateau"])
def test_a_plan_leaves_everything_as_it_was(name):
    torch.manual_seed(0)
    model = small()
    model(torch.randn(8, 64)).sum().backward()
    optimizer = adamw(model)
    optimizer.register_step_post_hook(lambda *_: None)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer) if name == "plateau" else SCHEDULERS[name](optimizer)
    before, parameters = everything(model, optimizer, scheduler), list(model.parameters())
    gyro.plan(model, optimizer, scheduler, steps=STEPS, loss=small_loss)
    assert same(before, everything(model, optimizer, scheduler))
    assert all(a is b for a, b in zip(parameters, optimizer.param_groups[0]["params"], strict=True))
    if scheduler is not None:
        assert scheduler.optimizer is optimizer


def test_one_cycles_betas_are_in_the_forecast_and_its_momentum_is_noted():
    model = small()
    optimizer = adamw(model)
    planned = gyro.plan(model, optimizer, SCHEDULERS["one cycle"](optimizer), steps=STEPS)
    course = planned.layers["0.weight"]
    assert isinstance(course.rule, AdamW)
    assert course.rule.betas[0] == pytest.approx(0.85)
    assert planned.notes == ()
    betas = []
    scheduler = SCHEDULERS["one cycle"](optimizer := adamw(model))
    for t in range(STEPS):
        betas.append(optimizer.param_groups[0]["betas"])
        optimizer.step()
        if t + 1 < STEPS:
            scheduler.step()
    norm = course.initial_norm
    rates = (course.lr / course.rule.lr).tolist()
    alone = forecast(course.rule, rates, norm=norm, fan_in=64, betas_schedule=lambda t: betas[t])
    assert course.angular_update == pytest.approx(alone.angular_update)
    kept = forecast(course.rule, rates, norm=norm, fan_in=64)
    assert np.abs(course.angular_update / kept.angular_update - 1).max() > 0.1
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    planned = gyro.plan(model, sgd, SCHEDULERS["one cycle"](sgd), steps=STEPS, loss=small_loss)
    assert any("moves momentum between 0.85 and 0.95" in note for note in planned.notes)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    planned = gyro.plan(model, adam, SCHEDULERS["one cycle"](adam), steps=STEPS, loss=small_loss)
    assert any("moves betas between 0.85 and 0.95" in note for note in planned.notes)


def test_plateaus_keep_the_present_rate_and_say_so():
    model = small()
    optimizer = adamw(model)
    planned = gyro.plan(model, optimizer, lr_scheduler.ReduceLROnPlateau(optimizer), steps=STEPS)
    assert set(planned.layers["0.weight"].lr) == {1e-2}
    assert any("ReduceLROnPlateau" in note for note in planned.notes)


def test_a_function_or_a_named_schedule_multiplies_the_groups_rate():
    model = small()
    by_function = gyro.plan(model, adamw(model), lambda t: 0.9**t, steps=STEPS).layers["0.weight"]
    assert by_function.lr == pytest.approx(1e-2 * 0.9 ** np.arange(STEPS))
    named = gyro.plan(model, adamw(model), cosine(STEPS, warmup=10), steps=STEPS).layers["0.weight"]
    assert named.lr == pytest.approx(1e-2 * cosine(STEPS, warmup=10)(np.arange(STEPS)))


def test_a_layers_forecast_is_that_of_theory_from_its_own_norm_and_fan_in():
    torch.manual_seed(0)
    model = small()
    planned = gyro.plan(model, adamw(model), cosine(STEPS), steps=STEPS).layers
    for name, p in model.named_parameters():
        if p.dim() == 2:
            norm = float(p.detach().norm(dim=1).square().mean().sqrt())
            alone = forecast(AdamW(1e-2, 0.5), cosine(STEPS), norm=norm, fan_in=p.shape[1])
            assert planned[name].norm == pytest.approx(alone.norm)
            assert planned[name].angular_update == pytest.approx(alone.angular_update)
            assert planned[name].settled_at == alone.settled_at


def test_groups_have_rules_and_rates_of_their_own():
    model = small()
    slow, fast = {"params": [model[0].weight], "lr": 1e-3}, {"params": [model[3].weight], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([slow, fast], lr=1e-2, weight_decay=0.1)
    layers = gyro.plan(model, optimizer, steps=STEPS).layers
    assert layers["0.weight"].rule == AdamW(1e-3, 0.1)
    assert layers["3.weight"].rule == AdamW(1e-2, 0.0)
    assert layers["3.weight"].settled_at is None


def test_corrected_decay_is_recognised():
    model = small()
    optimizer = adamw(model)
    planned = gyro.plan(model, optimizer, SCHEDULERS["corrected decay"](optimizer), steps=STEPS)
    assert planned.layers["0.weight"].rule == AdamW(1e-2, 0.5, corrected_decay=True)
    assert np.ptp(planned.layers["0.weight"].equilibrium_norm) < 0.02


def test_sgd_says_what_is_missing_and_measures_it_from_a_loss():
    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3, momentum=0.9)
    blind = gyro.plan(model, optimizer, steps=STEPS)
    assert blind.layers == {}
    assert "SGDM needs unit_grad_norm" in blind.missing["0.weight"]
    assert "Pass loss=" in str(blind)
    seen = gyro.plan(model, optimizer, steps=STEPS, loss=small_loss)
    squares = []
    for _ in range(200):
        model.zero_grad()
        small_loss(model).backward()
        squares.append((model[0].weight.grad.norm(dim=1) * model[0].weight.norm(dim=1)).square().mean().item())
    expected = seen.layers["0.weight"].rule.equilibrium(unit_grad_norm=np.mean(squares) ** 0.5).norm
    assert seen.layers["0.weight"].equilibrium_norm[0] == pytest.approx(expected, rel=0.05)


def test_a_weight_that_no_gradient_reaches_is_named():
    model = small()
    model.unused = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
    planned = gyro.plan(model, optimizer, steps=STEPS, loss=lambda m: m[:4](torch.randn(32, 64)).square().mean())
    assert planned.missing == {"unused.weight": "no gradient reaches it"}


def test_a_weight_that_starts_at_zero_is_named():
    model = small()
    nn.init.zeros_(model[3].weight)
    planned = gyro.plan(model, adamw(model), steps=STEPS)
    assert list(planned.layers) == ["0.weight"]
    assert "start at zero" in planned.missing["3.weight"]


def test_a_probe_finds_the_vectors_and_names_what_is_not_scale_invariant():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    planned = gyro.plan(model, adamw(model), steps=STEPS, loss=small_loss)
    assert planned.layers["0.weight"].initial_norm == pytest.approx(float(model[0].weight.detach().norm()))
    assert any("3.weight is not scale-invariant" in note for note in planned.notes)


def test_only_weights_that_turn_and_embeddings_that_decay_are_planned():
    model = nn.Sequential(nn.Embedding(10, 8), nn.ConvTranspose1d(8, 4, 3), nn.Linear(4, 4), nn.Linear(4, 4))
    model[3].weight.requires_grad = False
    layers = gyro.plan(model, adamw(model), steps=STEPS).layers
    assert list(layers) == ["0.weight", "1.weight", "2.weight"]
    columns = Split("neuron", 1).norm(model[1].weight.detach())
    assert layers["1.weight"].initial_norm == pytest.approx(float(columns.square().mean().sqrt()))


def test_the_groups_granularity_decides():
    model = small()
    optimizer = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.5, granularity="tensor"), lr=1e-2)
    course = gyro.plan(model, optimizer, steps=STEPS).layers["0.weight"]
    assert course.initial_norm == pytest.approx(float(model[0].weight.detach().norm()))


def test_a_rotational_optimizer_keeps_norms_and_turns_by_its_angle():
    torch.manual_seed(0)
    model = small()
    optimizer = optim.RotationalAdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    planned = gyro.plan(model, optimizer, lambda t: 1 / (t + 1), steps=STEPS)
    course = planned.layers["0.weight"]
    assert course.rule == FixedNorm(AdamW(1e-2, 0.5))
    assert (course.settled_at, course.over_rotation) == (0, pytest.approx(1.0))
    assert np.ptp(course.norm) == pytest.approx(0.0)
    before = model[0].weight.detach() - model[0].weight.detach().mean(1, keepdim=True)
    small_loss(model).backward()
    optimizer.step()
    assert Split().angle(before, model[0].weight.detach()).mean() == pytest.approx(course.angular_update[0], rel=1e-3)
    assert "The optimizer sets the rotation, so nothing has to settle" in " ".join(str(planned).split())


@needs_muon
def test_muon_turns_whole_matrices():
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Linear(32, 16, bias=False))
    course = gyro.plan(model, torch.optim.Muon(model.parameters(), lr=1e-2, weight_decay=0.1), steps=STEPS).layers
    assert course["0.weight"].initial_norm == pytest.approx(float(model[0].weight.detach().norm()))
    assert set(course) == {"0.weight", "1.weight"}


def test_an_unknown_optimizer_is_named_not_raised():
    model = small()
    planned = gyro.plan(model, torch.optim.Adagrad(model.parameters()), steps=STEPS)
    assert "Adagrad is not among the known optimizers" in str(planned)
    assert planned.layers == {}


def test_a_plan_says_what_would_mend_it():
    torch.manual_seed(0)
    model = small()
    text = " ".join(str(gyro.plan(model, adamw(model, lr=1e-3, weight_decay=0.02), steps=1000).findings).split())
    assert "too short for equilibrium (run length: 0.02 memories of 50,000 steps)" in text
    text = " ".join(str(gyro.plan(model, adamw(model, lr=3e-2), steps=1000).findings).split())
    assert "Warm up over 20 steps (now 0)." in text
    assert "The first steps rotate 0.weight and 3.weight by" in text
    optim.to_equilibrium_(model, adamw(model))
    text = " ".join(str(gyro.plan(model, adamw(model), cosine(2000, warmup=50), steps=2000).findings).split())
    assert "The first steps rotate" not in text
    assert "falls out of it at the end" in text


def test_a_run_shorter_than_its_memory_gets_no_advice_to_settle():
    """Weight decay raised 27 times, "to settle", took a char-GPT from a loss of 1.90 to 2.07."""
    model = small()
    never = gyro.plan(model, adamw(model, lr=1e-2, weight_decay=0.01), steps=1000)
    assert [prediction.settled_at for prediction in never.predictions] == [None, None]
    assert "weight_decay=" not in "".join(finding.remedy for finding in never.findings)
    assert "well" not in never.findings.kinds
    settling = gyro.plan(model, adamw(model, lr=1e-2, weight_decay=0.3), steps=1000)
    assert None not in [prediction.settled_at for prediction in settling.predictions]


def test_a_layer_without_decay_is_not_taken_for_one_with_little():
    model = small()
    hidden, last = model[0].weight, model[3].weight
    groups = [{"params": [hidden], "weight_decay": 0.02}, {"params": [last], "weight_decay": 0.0}]
    planned = gyro.plan(model, torch.optim.AdamW(groups, lr=1e-3), steps=1000)
    assert planned.findings.summary[-1] == (
        "The run is too short for equilibrium (run length: 0.02 memories of 50,000 steps), so weight decay has almost "
        "no effect, except 3.weight (no decay)."
    )


def test_layers_that_turn_alike_in_the_middle_are_not_said_to_differ_there():
    model = small()
    planned = gyro.plan(model, adamw(model), steps=2000)
    found = next(finding for finding in planned.findings if finding.kind == "layer_imbalance")
    assert found.sentence.startswith("All layers rotate alike in the middle of the run. The fastest layer rotates")
    assert (
        f"rotates {planned.imbalance[0]:.3g} times as fast as the slowest at the first step and 1 times at the last"
        in found.sentence
    )


def test_a_rotational_plan_says_that_nothing_has_to_settle_and_how_long_the_run_is():
    model = small()
    groups = gyro.param_groups(model, weight_decay=0.1)
    planned = gyro.plan(model, optim.RotationalAdamW(groups, lr=1e-3), steps=2000)
    assert planned.findings.summary[-1] == (
        "The optimizer sets the rotation, so nothing has to settle (run length: 0.2 memories of 10,000 steps)."
    )


def test_imbalance_is_that_of_the_fastest_layer_over_the_slowest():
    model = small()
    planned = gyro.plan(model, adamw(model), steps=STEPS)
    a, b = (course.angular_update for course in planned.layers.values())
    assert planned.imbalance == pytest.approx(np.maximum(a / b, b / a))


def test_a_page_draws_the_learning_rate_of_every_optimizer():
    model = nn.ModuleDict({"first": nn.Linear(8, 8, bias=False), "second": nn.Linear(8, 8, bias=False)})
    rates = {"first": 0.018, "second": 3e-3}
    optimizers = [torch.optim.AdamW(model[name].parameters(), lr=lr, weight_decay=0.1) for name, lr in rates.items()]
    drawn = figure(gyro.plan(model, optimizers, steps=20).drawn_layers(8))
    curves = [trace.y[0] for trace in drawn.select_traces(row=3, col=1)]
    assert sorted(curves) == pytest.approx(sorted(rates.values()))


def test_a_plan_becomes_a_page(tmp_path):
    model = network(width=8, depth=9)
    planned = gyro.plan(model, adamw(model), steps=STEPS)
    page = planned.html(tmp_path / "deep" / "plan.html").read_text()
    assert "Plotly.newPlot" in page
    assert all(name in page for name in planned.layers)


@pytest.mark.parametrize(
    ("scheduler", "steps", "said"),
    [
        (None, 0, "steps=0 must be a whole number"),
        (None, 2.5, "steps=2.5 must be a whole number"),
        ("cosine", 10, "scheduler='cosine' must be a torch LR scheduler, or a function"),
        (lambda t: -1.0, 10, "the schedule gives -1.0 at step 0"),
    ],
)
def test_bad_input_is_a_sentence(scheduler, steps, said):
    model = small()
    with pytest.raises(ValueError, match=said):
        gyro.plan(model, adamw(model), scheduler, steps=steps)


def test_a_scheduler_that_ends_early_is_named():
    model = small()
    optimizer = adamw(model)
    with pytest.raises(ValueError, match=r"OneCycleLR fails at step 60 of 100 .*plan fewer steps"):
        gyro.plan(model, optimizer, SCHEDULERS["one cycle"](optimizer), steps=100)


def test_a_hundred_layers_over_ten_thousand_steps_take_a_moment():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(100)))
    optimizer = adamw(model, lr=1e-3)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    start = time.process_time()
    assert len(gyro.plan(model, optimizer, scheduler, steps=10_000).layers) == 100
    assert time.process_time() - start < 4


def pair(model):
    first = torch.optim.AdamW(model[0].parameters(), lr=1e-2, weight_decay=0.5)
    rest = [p for name, p in model.named_parameters() if not name.startswith("0.")]
    return first, torch.optim.AdamW(rest, lr=2e-2, weight_decay=0.25, betas=(0.8, 0.99))


def test_several_optimizers_with_schedulers_of_their_own_are_one_plan():
    model = small()
    first, second = pair(model)
    schedulers = [lr_scheduler.CosineAnnealingLR(first, STEPS), lr_scheduler.ExponentialLR(second, 0.99)]
    planned = gyro.plan(model, [first, second], schedulers, steps=STEPS)
    alone = gyro.plan(model, first, schedulers[0], steps=STEPS).layers
    alone |= gyro.plan(model, second, schedulers[1], steps=STEPS).layers
    assert planned.optimizer == "AdamW"
    assert list(planned.layers) == ["0.weight", "3.weight"]
    for name, course in planned.layers.items():
        assert course.rule == alone[name].rule
        assert course.angular_update == pytest.approx(alone[name].angular_update)
    assert first.param_groups[0]["lr"] == 1e-2


def test_a_scheduler_of_one_optimizer_leaves_the_other_as_it_is():
    model = small()
    first, second = pair(model)
    layers = gyro.plan(model, {"a": first, "b": second}, lr_scheduler.ExponentialLR(second, 0.9), steps=STEPS).layers
    assert set(layers["0.weight"].lr) == {1e-2}
    assert layers["3.weight"].lr == pytest.approx(2e-2 * 0.9 ** np.arange(STEPS))


def test_our_scheduler_over_two_optimizers_is_followed_in_both():
    model = small()
    first, second = pair(model)
    inner = [lr_scheduler.CosineAnnealingLR(each, STEPS) for each in (first, second)]
    corrected = optim.CorrectedDecay([first, second], inner)
    layers = gyro.plan(model, [first, second], corrected, steps=STEPS).layers
    assert layers["0.weight"].rule == AdamW(1e-2, 0.5, corrected_decay=True)
    assert layers["3.weight"].rule == AdamW(2e-2, 0.25, (0.8, 0.99), corrected_decay=True)
    assert first.param_groups[0]["weight_decay"] == 0.5


def test_a_scheduler_of_another_optimizer_is_a_sentence():
    model = small()
    first, second = pair(model)
    stranger = adamw(small())
    with pytest.raises(ValueError, match=r"ExponentialLR schedules an optimizer that is not one of AdamW"):
        gyro.plan(model, [first, second], lr_scheduler.ExponentialLR(stranger, 0.9), steps=STEPS)


class Independent:
    """Cosine lr with a weight decay that does not follow it: a_t = lr_t·λ_t stays."""

    def __init__(self, optimizer, steps):
        self.optimizer = optimizer
        self.base = optimizer.param_groups[0]["lr"]
        self.decay = self.base * optimizer.param_groups[0]["weight_decay"]
        self.steps = steps
        self.done = 0

    def step(self):
        self.done += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.base * (0.05 + 0.95 * np.cos(np.pi / 2 * self.done / self.steps) ** 2)
            group["weight_decay"] = self.decay / group["lr"]


def test_independent_decay_is_in_the_plan_and_in_the_trackers_forecast(tmp_path):
    torch.manual_seed(0)
    steps = 600
    model = nn.Linear(64, 256, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5, betas=(0.9, 0.99))
    planned = gyro.plan(model, optimizer, Independent(optimizer, steps), steps=steps)
    assert planned.notes == ()
    course = planned.layers["weight"]
    assert np.ptp(course.equilibrium_angular_update) < 1e-3 * course.equilibrium_angular_update[0]
    scheduler = Independent(optimizer, steps)
    with gyro.Tracker(model, optimizer, tmp_path, every=10):
        for _ in range(steps):
            noise = torch.randn(256, 64)
            unit = nn.functional.normalize(model.weight.detach())
            across = noise - (noise * unit).sum(1, keepdim=True) * unit
            model.weight.grad = across / model.weight.detach().norm(dim=1, keepdim=True)
            optimizer.step()
            scheduler.step()
    run = gyro.store.open_run(tmp_path)
    late = run.steps >= 50
    for quantity, predicted in (("norm", course.norm), ("angular_update", course.angular_update)):
        measured = run.series("weight", quantity, "rms")[late]
        np.testing.assert_allclose(predicted[50::10], measured, rtol=0.02)
        np.testing.assert_allclose(run.series("weight", f"forecast_{quantity}")[late], measured, rtol=0.02)
    kept = forecast(AdamW(1e-2, 0.5, (0.9, 0.99)), (course.lr / 1e-2).tolist(), norm=course.initial_norm, fan_in=64)
    assert np.abs(kept.norm[50::10] / run.series("weight", "norm", "rms")[late] - 1).max() > 0.3


@needs_muon
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.5)], ids=["alike", "of different size"])
def test_queries_keys_and_values_turn_as_the_fused_matrix_that_muon_orthogonalises(scales):
    """Their gradients may differ in size: a larger update makes a larger norm, and the same angle."""
    n = 24
    generator = torch.Generator().manual_seed(0)
    model = nn.ModuleDict({"c_attn": nn.Linear(n, 3 * n, bias=False)})
    w = model["c_attn"].weight
    optimizer = torch.optim.Muon([w], lr=0.02, weight_decay=0.5)
    planned = gyro.plan(model, optimizer, steps=10).layers["c_attn.weight"]
    expected = planned.equilibrium_angular_update[0]
    as_one, apart = (Muon(0.02, 0.5).equilibrium(shape=shape) for shape in ((3 * n, n), (n, n)))
    assert expected == as_one.angular_update
    assert abs(expected / apart.angular_update - 1) > 0.08, "the tolerance below tells the two apart"
    w.data.normal_(generator=generator).mul_(as_one.norm / w.data.norm())
    angles = []
    for _ in range(1200):
        old = w.detach().clone().view(3, -1)
        noise = torch.randn(3, n * n, generator=generator)
        across = noise - old * (noise * old).sum(1, keepdim=True) / old.square().sum(1, keepdim=True)
        w.grad = (torch.tensor(scales)[:, None] * across / old.norm(dim=1, keepdim=True)).view(3 * n, n)
        optimizer.step()
        angles.append(Split().angle(old, w.detach().view(3, -1)).tolist())
    assert np.mean(angles[400:], axis=0) == pytest.approx(np.full(3, expected), rel=0.03)


def test_norms_that_adafactor_lets_grow_are_said_to_grow_and_not_to_settle():
    model = nn.Linear(64, 32, bias=False)
    planned = gyro.plan(model, torch.optim.Adafactor(model.parameters(), lr=0.05), steps=1000)
    course = planned.layers["weight"]
    factor = course.norm[-1] / course.initial_norm
    assert factor > 1.5
    assert planned.findings.summary[-1] == "The run has no equilibrium because norms grow without end."
    facts = {fact.quantity: fact.value for fact in planned.facts}
    assert facts["settles at"].endswith("rad per step at any norm")
    assert facts["norm"].endswith("at the start, grows without end")


def test_adafactor_is_predicted_by_the_tracker_at_the_step_where_it_is(tmp_path):
    """Its rate is limited by 1/sqrt(t), also in a run that is tracked from its middle on."""
    torch.manual_seed(0)
    model = nn.Linear(64, 96, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.2)

    def train(steps):
        for _ in range(steps):
            noise = torch.randn(96, 64)
            unit = nn.functional.normalize(model.weight.detach())
            across = noise - (noise * unit).sum(1, keepdim=True) * unit
            model.weight.grad = across / model.weight.detach().norm(dim=1, keepdim=True)
            optimizer.step()

    with gyro.Tracker(model, optimizer, tmp_path / "whole", every=10):
        train(201)
    run = gyro.store.open_run(tmp_path / "whole")
    limited = np.arctan(np.minimum(0.2, (run.steps + 1.0) ** -0.5))
    assert run.series("weight", "predicted_angular_update") == pytest.approx(limited, rel=1e-6)
    measured = run.series("weight", "angular_update", "rms")
    assert run.series("weight", "forecast_angular_update")[1:] == pytest.approx(measured[1:], rel=0.05)
    assert run.series("weight", "forecast_norm") == pytest.approx(run.series("weight", "norm", "rms"), rel=0.02)
    with gyro.Tracker(model, optimizer, tmp_path / "later", every=10, start=201):
        train(11)
    later = gyro.store.open_run(tmp_path / "later")
    limited = np.arctan((later.steps + 1.0) ** -0.5)
    assert later.series("weight", "predicted_angular_update") == pytest.approx(limited, rel=1e-6)
    assert later.series("weight", "forecast_angular_update") == pytest.approx(limited, rel=0.05)
