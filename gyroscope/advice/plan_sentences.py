"""What the numbers mean, in words with units; each sentence carries the formula behind it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import degrees, isfinite
from typing import Literal

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.question import Question
from gyroscope.advice.words import sig
from gyroscope.theory import Forecast, Match, stability
from gyroscope.theory.convergence import settling
from gyroscope.theory.law import over
from gyroscope.theory.layers import Prediction
from gyroscope.theory.rules.base import MEANING

RECURSION = "mean-field recursion of E‖w‖², E⟨w,m⟩, E‖m‖² under the schedule (`gyroscope.theory.forecast`)"

Level = Literal["fact", "good", "warning", "missing"]


@dataclass(frozen=True)
class Sentence:
    """One thing to know, and the formula it rests on."""

    topic: str
    text: str
    formula: str
    level: Level = "fact"


def of(question: Question, layers: tuple[Prediction, ...], matches: dict[str, Match | str]) -> Iterator[Sentence]:
    """All sentences of a plan, in the order in which a person asks."""
    yield from _rotation(question, layers[0])
    yield from _memory(question, layers[0])
    if len(layers) == 1:  # several layers stand in a table
        yield from _single(question, layers[0])
    yield from stable(question)
    yield from _equivalents(matches)


def _single(question: Question, one: Prediction) -> Iterator[Sentence]:
    yield from _missing(question, one)
    yield from _norm(one)
    if one.forecast is not None and question.rule.has_weight_decay:
        yield from _start(question, one, one.forecast)
        yield from _course(question, one, one.forecast)


def layer_table(question: Question, layers: tuple[Prediction, ...]) -> tuple[list[str], list[list[str]]]:
    """What is said of each layer when there are several: header and rows."""
    header = ["layer", "rotation", "norm at start", "norm settles at", "first step ×", "worst ×", "warmup needed"]
    header += ["X", "settles at step", "falls out at step"]
    rows = []
    for one in layers:
        f, eq = one.forecast, one.equilibrium
        row = [one.layer.name, _known(eq.angular_update), sig(one.layer.norm), _known(eq.norm)]
        if f is None:
            rows.append([*row, *["needs " + ", ".join(one.layer.missing(question.rule))], *["–"] * 5])
            continue
        warmup = "no help" if one.warmup is None else sig(one.warmup, 2)
        row += [
            sig(f.over_rotation) if isfinite(f.over_rotation) else "–",
            sig(float(excess(f).max())),
            warmup,
            sig(f.total_decay),
        ]
        rows.append([*row, *("never" if t is None else f"{t:,}" for t in (one.settles_at, one.falls_out_at))])
    return header, rows


def _known(value: float | None) -> str:
    return "–" if value is None else sig(value)


def excess(f: Forecast) -> Array:
    """Angle over its equilibrium, step by step; 0 where there is no equilibrium."""
    return np.asarray(np.nan_to_num(over(f.angular_update, f.equilibrium_angular_update), posinf=0.0))


def _rotation(question: Question, one: Prediction) -> Iterator[Sentence]:
    eta_r = one.equilibrium.angular_update
    if eta_r is None:
        return
    exponent = question.rule.angle_exponent
    follows = {1.0: "lr", 0.5: "sqrt(lr)"}.get(exponent, f"lr^{exponent:.2f}")
    yield Sentence(
        "rotation",
        f"In equilibrium a weight vector turns {sig(eta_r)} rad ({sig(degrees(eta_r))}°) per step at the peak learning "
        f"rate; under the schedule this follows {follows}.",
        question.rule.angle_formula,
    )


def _memory(question: Question, one: Prediction) -> Iterator[Sentence]:
    if one.equilibrium.timescale is None:
        return
    yield Sentence(
        "memory",
        f"A direction is forgotten over {steps(one.equilibrium.timescale, question)}; its half-life is "
        f"{steps(one.equilibrium.half_life, question)}.",
        "cos∠(w_t, w_{t+k}) = exp(-a·k): timescale 1/a, half-life ln 2/a",
    )


def _missing(question: Question, one: Prediction) -> Iterator[Sentence]:
    for name in one.layer.missing(question.rule):
        option = "--" + name.replace("_", "-")
        text = f"The norm, and with it the course of the run, is left out: it needs {option} ({MEANING[name]})."
        yield Sentence("missing", text, "", "missing")


def _norm(one: Prediction) -> Iterator[Sentence]:
    norm, start = one.equilibrium.norm, one.layer.norm
    if norm is None:
        return
    change = "as it starts" if 0.9 < norm / start < 1.1 else f"{sig(norm / start)} times its initial {sig(start)}"
    yield Sentence(
        "norm",
        f"The norm of a vector settles at {sig(norm)}, {change}.",
        "‖ω‖² = update_rms²·τ(a)/(a(2-a)); AdamW to leading order sqrt(lr·C/(2λ)), SGDM (lr·g̃²/(2λ(1-α)))^(1/4) "
        "(RE Table 1, SMD Theorem 2)",
    )


def _start(question: Question, one: Prediction, f: Forecast) -> Iterator[Sentence]:
    if not isfinite(f.over_rotation):  # without decay there is no equilibrium to compare with
        return
    ratio = excess(f)
    yield Sentence(
        "start",
        f"The first step turns {sig(f.over_rotation)} times its equilibrium angle, "
        f"{sig(f.filled_over_rotation)} times once the momentum has filled, at worst {sig(float(ratio.max()))} times "
        f"(step {int(ratio.argmax()):,}); {_remedy(question, one)}.",
        "measured/equilibrium: first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)²; "
        "then ‖ω̂‖/‖ω_t‖ (SGDM squared), by the mean-field recursion",
        "fact" if one.warmup is not None and one.warmup <= question.schedule.warmup else "warning",
    )


def _remedy(question: Question, one: Prediction) -> str:
    if one.warmup == 0:
        return "no warmup is needed"
    if one.warmup is not None:
        return (
            f"a warmup of about {steps(float(f'{one.warmup:.2g}'), question)} keeps it within the rotation of full rate"
        )
    norm, fan_in = one.equilibrium.norm or 0.0, one.layer.weights.fan_in
    std = (
        f", entries of standard deviation {sig(norm / fan_in**0.5)}," if fan_in and not one.layer.weights.shape else ""
    )
    return f"the norm starts too small for a warmup to help, an initial norm of {sig(norm)}{std} would"


def _course(question: Question, one: Prediction, f: Forecast) -> Iterator[Sentence]:
    extent = settling(f.total_decay)
    reading = {"never": "too little ever to settle (below 0.3)", "partly": "enough to settle in part (0.3 to 3)"}
    yield Sentence(
        "total decay",
        f"Over the run the decay adds up to X = {sig(f.total_decay)}: "
        f"{reading.get(extent, 'enough to settle (above 3)')}.",
        "X = Σ a_t: what was there at the start shrinks by e^-X",
        "warning" if extent == "never" else "fact",
    )
    if one.settles_at is None:
        yield Sentence("settles", "The norm never comes within 10 % of its equilibrium.", RECURSION, "warning")
        return
    settled = steps(one.settles_at + 1, question)
    yield Sentence("settles", f"The norm comes within 10 % of its equilibrium after {settled}.", RECURSION)
    if one.falls_out_at is not None:
        left = steps(question.schedule.steps - one.falls_out_at, question)
        yield Sentence(
            "falls out",
            f"It falls out again at step {one.falls_out_at:,}, {left} before the end: the norm cannot follow "
            f"the falling rate, and ends at {sig(f.end_norm_ratio)} times the equilibrium norm of the peak.",
            "norm above 1.3 × equilibrium (SGD 1.2); before the end about sqrt(2x²T/a0) for linear, "
            "(16x²T²/(π²a0))^(1/3) for cosine decay, norm ∝ lr^x",
        )


def stable(question: Question) -> Iterator[Sentence]:
    """Whether the betas keep every update bounded, where the rule has such betas."""
    if question.rule.adam_betas is None:
        return
    beta1, beta2 = question.rule.adam_betas
    exact, paper = float(stability.exact_margin(beta1, beta2)), float(stability.margin(beta1, beta2))
    judged, keep = f"Betas ({beta1}, {beta2}) are", f"keep beta2 above beta1² = {sig(beta1**2)}"
    margins = f"margin {sig(exact)} (the paper's C = {sig(paper)})"
    if exact > 0:
        bound = float(stability.update_bound(question.schedule.steps, beta1, beta2, exact=True))
        text = f"{judged} stable, {margins}: no entry ever moves more than {sig(bound)} × lr in a step."
    elif exact < 0:
        growth = sig(1 / float(stability.growth_rate(beta1, beta2, exact=True)))
        text = f"{judged} unstable, {margins}: updates can grow e times every {growth} steps; {keep}."
    else:
        text = f"{judged} at the edge of stability, {margins}: {keep}."
    yield Sentence(
        "stability",
        text,
        "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous); bound by Cauchy–Schwarz over all "
        "gradient sequences",
        "fact" if exact > 0 else "warning",
    )


def _equivalents(matches: dict[str, Match | str]) -> Iterator[Sentence]:
    formula = "same decay a and same norm; the rotation then differs by sqrt(τ1/τ2)"
    for name, found in matches.items():
        if isinstance(found, str):
            yield Sentence("equivalent", f"{name}: {found}.", formula, "missing")
            continue
        names = [key for key in found.rule.settings if key in ("lr", "weight_decay", "momentum", "betas")]
        values = [getattr(found.rule, key) for key in names]
        shown = [sig(value) if isinstance(value, float) else str(value) for value in values]
        settings = ", ".join(f"{key} {value}" for key, value in zip(names, shown, strict=True))
        kept = " and ".join(found.kept) or "nothing"
        changed = "".join(f", {quantity} × {sig(ratio)}" for quantity, ratio in found.differs.items())
        yield Sentence("equivalent", f"{name} with {settings} keeps {kept}{changed}.", formula)


def steps(count: float | None, question: Question) -> str:
    """A number of steps, and of epochs where the batch and the data set are known."""
    if count is None or count == float("inf"):
        return "∞ steps"
    text = f"{count:,.0f} step{'' if round(count) == 1 else 's'}" if count < 1e15 else f"{count:.1e} steps"
    if question.steps_per_epoch is None:
        return text
    return f"{text} ({sig(count / question.steps_per_epoch)} epochs)"
