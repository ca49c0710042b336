"""Every fixture of plans, runs and checkpoints, and the findings on each: `python -m tests.advice.record` stores them.

`recorded_findings.json` holds the judgements from before findings were one file each. The structure of `advice` may
change. Which finding is made, for which layers and how severe it is may not.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import gyroscope as gyro
from gyroscope import optim
from gyroscope.advice import diagnose
from gyroscope.planner import plan_settings, read_settings
from gyroscope.store import open_run
from gyroscope.theory import SGDM, AdamL2, AdamW, Lion, cosine, forecast
from tests.advice.memory import Memory, record
from tests.advice.test_incidents import PLACE, SCHEDULES, quiet, skipping
from tests.checkpoint.test_autopsy import DECAY, LR, settled
from tests.checkpoint.training import network, train
from tests.planner.test_one_plan import STARTS, model_plan, norms
from tests.planner.test_plan import adamw, small, small_loss
from tests.planner.test_settings import NAMES, arbitrary
from tests.render import make
from tests.store import make as store_make

RECORD = Path(__file__).with_name("recorded_findings.json")
SAMPLES = np.arange(100)
Findings = Iterable[Any]
Scenario = Callable[[Path], Findings]


def plain(findings: Findings) -> list[dict[str, Any]]:
    """Return findings as they are stored."""
    return [
        {
            "kind": each.kind,
            "severity": each.severity,
            "layers": list(each.layers),
            "text": each.sentence,
            "remedy": each.remedy,
        }
        for each in findings
    ]


def run_in_memory(changes: dict[str, dict[str, Any]] | None = None, **options: Any) -> Scenario:
    """Return the scenario of a run made of arrays; `changes` replaces series of single layers."""

    def scenario(folder: Path) -> Findings:
        made = record(**options)
        for layer, series in (changes or {}).items():
            for name, change in series.items():
                made.data[layer][name] = change(made.data[layer][name]) if callable(change) else change
        return diagnose(made)

    return scenario


def transient(rule: Any, start: float) -> Scenario:
    """Return a run that has not reached the equilibrium of its rule."""

    def scenario(folder: Path) -> Findings:
        equilibrium = rule.equilibrium(fan_in=64, unit_grad_norm=1.0)
        steps = round(1.1 * equilibrium.timescale)
        course = forecast(rule, steps=20 * steps, norm=start * equilibrium.norm, fan_in=64, unit_grad_norm=1.0)
        norm = course.norm[:steps:10] / equilibrium.norm
        return diagnose(record(rule=rule, steps=steps, norm=norm, unit_grad_norm=np.ones(len(norm))))

    return scenario


def falling_out(folder: Path) -> Findings:
    """A rate that goes to zero, which the norm cannot follow."""
    rate = (1 + np.cos(np.pi * SAMPLES / 100)) / 2
    lagging = np.maximum(1.0, np.where(SAMPLES > 60, rate[60] ** 0.5 / rate**0.5, 1.0))
    return diagnose(record(lr=lambda t: 1e-2 * rate, norm=lagging, speed=1 / lagging))


def short_with_forecast(folder: Path) -> Findings:
    made = record(rule=AdamW(1e-3, 0.1), norm=0.57, speed=1.74)
    for series in made.data.values():
        series["forecast_angular_update"] = 1.7 * series["predicted_angular_update"]
        series["forecast_norm"] = series["norm"] * 1.02
    return diagnose(made)


def raised_loss(folder: Path) -> Findings:
    made = record()
    values = np.concatenate([np.linspace(3, 1, 200), np.linspace(1, 4, 100)])
    made.scalars = ["loss"]
    made.scalar = lambda name: (np.arange(len(values)), values)
    return diagnose(made)


def configured(change: Callable[[Any], object], **options: Any) -> Scenario:
    """Return a run in memory whose record is changed as a whole."""

    def scenario(folder: Path) -> Findings:
        made = record(**options)
        change(made)
        return diagnose(made)

    return scenario


def token_embedding(made: Memory) -> None:
    made.data["b"]["angular_update"] /= 5
    known = made.layer
    made.layer = lambda name: SimpleNamespace(**vars(known(name)), granularity="token" if name == "b" else "neuron")


def rotational(made: Memory) -> None:
    made.config["groups"][0]["optimizer"] = "RotationalAdamW"


def kept_vectors(made: Any) -> None:
    made.data["a"]["angular_update"][:, :8] *= 2.2
    made.raw = lambda layer, quantity: made.data[layer][quantity]


def set_status(made: Memory) -> None:
    made.status = "running"


NO_DECAY = {"weight_decay": np.zeros(100), "predicted_timescale": np.full(100, np.inf)}
UNPREDICTED = {name: np.full(100, np.nan) for name in ("predicted_angular_update", "predicted_norm")}
UNSTABLE = AdamW(1e-2, 0.5, (0.9, 0.7))
GROWING = np.exp(SAMPLES / 20)
RUNS: dict[str, Scenario] = {
    "in equilibrium": run_in_memory(),
    "one layer": run_in_memory(names=["a"]),
    "fifteen layers, short": run_in_memory(names=[f"blocks.{i}.weight" for i in range(15)], rule=AdamW(1e-3, 0.1)),
    "no sample": lambda folder: diagnose(Memory(np.array([]))),
    "no layer": lambda folder: diagnose(Memory(np.arange(100))),
    "few steps": run_in_memory(steps=20, every=1),
    "few samples": run_in_memory(steps=10_000, every=2000),
    "transient of AdamW": transient(AdamW(1e-2, 0.1), 6.0),
    "transient of SGD": transient(SGDM(0.1, 1e-3), 8.0),
    "transient of Lion": transient(Lion(1e-3, 1.0), 6.0),
    "steady far from equilibrium": run_in_memory(norm=1.4),
    "off the prediction": run_in_memory(norm=1.4, speed=1 / 1.4),
    "shorter than its memory": run_in_memory(rule=AdamW(1e-3, 0.1), norm=0.4),
    "running and short": configured(set_status, rule=AdamW(1e-3, 0.1), norm=0.4),
    "short, with a forecast": short_with_forecast,
    "one layer without decay": run_in_memory({"b": NO_DECAY}, rule=AdamW(1e-3, 0.1)),
    "scale-sensitive layer": run_in_memory(
        {"c": {"angular_update": lambda x: x / 2, "lambda_u": np.full(100, -0.3)}}, lambda_u=np.zeros(100)
    ),
    "all scale-sensitive": run_in_memory(speed=0.6, norm=1.5, lambda_u=np.full(100, -0.3) + 0.01 * (SAMPLES % 3)),
    "noise along the weights": run_in_memory(lambda_u=np.random.default_rng(0).standard_normal((100, 32))),
    "falls out": falling_out,
    "falls out at a rate that stays": run_in_memory(
        norm=1 + 0.8 * (SAMPLES >= 60), speed=1 / (1 + 0.8 * (SAMPLES >= 60))
    ),
    "fast start": run_in_memory(speed=np.where(SAMPLES < 1, 4.36, 1.0)),
    "fast start at a small norm": run_in_memory(
        speed=np.where(SAMPLES < 5, 8.0, 1.0), norm=np.where(SAMPLES < 5, 0.2, 1.0)
    ),
    "very fast": run_in_memory(rule=AdamW(0.5, 0.5)),
    "slow layer": run_in_memory({"b": {"angular_update": lambda x: x / 3}}),
    "fast layer of Adam with L2": run_in_memory(
        {"b": {"angular_update": lambda x: x * 4, "predicted_angular_update": lambda x: x * 4}}, rule=AdamL2(1e-2, 1e-2)
    ),
    "fast neurons": run_in_memory({"a": {"angular_update": lambda x: x * np.where(np.arange(32) < 8, 6.0, 1.0)}}),
    "fast neurons, every vector kept": configured(kept_vectors),
    "dead vectors": run_in_memory({"a": {"dead_vectors": np.full(100, 4.0)}, "b": {"dead_vectors": np.full(100, 1.0)}}),
    "one dead vector": run_in_memory({"b": {"dead_vectors": np.full(100, 1.0)}}),
    "dead now and then": run_in_memory(dead_vectors=np.where(SAMPLES % 2, 4.0, 0.0)),
    "frozen entries": run_in_memory({"a": {"frozen_entries": np.full(100, 1030.0)}}),
    "some frozen entries": run_in_memory(frozen_entries=np.full(100, 200.0)),
    "few frozen entries": run_in_memory(frozen_entries=np.full(100, 20.0)),
    "unstable betas": run_in_memory(rule=UNSTABLE, max_update=np.ones(100)),
    "unstable betas that grow": run_in_memory(rule=UNSTABLE, max_update=GROWING),
    "stable betas that grow": run_in_memory(max_update=GROWING),
    "never measured and not predicted": run_in_memory(
        {"a": {"angular_update": np.full(100, np.nan)}, "b": UNPREDICTED}
    ),
    "rate zero": run_in_memory(lr=lambda t: 0.0 * t),
    "vectors not finite": run_in_memory(
        {"b": {"non_finite": np.where(SAMPLES < 40, 0.0, 1 / 32)}}, non_finite=np.zeros(100)
    ),
    "diverged": run_in_memory(unit_grad_norm=np.where(SAMPLES < 70, 1.0, np.nan)),
    "diverged and recovered": run_in_memory(
        {"b": {"unit_grad_norm": np.where(SAMPLES == 70, np.nan, 1.0)}}, unit_grad_norm=np.ones(100)
    ),
    "diverged after a fast start": run_in_memory(
        speed=np.where(SAMPLES < 1, 4.36, 1.0), unit_grad_norm=np.where(SAMPLES < 70, 1.0, np.nan), rule=UNSTABLE
    ),
    "loss that rose": raised_loss,
    "embedding": configured(token_embedding),
    "rotational optimizer": configured(rotational, unit_grad_norm=np.ones(100)),
    "rotational optimizer, unequal": configured(
        lambda made: (rotational(made), made.data["b"].update(angular_update=made.data["b"]["angular_update"] / 3))
    ),
    "unknown rule": configured(lambda made: made.config.clear(), rule=AdamW(1e-2, 0.1)),
}


def incident(change: Callable[[Any], object], **options: Any) -> Scenario:
    """Return a quiet run in which something happens."""

    def scenario(folder: Path) -> Findings:
        made = quiet(**options)
        change(made)
        return diagnose(made)

    return scenario


def in_all_layers(name: str, factor: float, place: slice | int) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for series in made.data.values():
            series[name][place] *= factor

    return change


def in_layer_b(name: str, factor: float, place: slice | int) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        made.data["b"][name][place] *= factor

    return change


def all_of(*changes: Callable[[Any], object]) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for each in changes:
            each(made)

    return change


def in_loss(factor: float, place: slice | int) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        made.loss[place] *= factor

    return change


def resumed(made: Any) -> None:
    made.resumed_at = (500,)


AFTER = slice(PLACE, None)
INCIDENTS: dict[str, Scenario] = {
    "nothing": incident(lambda made: None),
    **{f"schedule: {name}": incident(lambda made: None, lr=schedule) for name, schedule in SCHEDULES.items()},
    "rate raised between samples": incident(in_all_layers("highest_lr", 10, PLACE + 1)),
    "rate raised for good": incident(all_of(in_all_layers("lr", 4, AFTER), in_all_layers("highest_lr", 4, AFTER))),
    "weight decay": incident(in_all_layers("weight_decay", 100, AFTER)),
    "beta1": incident(in_all_layers("beta1", 0.95 / 0.9, AFTER)),
    "beta2": incident(in_all_layers("beta2", 0.99 / 0.999, AFTER)),
    "layer without gradient": incident(in_layer_b("unit_grad_norm", 0, AFTER)),
    "norm written": incident(in_layer_b("norm", 2, AFTER)),
    "direction written": incident(in_layer_b("accumulated_angle", 50, PLACE)),
    "norm moved by updates": incident(all_of(in_layer_b("norm", 2, AFTER), in_layer_b("update_norm", 20, PLACE))),
    "one batch": incident(in_loss(100, 1003)),
    "many batches": incident(in_loss(100, slice(1000, 1050))),
    "gradients without a loss": incident(in_all_layers("unit_grad_norm", 20, PLACE), loss=False),
    "denominators": incident(in_all_layers("effective_lr", 1 / 1.3, slice(PLACE + 1, None)), loss=False),
    "gradient of a layer": incident(in_layer_b("unit_grad_norm", 100, PLACE)),
    "gradient of a layer and what Adam keeps": incident(
        all_of(
            in_layer_b("unit_grad_norm", 100, PLACE),
            in_layer_b("tangential_update", 10, slice(PLACE, PLACE + 2)),
            in_layer_b("effective_lr", 1 / 3.3, slice(PLACE + 1, None)),
            in_loss(100, slice(1001, 1020)),
        )
    ),
    "updates of a layer": incident(in_layer_b("tangential_update", 20, PLACE + 1), loss=False),
    "weights moved by a gradient": incident(
        all_of(in_layer_b("tangential_update", 20, PLACE), in_layer_b("norm", 2, AFTER))
    ),
    "gradient of a layer for good": incident(in_layer_b("unit_grad_norm", 100, AFTER), loss=False),
    "rate and what follows": incident(
        all_of(
            in_all_layers("highest_lr", 10, PLACE),
            in_all_layers("unit_grad_norm", 1000, PLACE + 1),
            in_loss(1000, slice(1001, 1020)),
        )
    ),
    "steps skipped": lambda folder: diagnose(skipping({PLACE: 20})),
    "steps skipped too often": lambda folder: diagnose(skipping(dict.fromkeys(range(PLACE, PLACE + 25, 2), 1))),
    "a scaler's search": lambda folder: diagnose(skipping({0: 16, 60: 5})),
    "resumed": incident(resumed),
    "not finite": incident(in_all_layers("unit_grad_norm", np.nan, AFTER)),
}


def stored(write: Callable[[Path], Path]) -> Scenario:
    """Return a run in a file."""

    def scenario(folder: Path) -> Findings:
        with open_run(write(folder)) as run:
            return run.diagnose()

    return scenario


def write_story(story: Callable[[], make.Story], folder: Path) -> Path:
    return make.run_at(folder / "run", story())


SMALL_STORIES: dict[str, Any] = {
    "healthy": make.healthy,
    "imbalanced": make.imbalanced,
    "fell out": make.fell_out,
    "far start": lambda: make.healthy(start=3.0),
    "small start": lambda: make.healthy(start=0.1),
    "radial": lambda: make.healthy(radial=0.3),
    "uneven": lambda: make.healthy(uneven=0.9),
    "short memory": lambda: make.healthy(rule=AdamW(1e-3, 0.1)),
    "unstable": lambda: make.healthy(rule=AdamW(1e-2, 0.5, (0.9, 0.7))),
    "small": lambda: make.healthy(**make.SMALL),
}
STORED: dict[str, Scenario] = {
    **{name: stored(partial(write_story, story)) for name, story in SMALL_STORIES.items()},
    "logged": stored(lambda folder: make.log_at(folder / "run")),
    "of the store": stored(lambda folder: store_make.run_at(folder / "run", steps=60, layers=2)),
    "short": stored(lambda folder: store_make.run_at(folder / "run")),
}


def of_settings(settings: dict[str, Any]) -> Scenario:
    """Return the findings and facts of a plan from settings; none where it is refused."""

    def scenario(folder: Path) -> Findings:
        try:
            plan = plan_settings(read_settings(settings))
        except ValueError:
            return []
        return [*plan.findings, *plan.facts]

    return scenario


def of_rule(rule: str, start: float) -> Scenario:
    """Return the findings and facts of a model's plan."""

    def scenario(folder: Path) -> Findings:
        plan = model_plan(rule, norms(rule, start)[1])
        return [*plan.findings, *plan.facts]

    return scenario


def of_model(optimizer: Callable[..., Any], schedule: Any = None, steps: int = 2000, loss: Any = None) -> Scenario:
    def scenario(folder: Path) -> Findings:
        torch.manual_seed(0)
        model = small()
        plan = gyro.plan(model, optimizer(model), schedule, steps=steps, loss=loss)
        return [*plan.findings, *plan.facts]

    return scenario


def no_decay_in_the_last(model: Any) -> torch.optim.Optimizer:
    groups = [{"params": [model[0].weight], "weight_decay": 0.02}, {"params": [model[3].weight], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3)


def from_equilibrium(model: Any) -> torch.optim.Optimizer:
    optim.to_equilibrium_(model, adamw(model))
    return adamw(model)


def rotational_adamw(model: Any) -> torch.optim.Optimizer:
    return optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-3)


ADAMW: dict[str, Any] = {"optimizer": "adamw", "fan_in": 256}
EVERY_RULE = NAMES
PLANS: dict[str, Scenario] = {
    "typical": of_settings(ADAMW),
    "very fast": of_settings(ADAMW | {"lr": 0.5, "weight_decay": 0.5, "init_norm": 3.0}),
    "no decay": of_settings(ADAMW | {"weight_decay": 0.0}),
    "fast start at a small norm": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.5, "init_norm": 0.1}),
    "fast start": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.5, "init_norm": 1.6}),
    "unstable betas": of_settings(ADAMW | {"betas": (0.9, 0.5)}),
    "far start": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 1001}),
    "short": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.1, "init_norm": 30.0, "steps": 900}),
    "falls out": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.5, "schedule": "cosine", "steps": 2000}),
    "settles": of_settings(ADAMW | {"lr": 1e-2, "weight_decay": 0.5, "steps": 2000}),
    "missing input": of_settings({"optimizer": "adam_l2", "fan_in": 64}),
    "comparison": of_settings(ADAMW | {"compare": EVERY_RULE, "batch_size": 32, "dataset_size": 1000}),
    "layers far apart with L2": of_settings(
        {
            "optimizer": "adam_l2",
            "fan_in": 256,
            "lr": 1e-2,
            "weight_decay": 1e-3,
            "steps": 2000,
            "layer": [{"name": "slow", "unit_grad_norm": 30.0}, {"name": "fast", "unit_grad_norm": 0.1}],
        }
    ),
    "layers far apart": of_settings(
        {
            "fan_in": 256,
            "steps": 200,
            "layer": [{"name": "slow", "init_norm": 30.0}, {"name": "fast", "init_norm": 1.0}],
        }
    ),
    **{f"settings {seed}": of_settings(arbitrary(seed)) for seed in range(80)},
    **{f"{rule} from {start}": of_rule(rule, start) for rule in NAMES for start in STARTS},
    "model": of_model(adamw),
    "model, cosine": of_model(adamw, cosine(2000, warmup=50)),
    "model, little decay": of_model(lambda model: adamw(model, lr=1e-3, weight_decay=0.02), steps=1000),
    "model, Adam with L2": of_model(
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1), loss=small_loss
    ),
    "model, unstable": of_model(lambda model: adamw(model, betas=(0.9, 0.5))),
    "model, SGD without a loss": of_model(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)),
    "model, Adagrad": of_model(lambda model: torch.optim.Adagrad(model.parameters())),
    "model, one layer without decay": of_model(no_decay_in_the_last, steps=1000),
    "model from equilibrium": of_model(from_equilibrium, cosine(2000, warmup=50)),
    "model, rotational": of_model(rotational_adamw),
}


@cache
def equilibrium(steps: int = 1500, kappa2: float = 0.0, rate: float = LR) -> dict[str, Any]:
    return settled(steps, kappa2=kappa2, rate=rate)


def of_checkpoint(change: Callable[[dict[str, Any]], object] = lambda state: None, **options: Any) -> Scenario:
    """Return the autopsy of two matrices in equilibrium, changed."""

    def scenario(folder: Path) -> Findings:
        state = deepcopy(equilibrium())
        change(state)
        return gyro.autopsy(state, **options).findings

    return scenario


def aligned(state: dict[str, Any]) -> None:
    state["optimizer"]["state"][1]["exp_avg"] *= 3


def fast_neurons(state: dict[str, Any]) -> None:
    state["model"]["0.weight"][:16] *= 8


def dead_neurons(state: dict[str, Any]) -> None:
    for name in ("exp_avg", "exp_avg_sq"):
        state["optimizer"]["state"][1][name][:12] = 0
        state["optimizer"]["state"][0][name][:1] = 0


def one_nan(state: dict[str, Any]) -> None:
    state["model"]["0.weight"][3, 3] = float("nan")


def large(state: dict[str, Any]) -> None:
    state["model"]["0.weight"] *= 2


def in_group(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["optimizer"]["param_groups"][0].update(settings)


def radial_momentum(state: dict[str, Any]) -> None:
    momentum = state["optimizer"]["state"][0]["exp_avg"]
    weight = state["model"]["0.weight"]
    momentum += 0.5 * momentum.norm() / weight.norm() * weight


def of_training(optimizer: Callable[..., Any], groups: Any = None) -> Scenario:
    """Return the autopsy of a short training run."""

    def scenario(folder: Path) -> Findings:
        trained = train(folder / "run", optimizer, groups=groups)
        state = {"model": trained.model.state_dict(), "optimizer": trained.optimizer.state_dict()}
        return gyro.autopsy(state, lr=trained.lr).findings

    return scenario


def held_norms(folder: Path) -> Findings:
    """The autopsy of a matrix of noise whose norms the optimizer keeps."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 128, generator=generator))
    optimizer = optim.RotationalAdamW([weight], lr=2e-2, weight_decay=0.5)
    for _ in range(200):
        weight.grad = torch.randn(64, 128, generator=generator)
        optimizer.step()
    return gyro.autopsy({"model": {"w": weight.detach()}, "optimizer": optimizer.state_dict()}).findings


def of_tracked_training(folder: Path) -> Findings:
    train(folder / "run", lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.5), every=1)
    with open_run(folder / "run") as run:
        return run.diagnose()


CHECKPOINTS: dict[str, Scenario] = {
    "in equilibrium": of_checkpoint(),
    "aligned updates": of_checkpoint(aligned),
    "aligned updates of Adam with L2": of_checkpoint(aligned, optimizer="adam"),
    "fast neurons": of_checkpoint(fast_neurons),
    "dead neurons": of_checkpoint(dead_neurons),
    "not finite": of_checkpoint(one_nan),
    "large norm": of_checkpoint(large),
    "short memory": of_checkpoint(in_group(lr=1e-6)),
    "saved rate of 0": of_checkpoint(in_group(lr=0.0)),
    "no decay": of_checkpoint(in_group(weight_decay=0.0)),
    "unstable betas": of_checkpoint(in_group(betas=(0.9, 0.5))),
    "very fast": of_checkpoint(in_group(lr=0.15)),
    "radial momentum": of_checkpoint(radial_momentum),
    "planted signal": lambda folder: gyro.autopsy(equilibrium(150, 0.5, 0.0), batch_size=32).findings,
    "weights alone": lambda folder: gyro.autopsy({"model": equilibrium()["model"]}).findings,
    "weights with settings": lambda folder: (
        gyro.autopsy({"model": equilibrium()["model"]}, optimizer="adamw", lr=LR, weight_decay=DECAY).findings
    ),
    "two files": lambda folder: gyro.autopsy(equilibrium(), equilibrium(1540)).findings,
    "two files far apart": lambda folder: gyro.autopsy(equilibrium(150), equilibrium(1540)).findings,
    "fresh network": lambda folder: gyro.autopsy({"model": network().state_dict()}).findings,
    "trained with AdamW": of_training(lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1)),
    "trained with SGD": of_training(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-2)),
    "trained with Lion": of_training(lambda params: optim.Lion(params, lr=1e-3, weight_decay=0.1)),
    "trained with Adam and L2": of_training(lambda params: torch.optim.Adam(params, lr=1e-3, weight_decay=0.1)),
    "trained with RotationalAdamW": of_training(
        lambda params: optim.RotationalAdamW(params, lr=1e-3, weight_decay=0.1),
        groups=lambda model: gyro.param_groups(model, weight_decay=0.1),
    ),
    "norms that are held": held_norms,
    "tracked": of_tracked_training,
}
SCENARIOS: dict[str, Scenario] = {
    f"{kind}: {name}": scenario
    for kind, scenarios in {
        "run": RUNS,
        "incident": INCIDENTS,
        "stored run": STORED,
        "plan": PLANS,
        "checkpoint": CHECKPOINTS,
    }.items()
    for name, scenario in scenarios.items()
}


def main() -> None:
    """Write the record."""
    stored_findings = {}
    for name, scenario in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as folder:
            stored_findings[name] = plain(scenario(Path(folder)))
    RECORD.write_text(json.dumps(stored_findings, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
