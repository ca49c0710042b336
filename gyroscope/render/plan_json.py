"""The planner's answer as plain data, for programs: what `gyroscope plan --json` prints."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from gyroscope.planner.answer import Answer
from gyroscope.theory import Match
from gyroscope.theory.layers import Prediction

MOST_POINTS = 500
"""Points of a curve that are kept; a longer run is thinned evenly, first and last step included."""


def as_data(answer: Answer) -> dict[str, Any]:
    """Settings, predictions per layer, equivalents, sentences and verdict; a number that is not finite becomes null."""
    question = answer.question
    data = {
        "optimizer": {"name": question.rule_name, **asdict(question.rule)},  # type: ignore[call-overload]
        "schedule": {
            "name": question.schedule.name,
            "steps": question.schedule.steps,
            "warmup": question.schedule.warmup,
        },
        "steps_per_epoch": question.steps_per_epoch,
        "layers": [_layer(one) for one in answer.layers],
        "equivalents": {name: _match(found) for name, found in answer.matches.items()},
        "sentences": [asdict(sentence) for sentence in answer.sentences],
        "verdict": [asdict(sentence) for sentence in answer.verdict],
    }
    return _finite(data)  # type: ignore[no-any-return]


def _layer(one: Prediction) -> dict[str, Any]:
    eq, f = one.equilibrium, one.forecast
    data = {
        "name": one.layer.name,
        "initial_norm": one.layer.norm,
        **one.layer.known,
        "equilibrium": {**asdict(eq), "half_life": eq.half_life},
        "needed_warmup": one.warmup,
        "forecast": None,
    }
    if f is not None:
        kept = thinned(len(f.lr))
        curves = ("lr", "angular_update", "norm", "equilibrium_angular_update", "equilibrium_norm")
        data["forecast"] = {
            "settled_at": one.settles_at,
            "falls_out_at": one.falls_out_at,
            "over_rotation": f.over_rotation,
            "filled_over_rotation": f.filled_over_rotation,
            "total_decay": f.total_decay,
            "end_norm_ratio": f.end_norm_ratio,
            "step": kept.tolist(),
            **{name: getattr(f, name)[kept].tolist() for name in curves},
        }
    return data


def thinned(steps: int) -> Any:
    """Indices of the steps that a curve keeps."""
    return np.unique(np.linspace(0, steps - 1, min(steps, MOST_POINTS)).round().astype(int))


def _match(found: Match | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"missing": found}
    return {"settings": asdict(found.rule), "kept": found.kept, "ratios": dict(found.ratios)}  # type: ignore[call-overload]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
