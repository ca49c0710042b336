"""A conversion to another optimizer as plain data: what its text and its JSON show."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from gyroscope._json import dumps
from gyroscope.advice.phrases import listed, rule_text, sig
from gyroscope.report.plan_data import match_data
from gyroscope.report.transfer_data import setting
from gyroscope.theory import Match, Schedule, UpdateRule
from gyroscope.theory.law import Weights

# Shares of a run at which a converted schedule is shown.
SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
QUANTITIES = {"memory": "memory", "norm": "norm", "rotation": "rotation per step"}


@final
@dataclass(frozen=True)
class Conversion:
    """Settings of another optimizer with which it trains alike.

    rule      the tuned settings
    match     the other rule, what it keeps and what differs
    weights   what was given of the weights
    schedule  of the tuned run, or None
    """

    rule: UpdateRule
    match: Match
    weights: Weights
    schedule: Schedule | None

    @property
    def answer(self) -> str:
        """The new settings in one sentence."""
        new = self.match.rule
        parts = []
        for name, value in new.settings.items():
            if value is True:
                parts.append(name)
            elif value is not None and value is not False:
                parts.append(f"{name} {setting(value) if isinstance(value, float) else value}")
        return f"Use {new.name}: {', '.join(parts)}."

    def sentences(self) -> Iterator[str]:
        """Yield what the new settings keep, what differs and what they depend on."""
        converted = self.match
        kept = [QUANTITIES[name] for name in QUANTITIES if name in converted.kept]
        yield f"They keep the {listed(kept)} of {rule_text(self.rule)}." if kept else "They keep nothing exactly."
        changed = [f"{QUANTITIES[name]} by {sig(ratio)}" for name, ratio in converted.differs.items()]
        if changed:
            yield f"They multiply the {listed(changed)}."
        if converted.rule.keeps_norm:
            yield "Norms stay where they start."
        if converted.schedule_power == 1:
            yield "Keep your schedule."
        else:
            yield f"Raise the multipliers of your schedule to the power {sig(converted.schedule_power)}."
        if "unit_grad_norm" in (*self.rule.needs, *converted.rule.needs):
            yield "The gradient norm differs between layers, so convert each layer with its own --unit-grad-norm."
        if self.rule.whole_matrix != converted.rule.whole_matrix:
            yield "The answer holds for matrices of this shape."
        yield "No trial of ours supports this conversion yet."

    @property
    def schedule_rows(self) -> list[tuple[str, float, float]]:
        """Share of the run, multiplier of the tuned schedule, and of the converted one."""
        if self.schedule is None or self.match.schedule_power == 1:
            return []
        steps = np.array([int(share * self.schedule.steps) for share in SHARES])
        before = self.schedule(steps)
        after = self.match.schedule(self.schedule)(steps)
        shares = (f"{100 * share:g} %" for share in SHARES)
        return [(share, float(old), float(new)) for share, old, new in zip(shares, before, after, strict=True)]

    def json(self) -> str:
        """Return settings, what is kept, ratios and the schedule as JSON."""
        return dumps(
            {
                "from": {"name": self.rule.name, **self.rule.settings},
                "to": {"name": self.match.rule.name, **match_data(self.match)},
                "inputs": {name: getattr(self.weights, name) for name in ("fan_in", "unit_grad_norm", "shape")},
                "schedule": [
                    {"share": share, "multiplier": old, "converted": new} for share, old, new in self.schedule_rows
                ],
                "sentences": [self.answer, *self.sentences()],
            }
        )
