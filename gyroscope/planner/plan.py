"""The planner meets a model: what this very run will do, before its first step."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from gyroscope._checks import check_run_length
from gyroscope._types import Array
from gyroscope.advice.plan_sentences import Sentence, layer_table
from gyroscope.advice.plan_summary import Told, imbalance, summary, worst, worst_first
from gyroscope.advice.question import Question
from gyroscope.advice.words import settings, who
from gyroscope.model.gradients import Loss
from gyroscope.model.probe import probe
from gyroscope.model.selection import Invariance
from gyroscope.planner.model import Weight, layer_grad_norms, weights_of
from gyroscope.planner.rates import Scheduler, foretell_rates
from gyroscope.render.chart import chart
from gyroscope.render.plan_page import render
from gyroscope.render.plan_text import said, table
from gyroscope.theory import Forecast
from gyroscope.theory.layers import Layer, Prediction, predict

CURVES = 7
"""Layers that a picture shows; of more, some from the calmest to the wildest start."""
WIDTH = 140
"""Columns of the printed plan."""


@final
@dataclass(frozen=True)
class Plan:
    """A run foretold for a model: a Forecast for each weight, and what to think of them. Prints as a table."""

    told: tuple[Told, ...]
    missing: Mapping[str, str]
    """Weights without a forecast, and why."""
    notes: tuple[str, ...]
    """What the forecast leaves out."""

    @property
    def layers(self) -> dict[str, Forecast]:
        """The forecast of every weight, by the parameter's name, in the model's order."""
        return {one.layer.name: one.forecast for _, one in self.told if one.forecast is not None}

    @property
    def warmup(self) -> dict[str, int | None]:
        """Steps of warmup with which no step turns faster than settled; None where no warmup helps."""
        return {one.layer.name: one.warmup for _, one in self.told}

    @property
    def never_settle(self) -> list[str]:
        """Layers whose norm does not come within 10 % of its equilibrium."""
        return [one.layer.name for _, one in self.told if one.settles_at is None]

    @property
    def imbalance(self) -> Array:
        """Rotation of the fastest layer over that of the slowest, step by step."""
        return imbalance(list(self.layers.values())) if self.told else np.ones(0)

    @property
    def sentences(self) -> list[Sentence]:
        """What to think of it, worst first."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            reasons.setdefault(reason, []).append(name)
        absent = [f"{who(names, 'has', 'have')} no forecast: {reason}." for reason, names in reasons.items()]
        notes = [Sentence("note", f"{note}.", "") for note in self.notes]
        return worst_first(
            [*summary(self.told), *(Sentence("missing", text, "", "missing") for text in absent), *notes]
        )

    def chart(self, layer: str | None = None) -> str:
        """Rotation over the run as a chart for the terminal; of the layer with the wildest start if none is named."""
        course = self._wildest(1)[0].forecast if layer is None else self._named(layer)
        assert course is not None
        return "\n".join(chart(course.angular_update, course.equilibrium_angular_update))

    def html(self, path: str | Path) -> Path:
        """Write the plan as one page that opens from disk: verdict, curves and table."""
        title = f"Plan of {len(self.layers)} layers over {self._steps:,} steps"
        text = render(title, self._settings, self.sentences, self._wildest(CURVES), self._table())
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=WIDTH, highlight=False)
        for line in self._settings:
            console.print(line)
        shown = ["", table(*self._table()), ""] if self.told else []
        console.print(*shown, *said(self.sentences, WIDTH), sep="\n")
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    @property
    def _settings(self) -> list[str]:
        """Each rule with its schedule."""
        return list(
            dict.fromkeys(
                f"{settings(q.rule)}, {q.schedule.name} over {q.schedule.steps:,} steps" for q, _ in self.told
            )
        )

    @property
    def _steps(self) -> int:
        return self.told[0][0].schedule.steps if self.told else 0

    def _named(self, layer: str) -> Forecast:
        if layer not in self.layers:
            raise ValueError(f"{layer!r} has no forecast; those that have are {', '.join(self.layers)}")
        return self.layers[layer]

    def _wildest(self, most: int) -> list[Prediction]:
        """At most so many layers, evenly from the fastest start to the slowest."""
        ones = sorted((one for _, one in self.told), key=worst, reverse=True)
        if not ones:
            raise ValueError("no layer has a forecast: " + "; ".join({*self.missing.values(), "no weight rotates"}))
        picked = np.unique(np.linspace(0, len(ones) - 1, min(most, len(ones))).round().astype(int))
        return [ones[number] for number in picked]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        header: list[str] = ["layer"]
        rows = []
        for question, one in self.told:
            header, lines = layer_table(question, (one,))
            rows += lines
        return header, rows


def plan(
    model: nn.Module, optimizer: Optimizer, scheduler: Scheduler = None, *, steps: int, loss: Loss | None = None
) -> Plan:
    """Foretell the run of this model: norm and rotation of every weight at every step, and what would mend them.

    From shapes, initial norms, parameter groups and the learning rates that `scheduler` will set: a torch scheduler
    that steps once after each optimizer step, or a function step -> multiplier. `loss(model)`, a scalar on a fresh
    batch at each call, lets it find scale-invariant weights and measure the gradients that SGD and Adam with L2 need.
    Model, optimizer, scheduler and random state are left as they were.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(256, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 10))
    >>> adamw = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    >>> course = plan(model, adamw, steps=2000).layers["0.weight"]
    >>> f"{course.equilibrium_angular_update[-1]:.3f} rad per step, {course.over_rotation:.0f} times that at the first"
    '0.023 rad per step, 12 times that at the first'
    """
    check_run_length(steps)
    rates, notes = foretell_rates(optimizer, scheduler, steps)
    found = probe(model, loss) if loss is not None else {}
    weights = list(weights_of(model, optimizer, rates, found))
    unmeasured = [weight for weight in weights if weight.rule is not None and "unit_grad_norm" in weight.rule.needs]
    grads = layer_grad_norms(model, loss, unmeasured) if loss is not None and unmeasured else {}
    layers = {weight.name: weight.layer(grads.get(weight.name)) for weight in weights}
    problems = {weight.name: weight.problem(layers[weight.name], loss is not None) for weight in weights}
    told = _told([(weight, layers[weight.name]) for weight in weights if not problems[weight.name]])
    missing = {name: problem for name, problem in problems.items() if problem}
    return Plan(
        tuple(told[name] for name in layers if name in told),
        missing,
        (*notes, *_sensitive(weights, found), *_begun(optimizer)),
    )


def _told(weights: Sequence[tuple[Weight, Layer]]) -> dict[str, Told]:
    """Predictions by name; weights with the same rule and rates are followed together."""
    questions: dict[object, tuple[Weight, list[Layer]]] = {}
    for weight, layer in weights:
        alike = (weight.rule, weight.rates.lr.tobytes())
        questions.setdefault(alike, (weight, []))[1].append(layer)
    told = {}
    for weight, layers in questions.values():
        assert weight.rule is not None
        question = Question(weight.rule.name, weight.rule, weight.rates.schedule, tuple(layers), None, ())
        told.update(
            {one.layer.name: (question, one) for one in predict(question.rule, question.schedule, question.layers)}
        )
    return told


def _sensitive(weights: Sequence[Weight], found: Mapping[str, Invariance]) -> Iterator[str]:
    """What the probe says against the assumption of every forecast, that the loss ignores a vector's scale."""
    fineness = ("neuron", "group", "tensor", "none")
    said: dict[str, list[str]] = {}
    for weight in weights:
        known = found.get(weight.name)
        if known is not None and fineness.index(known.granularity) > fineness.index(weight.split.granularity):
            why = known.evidence if known.granularity == "none" else f"only each {known.granularity} as a whole is"
            said.setdefault(f"scale-invariant ({why}), so the forecast is rough", []).append(weight.name)
    yield from (f"{who(names, 'is', 'are')} not {why}" for why, names in said.items())


def _begun(optimizer: Optimizer) -> Iterator[str]:
    if getattr(optimizer, "state", None):
        yield "The optimizer has taken steps already, but the forecast starts with an empty momentum"
