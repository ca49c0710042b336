"""The planner's answer: predictions for each layer, sentences that say what they mean, and a verdict."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from gyroscope.advice import plan_sentences as sentences
from gyroscope.advice.plan_sentences import Level, Sentence
from gyroscope.advice.question import Question
from gyroscope.advice.words import sig
from gyroscope.planner.settings import RULES, TYPICAL
from gyroscope.theory import Match, match
from gyroscope.theory.convergence import settling
from gyroscope.theory.layers import Prediction, predict

TOO_FAST = 0.1
"""Radians per step above which a vector is turned around within a few dozen steps by noise alone."""


@dataclass(frozen=True)
class Answer:
    """Everything `gyroscope plan` says."""

    question: Question
    layers: tuple[Prediction, ...]
    matches: dict[str, Match | str]
    sentences: tuple[Sentence, ...]
    verdict: tuple[Sentence, ...]


def answer(question: Question, progress: Callable[[int], None] | None = None) -> Answer:
    """Work out the plan; `progress` is told the steps done, layer after layer."""
    layers = predict(question.rule, question.schedule, question.layers, progress)
    matches = dict(_matches(question))
    said = tuple(sentences.of(question, layers, matches))
    return Answer(question, layers, matches, said, tuple(_verdict(question, layers)))


def _matches(question: Question) -> Iterator[tuple[str, Match | str]]:
    """The other optimizers' settings, or why they cannot be given."""
    layer = question.layers[0]
    for name in question.compare:
        options = {key: value for key, value in TYPICAL[name].items() if key not in ("lr", "weight_decay")}
        try:
            yield name, match(question.rule, RULES[name], **layer.known, **options)
        except ValueError as error:
            missing = [key for key in question.rule.needs + RULES[name].needs if layer.known[key] is None]
            yield name, f"add --{missing[0].replace('_', '-')} to compare" if missing else str(error)


def _verdict(question: Question, layers: tuple[Prediction, ...]) -> Iterator[Sentence]:
    def say(level: Level, text: str) -> Sentence:
        return Sentence("verdict", text, "", level)

    rotation = layers[0].equilibrium.angular_update
    if rotation is not None and np.max(rotation) > TOO_FAST:
        yield say("warning", f"{rotation:.2g} rad per step is very fast: lower lr or weight decay.")
    for where, (level, text) in _grouped(layers, lambda one: _settling(one, question)):
        yield say(level, f"{where}{text}")
    for where, starts in _grouped(layers, lambda one: _start(one, question)):
        if starts:
            yield say("warning", f"{where}{starts}")


def _settling(one: Prediction, question: Question) -> tuple[Level, str]:
    if one.forecast is None:
        names = " and ".join("--" + name.replace("_", "-") for name in one.layer.missing(question.rule))
        return "missing", f"Whether it settles cannot be said without {names}."
    if not question.rule.has_weight_decay:
        return "good", "The norm is held and the schedule sets the rotation at every step: nothing has to settle."
    X, settles_at = one.forecast.total_decay, one.settles_at
    if X == 0:
        return "warning", "It never settles: nothing decays, so the norm grows, and the rotation slows, without end."
    longer = f"train longer or raise lr × weight decay, together {sig(3 / max(X, 1e-300), 2)} times"
    if settling(X) == "never":
        return (
            "warning",
            f"It never settles: the initial norm, not weight decay, sets the rotation. To settle, {longer}.",
        )
    if settles_at is None or settling(X) == "partly":
        return "warning", f"It settles only in part, e^-X = {exp(-X):.0%} of the start remains. To settle, {longer}."
    share = (settles_at + 1) / question.schedule.steps
    if share > 0.5:
        return (
            "warning",
            f"It settles late, after {share:.0%} of the run: until then the initial norm sets the rotation.",
        )
    return "good", f"It settles after {share:.1%} of the run and then turns as predicted."


def _start(one: Prediction, question: Question) -> str:
    if one.forecast is None or not question.rule.has_weight_decay or not one.equilibrium.angular_update:
        return ""
    if one.warmup is None:
        ratio = (one.equilibrium.norm or 0.0) / one.layer.norm
        return f"It starts {sig(ratio)} times too small and turns too fast until it has grown, warmup or not."
    if one.warmup > question.schedule.warmup:
        has = question.schedule.warmup
        return f"The start turns too fast: use a warmup of about {sig(one.warmup, 2)} steps (now {has:,})."
    return ""


def _grouped(layers: tuple[Prediction, ...], judge: Any) -> Iterator[tuple[str, Any]]:
    """The same judgement of several layers is said once."""
    judged: dict[Any, list[str]] = {}
    for one in layers:
        judged.setdefault(judge(one), []).append(one.layer.name)
    for judgement, names in judged.items():
        yield ("" if len(judged) == 1 else f"{', '.join(names)}: "), judgement
